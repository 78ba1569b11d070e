"""Public traces of requests, as the repository carries them: `data/README.md` says whose they are."""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from engine.block_hash import DIGEST_BYTES

CONVERSATION = Path(__file__).parent / "data" / "mooncake_conversation_trace.jsonl.xz"
BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class TracedRequest:
    arrived_at: float  # seconds from the trace's start
    num_tokens: int  # of the prompt
    block_hashes: tuple[bytes, ...]  # of its full blocks: equal ones are equal prefixes up to there


def read_trace(num_requests: int | None = None, path: Path = CONVERSATION) -> list[TracedRequest]:
    """The first so many, or all, in order of arrival."""
    with lzma.open(path, "rt") as lines:
        return [_request(json.loads(line)) for line in islice(lines, num_requests)]


def _request(line: dict[str, Any]) -> TracedRequest:
    full = line["hash_ids"][: line["input_length"] // BLOCK_TOKENS]
    hashes = tuple(block_id.to_bytes(DIGEST_BYTES, "big") for block_id in full)
    return TracedRequest(line["timestamp"] / 1000, line["input_length"], hashes)
