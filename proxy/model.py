"""The served model as the proxy knows it: name, limits, end-of-text ids and tokenizer, from its Hugging Face folder."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy.text.tokenizer import Tokenizer
from proxy.tools.tool_call_format import FORMATS, ToolCallFormat

CONTEXT_FIELDS = ("max_position_embeddings", "max_model_len")


@dataclass(frozen=True, slots=True)
class ServedModel:
    name: str
    max_model_len: int  # the model's own context in tokens; its workers may hold less
    vocab_size: int
    eos_token_ids: frozenset[int]
    tokenizer: Tokenizer
    tokenizer_file: Path
    tool_call_format: (
        ToolCallFormat | None
    )  # None: it writes calls of functions in a way that this server does not parse
    created: int  # Unix seconds

    @classmethod
    def load(cls, folder: Path, name: str, tool_call_format: str = "auto") -> ServedModel:
        """`tool_call_format`: a name, or `auto`: by the chat template. Raises FileNotFoundError, ValueError."""
        config = _read(folder / "config.json")
        context = next((int(config[field]) for field in CONTEXT_FIELDS if field in config), None)
        if context is None:
            raise ValueError(f"{folder}/config.json has no max_position_embeddings: the context is unknown")
        tokenizer = Tokenizer.load(folder)
        return cls(
            name=name,
            max_model_len=context,
            vocab_size=int(config.get("vocab_size", tokenizer.num_tokens)),
            eos_token_ids=_eos_token_ids(folder, config, tokenizer),
            tokenizer=tokenizer,
            tokenizer_file=folder / "tokenizer.json",
            tool_call_format=FORMATS.get(tool_call_format, tokenizer.tool_call_format),
            created=int(time.time()),
        )


def _eos_token_ids(folder: Path, config: dict[str, Any], tokenizer: Tokenizer) -> frozenset[int]:
    """As transformers' `generate` takes them: generation_config.json, else config.json; else the tokenizer's token."""
    generation_file = folder / "generation_config.json"
    for source in (_read(generation_file) if generation_file.is_file() else {}, config):
        ids = source.get("eos_token_id")
        if ids is not None:
            return frozenset(ids if isinstance(ids, list) else [ids])
    token_file = folder / "tokenizer_config.json"
    token = (_read(token_file) if token_file.is_file() else {}).get("eos_token")
    token_id = tokenizer.token_id(token) if isinstance(token, str) else None
    return frozenset() if token_id is None else frozenset([token_id])


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist: give the folder of a Hugging Face model")
    content: dict[str, Any] = json.loads(file.read_text())
    return content
