"""The bodies of `/tokenize` and `/detokenize`, as vLLM has them, and what they are answered with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proxy.errors import invalid
from proxy.openai.body import Body
from proxy.openai.messages import Message, read_messages
from proxy.text.prompt import ChatPrompt, TextPrompt
from proxy.text.tokenizer import Tokenizer
from proxy.tools.tool import read_tools


class TokenizeBody(Body):
    """A text, or a chat as `/v1/chat/completions` makes a prompt of it."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: Any = None
    add_special_tokens: bool | None = None  # to a text; a chat's template has its own
    return_token_strs: bool | None = None

    def check(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise invalid("prompt", "send either prompt or messages")
        for name, value in (("tools", self.tools), ("add_special_tokens", self.add_special_tokens)):
            needed = "messages" if name == "tools" else "prompt"
            if value is not None and getattr(self, needed) is None:
                raise invalid(name, f"only with {needed}")

    def to_prompt(self) -> TextPrompt | ChatPrompt:
        if self.messages is None:
            return TextPrompt(self.prompt or "", self.add_special_tokens is not False)
        use = read_tools(self.tools, None, None)
        definitions = tuple(tool.definition for tool in use.tools) if use is not None else ()
        return ChatPrompt(read_messages(self.messages), definitions)

    def answer(self, ids: Sequence[int], tokenizer: Tokenizer, max_model_len: int) -> dict[str, Any]:
        names = [tokenizer.token(token_id) for token_id in ids] if self.return_token_strs else None
        return {"count": len(ids), "max_model_len": max_model_len, "tokens": list(ids), "token_strs": names}


class DetokenizeBody(Body):
    model: str | None = None
    tokens: list[int]
