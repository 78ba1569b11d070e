"""How few tokens a text can have, known without tokenising it where a tokenizer keeps every character.

A prompt that cannot fit is refused by this, before it costs anything.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import tokenizers

NFC_SHRINKS = 4  # composing characters never makes a text so many times shorter
KEEPING = ("ByteLevel", "Digits", "Metaspace", "Split")  # steps before the model that drop nothing
ASCII, CONTINUATION = range(0x80), range(0x80, 0xC0)  # bytes of UTF-8; every longer character has one of the second


@dataclass(frozen=True, slots=True)
class LeastTokens:
    longest: int  # characters that one token can stand for
    dropped: str  # characters that no token stands for

    def of(self, text: str) -> int:
        return (len(text) - sum(map(text.count, self.dropped))) // self.longest

    @classmethod
    def by(cls, tokenizer: tokenizers.Tokenizer) -> LeastTokens | None:
        """None: a token may stand for more than its own characters, so nothing is known."""
        described = json.loads(tokenizer.to_str())
        shrinks = _shrinks(described.get("normalizer"))
        dropped = _dropped(described)
        if shrinks is None or dropped is None or not _keeps_all(described.get("pre_tokenizer")):
            return None
        added = described["added_tokens"]
        if any(token["lstrip"] or token["rstrip"] for token in added):  # takes the spaces around it in
            return None
        longest = max(len(token) for token in described["model"]["vocab"])
        return cls(shrinks * max([longest, *(len(token["content"]) for token in added)]), dropped)


def _shrinks(normalizer: dict[str, Any] | None) -> int | None:
    """How many times shorter it can make a text; None: any number."""
    if normalizer is None:
        return 1
    match normalizer["type"]:
        case "Prepend":
            return 1
        case "NFC":
            return NFC_SHRINKS
        case "Replace" if len(normalizer["pattern"].get("String", " " * 99)) <= len(normalizer["content"]):
            return 1
        case "Sequence":
            product = 1
            for each in map(_shrinks, normalizer["normalizers"]):
                if each is None:
                    return None
                product *= each
            return product
    return None


def _keeps_all(pre_tokenizer: dict[str, Any] | None) -> bool:
    if pre_tokenizer is None:
        return True
    if pre_tokenizer["type"] == "Sequence":
        return all(map(_keeps_all, pre_tokenizer["pretokenizers"]))
    return pre_tokenizer["type"] in KEEPING and pre_tokenizer.get("behavior") != "Removed"


def _dropped(described: dict[str, Any]) -> str | None:
    """None: longer characters, too, might be dropped."""
    model = described["model"]
    if model.get("type", "BPE") != "BPE":
        return None
    if model.get("byte_fallback"):
        known = {byte for byte in range(256) if f"<0x{byte:02X}>" in model["vocab"]}
    elif "ByteLevel" in json.dumps(described.get("pre_tokenizer")):
        known = {byte for byte, letter in enumerate(_byte_letters()) if letter in model["vocab"]}
    else:
        return None
    return "".join(chr(byte) for byte in ASCII if byte not in known) if known.issuperset(CONTINUATION) else None


def _byte_letters() -> list[str]:
    """What stands for each byte in a byte-level vocabulary: itself where it is printable, else the next free one."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(0x100)]
