"""What one choice of a request asks of the workers, in tokens, and the two messages that start an attempt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from proxy.request.kv_mode import KvMode
from proxy.request.priority import NORMAL, Priority
from rpc import worker_pb2


@dataclass(frozen=True, slots=True)
class Job:
    request_id: str  # the client's label
    wire_id: str  # unique, also when a client uses a label again
    session: bytes  # 16 random bytes
    prompt_ids: tuple[int, ...]
    sampling: worker_pb2.SamplingParams
    admitted_at: float  # the loop's clock
    timeout_s: float  # from `admitted_at` to the deadline
    priority: Priority = NORMAL
    cache_salt: str = ""  # requests with different ones share no cached prefix
    kv_mode: KvMode = KvMode.P2P
    keeps_kv_mode: bool = False  # the client asked for it: cost is no reason for another one
    writes_back: bool = False  # the KV of prompt and completion goes to the pool at the end
    choice: int = 0  # of the answer, counted from 0
    is_first_of_prompt: bool = True  # other choices of the same prompt do not count it again
    tenant: str = ""
    traceparent: str = ""  # of the request's span; empty: it is not traced
    max_running: int | None = None  # choices of the tenant that workers have at once

    @property
    def num_queued_tokens(self) -> int:
        """What waits with it."""
        return len(self.prompt_ids) if self.is_first_of_prompt else 0

    @property
    def deadline_at(self) -> float:
        return self.admitted_at + self.timeout_s

    def request(self, accepted: Sequence[int], now: float) -> worker_pb2.TokenRequest:
        """`accepted`: the tokens of the completion that count already."""
        return worker_pb2.TokenRequest(
            request_id=self.wire_id,
            prompt_ids=self.prompt_ids,
            output_ids=accepted,
            sampling=self.sampling,
            timeout_s=max(0.0, self.deadline_at - now),
            priority=self.priority.rank,
            cache_salt=self.cache_salt,
            traceparent=self.traceparent,
        )

    def pool_use(self, nodes: Sequence[worker_pb2.PoolMember]) -> worker_pb2.PoolUse:
        return worker_pb2.PoolUse(members=nodes, reads=self.kv_mode is KvMode.POOLED, writes_back=self.writes_back)

    def ticket(self, attempt: int) -> worker_pb2.Ticket:
        return worker_pb2.Ticket(session=self.session, attempt=attempt)
