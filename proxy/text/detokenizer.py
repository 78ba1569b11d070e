"""Token ids to text, one at a time: what comes out joined is the text of all of them, and no character comes in halves.

Every token is bytes; a UTF-8 decoder holds back those of an unfinished character. That costs the same for each token,
however long the text is, and cannot fail: bytes that no character can contain become U+FFFD.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import tokenizers

PROMPT_TAIL = 8  # prompt tokens looked at for an unfinished character: it has at most three bytes


class UnsupportedTokenizer(ValueError):
    """tokenizer.json has a decoder that this server does not know; the message names it."""


class TokenBytes:
    """Maintains what each token id stands for: bytes, none for special tokens and for ids that are not in use."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        description = json.loads(tokenizer.to_str())
        self._special = {token["id"] for token in description["added_tokens"] if token["special"]}
        kinds = _decoder_kinds(description.get("decoder"))
        self._alphabet = _byte_alphabet() if "ByteLevel" in kinds else None
        if self._alphabet is None and not kinds & {"ByteFallback", "Metaspace"}:
            raise UnsupportedTokenizer(
                f"the tokenizer's decoder is {' + '.join(sorted(kinds)) or 'missing'}; "
                "this server knows ByteLevel, and ByteFallback or Metaspace"
            )
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        found = self._known.get(token_id)
        if found is None:
            found = self._known[token_id] = self._look_up(token_id)
        return found

    def _look_up(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id)
        if token is None or token_id in self._special:
            return b""
        if self._alphabet is None:
            return _sentencepiece_bytes(token)
        if all(character in self._alphabet for character in token):
            return bytes(self._alphabet[character] for character in token)
        return token.encode()  # an added token, written as it is


class Detokenizer:
    """One request's text so far. A character that the prompt left unfinished is completed, not repeated."""

    def __init__(
        self, token_bytes: TokenBytes, prompt_ids: Sequence[int], shown: Mapping[int, bytes] = MappingProxyType({})
    ) -> None:
        """`shown`: what special tokens stand for that are part of the text here."""
        self._token_bytes = token_bytes
        self._shown = shown
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for token_id in prompt_ids[-PROMPT_TAIL:]:
            self._decoder.decode(self._token_bytes[token_id])
        self._prompt_is_unfinished = bool(self._decoder.getstate()[0])

    def add(self, token_id: int) -> str:
        """The text that became certain with this token; may be empty."""
        return self._own(self._decoder.decode(self._shown.get(token_id) or self._token_bytes[token_id]))

    def finish(self) -> str:
        """U+FFFD for a character that stays unfinished, else nothing."""
        return self._own(self._decoder.decode(b"", final=True))

    def _own(self, text: str) -> str:
        """Without the U+FFFD that stands for the prompt's last bytes, when they were not completed."""
        if self._prompt_is_unfinished and text:
            self._prompt_is_unfinished = False
            return text.removeprefix("\ufffd")
        return text


def _decoder_kinds(decoder: dict[str, Any] | None) -> set[str]:
    if decoder is None:
        return set()
    if decoder["type"] == "Sequence":
        return {part["type"] for part in decoder["decoders"]}
    return {decoder["type"]}


def _sentencepiece_bytes(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes.fromhex(token[3:5])
    return token.replace("\u2581", " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's: each byte as one printable character."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
