"""A model's tokenizer: text, or a chat, to ids exactly as Hugging Face transformers makes them, and back.

`encode_batch_fast` is used for a single text because it, unlike `encode`, lets other threads run meanwhile.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from proxy.text.chat_template import ChatTemplate
from proxy.text.detokenizer import Detokenizer, TokenBytes
from proxy.text.least_tokens import LeastTokens
from proxy.tools.tool_call_format import ToolCallFormat


class NoChatTemplate(ValueError):
    """The model has no chat template."""


class Tokenizer:
    def __init__(self, tokenizer: tokenizers.Tokenizer, chat_template: ChatTemplate | None) -> None:
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._token_bytes = TokenBytes(tokenizer)
        self._least_tokens = LeastTokens.by(tokenizer)

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """From a Hugging Face model folder. Raises FileNotFoundError, UnsupportedTokenizer."""
        tokenizer_file = folder / "tokenizer.json"
        if not tokenizer_file.is_file():
            raise FileNotFoundError(f"{folder} has no tokenizer.json")
        tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return cls(tokenizer, ChatTemplate.load(folder))

    @property
    def num_tokens(self) -> int:
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def token_id(self, token: str) -> int | None:
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """With those that the model expects around a text, as a start token."""
        return self._encode(text, add_special_tokens=add_special_tokens)

    @property
    def tool_call_format(self) -> ToolCallFormat | None:
        """In which the model writes calls of functions; None for one that this server does not parse."""
        return None if self._chat_template is None else self._chat_template.tool_call_format

    def render_chat(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The text of a whole chat. Raises NoChatTemplate, ChatTemplateError."""
        if self._chat_template is None:
            raise NoChatTemplate("this model has no chat template: use /v1/completions, or a text prompt")
        return self._chat_template.render(messages, tools)

    def encode_rendered(self, chat: str) -> list[int]:
        """The template wrote the special tokens; none is added to them."""
        return self._encode(chat, add_special_tokens=False)

    def least_tokens(self, text: str) -> int:
        """A text has at least so many, which is known without tokenising it."""
        return 0 if self._least_tokens is None else self._least_tokens.of(text)

    def detokenizer(self, prompt_ids: Sequence[int], visible: Collection[str] = ()) -> Detokenizer:
        """For the text that follows this prompt. `visible`: special tokens that have a text here."""
        shown = {token_id: token.encode() for token in visible if (token_id := self.token_id(token)) is not None}
        return Detokenizer(self._token_bytes, prompt_ids, shown)

    def token(self, token_id: int) -> str:
        """The token as a text of its own: a special one's name, U+FFFD for bytes that are no whole character."""
        exact = self._token_bytes[token_id]
        return exact.decode(errors="replace") if exact else self._tokenizer.id_to_token(token_id) or ""

    def token_bytes(self, token_id: int) -> bytes:
        """What the token adds to a text; special tokens add nothing."""
        return self._token_bytes[token_id]

    def text(self, ids: Sequence[int]) -> str:
        """With special tokens by their names, and U+FFFD for bytes that are no whole character."""
        whole: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return whole

    def decode(self, ids: Sequence[int]) -> str:
        """Without special tokens, and without a character that is unfinished at the end."""
        whole = b"".join(self._token_bytes[token_id] for token_id in ids)
        return codecs.getincrementaldecoder("utf-8")(errors="replace").decode(whole)

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        encoding = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
        ids: list[int] = encoding.ids
        return ids
