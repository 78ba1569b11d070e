"""Messages late, twice and in any order, readers that read at any time: what is called Valid was read right."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.errors import EngineError
from engine.request import RequestKind
from kv_transfer.config import TransferConfig
from kv_transfer.lease import LeaseTable
from kv_transfer.messages import (
    BlockRef,
    ChunkReady,
    HandoffError,
    PrefillDone,
    SessionEvent,
    Ticket,
    Verdict,
)
from tests.unit.kv_transfer.pair import BLOCK_SIZE, make_engine, make_request

CONFIG = TransferConfig()
NUM_BLOCKS = 9  # two prompts at most, so blocks are reused all the time
LENGTHS = (13, 16, 10)  # of the prompt of each session
SESSIONS = st.integers(0, len(LENGTHS) - 1)
ATTEMPTS = st.sampled_from([1, 1, 1, 2, 3])
READERS = st.integers(0, 8)  # one of those there are


@dataclass(slots=True)
class Reader:
    """What one D has heard in its last stream, what it read of it, and what it was told about it."""

    have_tokens: int
    events: list[SessionEvent] = field(default_factory=list)
    read: dict[BlockRef, list[float]] = field(default_factory=dict)
    verdicts: dict[tuple[BlockRef, ...], Verdict] = field(default_factory=dict)

    def refs(self) -> tuple[BlockRef, ...]:
        chunks = [event.tail if isinstance(event, PrefillDone) else event for event in self.events]
        return tuple(ref for chunk in chunks if isinstance(chunk, ChunkReady) for ref in chunk.blocks)

    def is_done(self) -> bool:
        return any(isinstance(event, PrefillDone) for event in self.events)

    def tokens(self) -> list[float]:
        """What the blocks said when they were read, side by side."""
        return [token for ref in self.refs() for token in self.read[ref]]


class LeaseMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.engine = make_engine(num_blocks=NUM_BLOCKS, prefill_chunk_size=6)
        self.table = LeaseTable(self.engine, CONFIG, lambda _: None)
        self.readers: dict[Ticket, Reader] = {}
        self.now = 0.0
        self.num_prefills = 0

    @rule(session=SESSIONS, num_blocks=st.integers(0, 2), prefill_first=st.booleans(), n=st.integers(0, 3))
    def start(self, session: int, num_blocks: int, prefill_first: bool, n: int) -> None:
        """As it should be: the next attempt, told to both at once."""
        attempt = 1 + max((t.attempt for t in self.readers if t.session[0] == session), default=0)
        if prefill_first:
            self.prefill(session, attempt)
        self.open(session, attempt, num_blocks)
        if not prefill_first:
            self.prefill(session, attempt)
        self.step(n)
        self._read(self.readers[ticket_of(session, attempt)])

    @rule(session=SESSIONS, attempt=ATTEMPTS)
    def prefill(self, session: int, attempt: int) -> None:
        self.num_prefills += 1
        request = make_request(f"r{self.num_prefills}", prompt_of(session, attempt), RequestKind.PREFILL)
        try:
            self.table.prefill(request, ticket_of(session, attempt), self.now)
        except HandoffError:
            assert request.request_id not in self.engine.requests

    @rule(session=SESSIONS, attempt=ATTEMPTS, num_blocks=st.integers(0, 2))
    def open(self, session: int, attempt: int, num_blocks: int) -> None:
        ticket = ticket_of(session, attempt)
        reader = self.readers.setdefault(ticket, Reader(num_blocks * BLOCK_SIZE))
        reader.events = []
        self.table.open(ticket, reader.have_tokens, reader.events.append, self.now)

    @rule(n=st.sampled_from([1, 1, 2, 8]))
    def step(self, n: int) -> None:
        for _ in range(n):
            result = self.engine.step()
            assert not result.failed
            self.table.advance(self.now)

    @precondition(lambda self: self.readers)
    @rule(number=READERS)
    def read(self, number: int) -> None:
        self._read(self._reader(number)[1])

    @precondition(lambda self: any(reader.is_done() for reader in self.readers.values()))
    @rule(number=READERS)
    def commit(self, number: int) -> None:
        done = [item for item in self.readers.items() if item[1].is_done()]
        self._commit(*done[number % len(done)])

    @precondition(lambda self: self.readers)
    @rule(number=READERS)
    def commit_perhaps_too_early(self, number: int) -> None:
        self._commit(*self._reader(number))

    @precondition(lambda self: any(reader.verdicts for reader in self.readers.values()))
    @rule(number=READERS)
    def commit_again(self, number: int) -> None:
        ticket, reader = self._reader(number)
        for refs, verdict in reader.verdicts.items():
            assert self.table.commit(ticket, refs, self.now) in (verdict, Verdict.STALE)

    @precondition(lambda self: self.readers)
    @rule(number=READERS)
    def renew(self, number: int) -> None:
        self.table.renew([self._reader(number)[0]], self.now)

    @rule(session=SESSIONS, attempt=ATTEMPTS, end=st.sampled_from(["close", "abort"]))
    def end(self, session: int, attempt: int, end: str) -> None:
        {"close": self.table.close, "abort": self.table.abort}[end](ticket_of(session, attempt), self.now)

    @rule(session=SESSIONS)
    def recompute_elsewhere(self, session: int) -> None:
        """Other work of the same engine takes blocks."""
        self.num_prefills += 1
        try:
            self.engine.add(make_request(f"r{self.num_prefills}", [100 + session] * 8, RequestKind.GENERATE))
        except EngineError:
            return

    @precondition(lambda self: self.engine.requests)
    @rule(number=READERS)
    def end_a_request_behind_its_back(self, number: int) -> None:
        requests = list(self.engine.requests)
        self.engine.abort(requests[number % len(requests)])

    @rule(seconds=st.sampled_from([0.5, 2.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.table.advance(self.now)

    @invariant()
    def books_add_up(self) -> None:
        self.engine.check_integrity()

    def teardown(self) -> None:
        """With no more messages the timer alone frees everything."""
        for _ in range(200):
            self.engine.step()
            self.now += 1.0
            self.table.advance(self.now)
        counts = self.engine.pool.counts()
        assert (counts.used, counts.leased) == (0, 0)
        assert not self.engine.requests
        assert self.table.counts().active == 0

    def _commit(self, ticket: Ticket, reader: Reader) -> None:
        self._read(reader)
        refs, tokens = reader.refs(), reader.tokens()
        verdict = self.table.commit(ticket, refs, self.now)
        if verdict is Verdict.VALID:
            wanted = [float(token) for token in prompt_of(ticket.session[0], ticket.attempt)[reader.have_tokens :]]
            assert reader.is_done()
            assert tokens[: len(wanted)] == wanted
        assert reader.verdicts.setdefault(refs, verdict) in (verdict, Verdict.VALID)

    def _reader(self, number: int) -> tuple[Ticket, Reader]:
        return list(self.readers.items())[number % len(self.readers)]

    def _read(self, reader: Reader) -> None:
        """Each block once, at whatever moment this is."""
        for ref in reader.refs():
            if ref not in reader.read:
                reader.read[ref] = self.engine.cache.tensor[ref.block, 0, 0, 0, :, 0].tolist()


def ticket_of(session: int, attempt: int) -> Ticket:
    return Ticket(bytes([session] * 16), attempt)


def prompt_of(session: int, attempt: int) -> list[int]:
    """Two sessions share a prefix. Attempts differ, so that a block never holds the right tokens by chance."""
    first = 20 * (session % 2)
    rest = random.Random(f"{session}/{attempt}").sample(range(100, 256), LENGTHS[session] - 4)
    return [*range(first, first + 4), *rest]


LeaseMachine.TestCase.settings = settings(
    max_examples=30, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestLeaseMachine = LeaseMachine.TestCase
