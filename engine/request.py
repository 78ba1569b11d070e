"""A request as the engine sees it: its tokens, how far they are computed, and the blocks that hold their KV.

There is no prefill or decode phase here: a request has `token_ids` and `num_computed`, and each step it catches up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum

from engine.sampled_token import SampledToken


class RequestKind(Enum):
    """What the engine does with a request besides computing it."""

    GENERATE = "generate"  # computes what is missing, then generates to the end
    PREFILL = "prefill"  # computes the prompt, samples one token, then holds its blocks until released


class RequestState(Enum):
    WAITING = "waiting"  # holds no block; perhaps host memory, when it was swapped out
    RUNNING = "running"  # holds blocks; has tokens to compute
    RECEIVING = "receiving"  # holds blocks that a transfer fills: those beyond `num_computed` are private, never hashed
    HELD = "held"  # a prefill that is done and waits for its reader
    FINISHED = "finished"  # holds no block


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 leave every token in.

    `max_tokens` and `min_tokens` count the whole completion; `stop_token_ids` holds the end-of-text ids too, unless
    they are ignored. Presence and frequency penalties look at the completion, the repetition penalty at the prompt too.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    min_p: float = 0.0  # of the likeliest token's probability
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added to its logit)
    min_tokens: int = 0  # before these are generated no stop token is chosen
    num_logprobs: int | None = None  # likeliest tokens told with each one; 0: the chosen one's only; None: nothing
    grammar: str = ""  # llguidance's serialised form; the completion must match it


@dataclass(slots=True, eq=False, weakref_slot=True)
class Request:
    """Maintains `num_computed <= num_tokens` and a block for every computed token. Owned by the engine thread."""

    request_id: str
    token_ids: list[int]  # prompt, then what was generated
    num_prompt: int
    sampling: SamplingParams
    kind: RequestKind = RequestKind.GENERATE
    priority: int = 0  # lower is sooner
    cache_salt: str = ""
    first_index: int = 0  # generated tokens that came with the request, because it moved here
    awaits_kv: bool = False  # once it has its blocks it waits for KV from elsewhere; false for good when that is over
    arrived_at: float = 0.0  # seconds, the engine's clock
    admitted_at: float | None = None  # when it first got its blocks, the same clock
    state: RequestState = RequestState.WAITING
    num_computed: int = 0
    num_cached: int = 0  # of `num_computed`, found in the prefix cache when it was first admitted
    pinned: bool = False  # a peer leases it: never preempted
    blocks: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)  # of the full blocks of `token_ids`
    num_preemptions: int = 0
    swapped: list[int] = field(default_factory=list)  # host blocks that hold the KV of `num_computed` tokens
    held_token: SampledToken | None = None  # of a HELD request: what was sampled, for its reader

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_generated(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def num_uncomputed(self) -> int:
        return len(self.token_ids) - self.num_computed

    def finish_reason_at(self, token_id: int) -> FinishReason | None:
        """Why the request ends with `token_id`, already appended; None when it goes on."""
        sampling = self.sampling
        if token_id in sampling.stop_token_ids:
            return FinishReason.STOP
        if len(self.token_ids) - self.num_prompt >= sampling.max_tokens:
            return FinishReason.LENGTH
        return None
