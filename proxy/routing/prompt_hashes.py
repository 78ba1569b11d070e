"""The block hashes of prompts, as the workers compute them: what a prompt is looked up by in the prefix index."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

from engine.block_hash import HashContext, block_hashes
from proxy.request.job import Job

MAX_PROMPTS = 256  # the first of each lane is asked for again and again while it waits
SESSION_TOKENS = 1024


class PromptHashes:
    """Maintains the hashes of the prompts that were asked for last."""

    def __init__(self, max_prompts: int = MAX_PROMPTS) -> None:
        self._max_prompts = max_prompts
        self._known: OrderedDict[tuple[str, HashContext], list[bytes]] = OrderedDict()

    def of(self, job: Job, context: HashContext) -> list[bytes]:
        """Of the full blocks that a worker can find in its cache: it computes one token at least."""
        key = (job.wire_id, context)
        hashes = self._known.get(key)
        if hashes is None:
            hashes = block_hashes(context.with_salt(job.cache_salt), job.prompt_ids[:-1])
            self._known[key] = hashes
            if len(self._known) > self._max_prompts:
                self._known.popitem(last=False)
        return hashes


def session_of(prompt_ids: Sequence[int]) -> bytes:
    """The same for all turns of a conversation, once its first turn is so long; and for others that begin alike."""
    return hashlib.blake2b(array("I", prompt_ids[:SESSION_TOKENS]).tobytes(), digest_size=16).digest()
