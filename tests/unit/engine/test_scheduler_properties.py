"""Whatever arrives, under whatever settings: no step over its budget, no block lost, all end with the right text."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch import Batch, Work
from engine.engine import Engine
from engine.fake_runner import FakeRunner
from engine.request import Request, RequestKind, SamplingParams
from engine.sampled_token import SampledToken
from engine.scheduling import STRATEGIES
from tests.unit.engine.conftest import make_engine

CONTEXT = 4096
MAX_STEPS = 3000


@dataclass(frozen=True)
class Arrival:
    step: int
    num_prompt: int
    max_tokens: int
    priority: int
    kind: RequestKind
    receives: float | None  # this share of what it has not computed comes from elsewhere
    cancelled_after: int | None  # steps


arrivals = st.builds(
    Arrival,
    step=st.integers(0, 30),
    num_prompt=st.integers(1, 40),
    max_tokens=st.integers(1, 16),
    priority=st.sampled_from([-3, 0, 0, 0, 21]),
    kind=st.sampled_from([RequestKind.GENERATE, RequestKind.GENERATE, RequestKind.PREFILL]),
    receives=st.none() | st.sampled_from([0.0, 0.5, 1.0]),
    cancelled_after=st.none() | st.none() | st.integers(0, 20),
)
settings_of_engines = st.fixed_dictionaries(
    {
        "strategy": st.sampled_from(sorted(STRATEGIES)),
        "num_blocks": st.integers(14, 40),
        "max_num_seqs": st.integers(1, 5),
        "prefill_chunk_size": st.integers(1, 12),
        "max_num_partial_prefills": st.integers(1, 3),
        "long_prefill_token_threshold": st.integers(8, 64),
        "preemption": st.sampled_from(["auto", "swap", "recompute"]),
        "num_swap_blocks": st.integers(1, 20),
        "decode_headroom_blocks": st.integers(0, 1),
        "enable_prefix_caching": st.booleans(),
    }
)


@settings(max_examples=50, deadline=None)
@given(st.lists(arrivals, min_size=1, max_size=14), settings_of_engines, st.integers(12, 40))
def test_every_request_ends_with_its_own_text(
    plan: list[Arrival], fields: dict[str, object], small_budget: int
) -> None:
    whole = STRATEGIES[fields["strategy"]].whole_prompts  # type: ignore[index]
    budget = CONTEXT + 5 if whole else small_budget
    engine = make_engine(**fields, max_num_batched_tokens=budget)
    run = Run(engine, plan, budget)
    for step in range(MAX_STEPS):
        run.step(step)
        if run.is_over:
            break
    assert run.is_over, "somebody starves"
    run.check_texts()
    counts = engine.pool.counts()
    assert counts.free + counts.cached == engine.pool.num_blocks
    assert engine.scheduler.swapping.space.num_free == engine.scheduler.swapping.space.num_blocks


class Run:
    """Maintains the requests that a plan has brought in, and plays their peers."""

    def __init__(self, engine: Engine, plan: list[Arrival], budget: int) -> None:
        self.engine = engine
        self.budget = budget
        self.to_come = sorted(enumerate(plan), key=lambda item: item[1].step)
        self.requests: list[tuple[Request, Arrival]] = []
        self.aborted: set[str] = set()
        self.shares: dict[str, float | None] = {}
        self.received: set[str] = set()
        self.now = 0

    @property
    def is_over(self) -> bool:
        return not self.to_come and not self.engine.requests

    def step(self, now: int) -> None:
        self.now = now
        while self.to_come and self.to_come[0][1].step <= now:
            self._arrive(*self.to_come.pop(0))
        for request, arrival in self.requests:
            if arrival.cancelled_after == now - arrival.step and self.engine.abort(request.request_id):
                self.aborted.add(request.request_id)
        result = self.engine.step()
        assert result.num_tokens <= self.budget
        assert len(result.works) <= self.engine.config.scheduling.max_num_seqs
        self.engine.check_integrity()
        for reserved in result.reserved:
            self._receive(reserved)
        for output in result.tokens:
            held = self.engine.requests.get(output.request_id)
            if held is not None and held.kind is RequestKind.PREFILL:
                self.engine.abort(held.request_id)  # its reader has it
        self.engine.check_integrity()

    def _arrive(self, number: int, arrival: Arrival) -> None:
        prompt = [number % 5] * arrival.num_prompt  # some share prefixes
        request = Request(
            f"r{number}",
            prompt,
            len(prompt),
            SamplingParams(max_tokens=arrival.max_tokens),
            arrival.kind,
            arrival.priority,
            arrived_at=float(self.now),
            awaits_kv=arrival.receives is not None,
        )
        self.shares[request.request_id] = arrival.receives
        self.requests.append((request, arrival))
        self.engine.add(request)

    def _receive(self, request: Request) -> None:
        """KV comes from elsewhere, once: of the whole prompt with its first token, or of some whole blocks of it."""
        assert request.request_id not in self.received
        self.received.add(request.request_id)
        share = self.shares[request.request_id]
        assert share is not None
        if share == 1.0 and request.kind is RequestKind.GENERATE:
            self._write(request, request.num_tokens)
            self.engine.accept(request.request_id, SampledToken(FakeRunner.expected(request.token_ids, 1)[0]))
            return
        block_size = self.engine.config.block_size
        num_blocks = int(share * ((request.num_tokens - 1) // block_size - request.num_computed // block_size))
        num_tokens = request.num_computed + num_blocks * block_size
        self._write(request, num_tokens)
        self.engine.accept_prefix(request.request_id, num_tokens)

    def _write(self, request: Request, num_tokens: int) -> None:
        if num_tokens > request.num_computed:
            missing = num_tokens - request.num_computed
            self.engine.runner.run(Batch((Work(request, request.num_computed, missing, sample=False),)))

    def check_texts(self) -> None:
        for request, arrival in self.requests:
            if request.request_id in self.aborted:
                continue
            prompt = request.token_ids[: arrival.num_prompt]
            n = 1 if arrival.kind is RequestKind.PREFILL else arrival.max_tokens
            assert request.token_ids[arrival.num_prompt :] == FakeRunner.expected(prompt, n)
