"""Chained content hashes of token blocks: one prefix has one hash in every process, and no other prefix has it.

Keyed BLAKE2b; the key binds everything besides the tokens that decides what a block's KV is. No torch here: the proxy
computes the same hashes.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class HashContext:
    """What, besides its tokens and all before them, decides a block's KV."""

    model_fingerprint: str
    kv_dtype: str
    block_size: int
    cache_salt: str = ""
    adapter: str = ""

    def with_salt(self, cache_salt: str) -> HashContext:
        return self if cache_salt == self.cache_salt else replace(self, cache_salt=cache_salt)

    def root(self) -> bytes:
        text = "\0".join([self.model_fingerprint, self.kv_dtype, str(self.block_size), self.cache_salt, self.adapter])
        return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES, person=b"pdserve-kv").digest()


def chain(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The hash of a block (or of a partial last one) whose predecessor, or root, has the hash `parent`."""
    return hashlib.blake2b(array("I", token_ids).tobytes(), digest_size=DIGEST_BYTES, key=parent).digest()


def block_hashes(context: HashContext, token_ids: Sequence[int]) -> list[bytes]:
    """One hash for each full block of `token_ids`, in order."""
    return extend_hashes(context, token_ids, [])


def extend_hashes(context: HashContext, token_ids: Sequence[int], known: Sequence[bytes]) -> list[bytes]:
    """`known`, the hashes of the first blocks, and those of the full blocks after them."""
    hashes = list(known)
    for i in range(len(hashes), len(token_ids) // context.block_size):
        tokens = token_ids[i * context.block_size : (i + 1) * context.block_size]
        hashes.append(chain(hashes[-1] if hashes else context.root(), tokens))
    return hashes


def token_hash(context: HashContext, token_ids: Sequence[int]) -> bytes:
    """One hash over all of `token_ids`, the partial last block included."""
    hashes = block_hashes(context, token_ids)
    tail = token_ids[len(hashes) * context.block_size :]
    parent = hashes[-1] if hashes else context.root()
    return chain(parent, tail) if tail else parent
