"""Hashes that any process computes alike, and that no other content, model or tenant has."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from engine.block_hash import HashContext, block_hashes

ROOT = Path(__file__).parents[3]
CONTEXT = HashContext("weights", "float32", 4)
TOKENS = range(20)


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_a_process_that_hashes_otherwise_computes_the_same(seed: str) -> None:
    """Field report D36: Python's own hash differs from process to process, these do not."""
    program = (
        "from engine.block_hash import HashContext, block_hashes\n"
        f"print(b''.join(block_hashes({CONTEXT!r}.with_salt('tenant'), {TOKENS!r})).hex())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={"PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == b"".join(block_hashes(CONTEXT.with_salt("tenant"), TOKENS)).hex()


@pytest.mark.parametrize(
    "other",
    [
        replace(CONTEXT, model_fingerprint="other weights"),
        replace(CONTEXT, kv_dtype="bfloat16"),
        replace(CONTEXT, adapter="a LoRA"),
        CONTEXT.with_salt("tenant"),
    ],
    ids=["weights", "dtype", "adapter", "tenant"],
)
def test_other_kv_of_the_same_tokens_has_no_hash_in_common(other: HashContext) -> None:
    """Field report D37."""
    assert not set(block_hashes(CONTEXT, TOKENS)) & set(block_hashes(other, TOKENS))


def test_a_block_s_hash_depends_on_all_tokens_before_it() -> None:
    """Field report D37."""
    hashes = block_hashes(CONTEXT, TOKENS)
    for changed in TOKENS:
        others = block_hashes(CONTEXT, [token + (token == changed) for token in TOKENS])
        same = [one == other for one, other in zip(hashes, others, strict=True)]
        assert same == [block < changed // CONTEXT.block_size for block in range(len(hashes))]
