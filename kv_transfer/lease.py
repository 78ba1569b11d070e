"""P's side of all sessions: who may read which blocks and until when, and the verdict on what was read.

Pure and synchronous, time is an argument; it belongs to the engine thread, where blocks are allocated, so a verdict and
a new allocation can never cross.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.batch import Work
from engine.engine import Engine
from engine.request import Request, RequestState
from kv_transfer.block_part import layer_ends
from kv_transfer.config import TransferConfig
from kv_transfer.messages import BlockRef, FailureReason, HandoffError, SessionEnded, Ticket, Verdict
from kv_transfer.session import Listener, Prompt, Session
from kv_transfer.transfer_record import LeaseRecord

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseCounts:
    active: int  # sessions that a peer has opened
    num_expired: int  # since the start, as the next one
    num_stale: int


@dataclass(frozen=True, slots=True)
class Tombstone:
    """How an attempt ended. Every later message about it, or about a lower one, is answered from here."""

    attempt: int
    committed: int | None  # hash of the blocks that a Valid was said of
    until: float


class LeaseTable:
    """Maintains one live session at most for each session id.

    `on_awake` hears whether a peer may be reading: true from the first Open on; false again only `in_doubt_s` after
    a lease that ended without a Valid, so that late reads get to their end too. `on_ended` hears of each lease's end.
    """

    def __init__(
        self,
        engine: Engine,
        config: TransferConfig,
        on_awake: Callable[[bool], None],
        on_ended: Callable[[LeaseRecord], None] = lambda lease: None,
    ) -> None:
        self._engine = engine
        self._config = config
        self._on_awake = on_awake
        self._on_ended = on_ended
        self._sessions: dict[bytes, Session] = {}
        self._tombstones: OrderedDict[bytes, Tombstone] = OrderedDict()  # oldest first
        self._forgot_early = False
        self._awake = False
        self._awake_until = -math.inf
        self._num_expired = 0
        self._num_stale = 0

    def counts(self) -> LeaseCounts:
        """May be called from any thread."""
        active = sum(1 for session in list(self._sessions.values()) if session.opened)
        return LeaseCounts(active, self._num_expired, self._num_stale)

    def prefill(self, request: Request, ticket: Ticket, now: float) -> None:
        """Queues the prompt. Raises HandoffError when the attempt has ended already, and whatever `Engine.add` does."""
        session = self._live(ticket, now)
        if session is None:
            raise HandoffError(FailureReason.GONE, f"session {ticket} has ended")
        if session.prompt is not None:
            return  # told twice
        try:
            prompt = Prompt.of(request, self._engine)
            self._engine.add(request)
        except Exception as error:
            self._end(session, FailureReason.PREFILL_FAILED, str(error), now)
            raise
        session.start(prompt)
        if session.opened:
            self._start_lease(session, prompt, now)

    def open(self, ticket: Ticket, have_tokens: int, listener: Listener, now: float) -> None:
        """Starts the lease, or resumes it with a new listener, which is told the whole state and then what is new."""
        session = self._live(ticket, now)
        if session is None:
            listener(SessionEnded(FailureReason.GONE, f"session {ticket} has ended"))
            return
        session.listen(listener, have_tokens, now)
        if session.prompt is None:
            session.shorten(now + self._config.open_timeout_s)
        else:
            self._start_lease(session, session.prompt, now)
        self._update_awake(now)

    def renew(self, tickets: Sequence[Ticket], now: float) -> list[bool]:
        """Whether each is still leased, which for those that are is so for another `lease_s`."""
        return [self._renew(ticket, now) for ticket in tickets]

    def commit(self, ticket: Ticket, blocks: Sequence[BlockRef], now: float) -> Verdict:
        """Valid if these are all the blocks announced, and each still is what it was. Either way the lease is over."""
        session = self._sessions.get(ticket.session)
        if session is None or session.ticket != ticket:
            return self._remembered(ticket, blocks)
        complete = session.done_sent and list(blocks) == session.announced
        if complete and now < session.expires_at and session.holds_what_it_announced():
            self._end(session, FailureReason.GONE, "committed", now, committed=hash(tuple(blocks)))
            return Verdict.VALID
        self._end(session, FailureReason.STALE, "what was read is not what is held", now)
        return self._stale()

    def close(self, ticket: Ticket, now: float) -> None:
        """D wants this attempt no longer. Idempotent; also for one that was never opened or told."""
        self._end_attempt(ticket, FailureReason.GONE, "closed by its reader", now)

    def abort(self, ticket: Ticket, now: float) -> None:
        """The proxy wants this attempt, and lower ones, no longer: whatever comes later about them is Gone."""
        self._end_attempt(ticket, FailureReason.ABORTED, "aborted", now)

    @property
    def layer_ends(self) -> tuple[int, ...]:
        """The numbers of layers after which `layers_written` is to be called."""
        return layer_ends(self._engine.cache.layout.num_layers, self._config.layer_ranges)

    def layers_written(self, works: Sequence[Work], num_layers: int, now: float) -> None:
        """The step that runs has written these works' KV in so many layers; with 0, it begins anew."""
        starts = {work.request: work.start for work in works if work.sample}
        for session in list(self._sessions.values()):
            if session.prompt is None or session.prompt.request not in starts:
                continue
            if num_layers == 0 and session.layers_sent:  # they are written again, perhaps rounded otherwise
                self._end(session, FailureReason.PREFILL_FAILED, "the step was computed again", now)
                continue
            session.write_layers(starts[session.prompt.request], num_layers)
            session.announce()

    def advance(self, now: float) -> None:
        """After each step and tick: announces what is new, and ends what has ended or run out."""
        for session in list(self._sessions.values()):
            self._advance(session, now)
        while self._tombstones and next(iter(self._tombstones.values())).until <= now:
            self._tombstones.popitem(last=False)
        self._update_awake(now)

    def _advance(self, session: Session, now: float) -> None:
        if session.state is RequestState.FINISHED:  # the step failed, or the request was aborted elsewhere
            self._end(session, FailureReason.PREFILL_FAILED, "the engine ended the prefill", now)
            return
        session.forget_layers()
        session.announce()
        if not session.opened and session.state is RequestState.HELD:
            session.shorten(now + self._config.open_timeout_s)
        elif not session.opened:
            session.extend(math.inf)
        if session.expires_at <= now:
            self._num_expired += 1
            self._end(session, FailureReason.LEASE_EXPIRED, self._why_expired(session), now)

    @staticmethod
    def _why_expired(session: Session) -> str:
        if not session.opened:
            return "the prefill was not opened within open_timeout_s"
        if session.prompt is None:
            return "no prefill followed the open within open_timeout_s"
        return "the lease was not renewed within lease_s"

    def _live(self, ticket: Ticket, now: float) -> Session | None:
        """The session of exactly this attempt, a new one if need be; None when it, or a higher one, was before."""
        session = self._sessions.get(ticket.session)
        if session is not None and session.ticket == ticket:
            return session
        tombstone = self._tombstones.get(ticket.session)
        if tombstone is not None and ticket.attempt <= tombstone.attempt:
            return None
        if session is not None:
            if ticket.attempt < session.ticket.attempt:
                return None
            self._end(session, FailureReason.SUPERSEDED, f"attempt {ticket.attempt} took its place", now)
        layout = self._engine.cache.layout
        session = Session(ticket, self._engine.pool, layout.block_size, layout.num_layers)
        self._sessions[ticket.session] = session
        return session

    def _start_lease(self, session: Session, prompt: Prompt, now: float) -> None:
        if prompt.request.state is RequestState.FINISHED:
            self._end(session, FailureReason.PREFILL_FAILED, "the engine ended the prefill", now)
        elif session.have_tokens % session.block_size or session.have_tokens > prompt.num_tokens:
            detail = f"have_tokens is {session.have_tokens}: no number of whole blocks of {prompt.num_tokens} tokens"
            self._end(session, FailureReason.MISMATCH, detail, now)
        else:
            self._engine.pin(prompt.request.request_id)
            session.extend(now + self._config.lease_s)
            session.announce()

    def _renew(self, ticket: Ticket, now: float) -> bool:
        session = self._sessions.get(ticket.session)
        if session is None or session.ticket != ticket or not session.opened or session.expires_at <= now:
            return False
        if session.prompt is not None:  # else it waits for its Prefill, and no longer than it may
            session.extend(now + self._config.lease_s)
        return True

    def _remembered(self, ticket: Ticket, blocks: Sequence[BlockRef]) -> Verdict:
        tombstone = self._tombstones.get(ticket.session)
        same_attempt = tombstone is not None and tombstone.attempt == ticket.attempt
        if tombstone is not None and same_attempt and tombstone.committed == hash(tuple(blocks)):
            return Verdict.VALID
        return self._stale()

    def _stale(self) -> Verdict:
        self._num_stale += 1
        return Verdict.STALE

    def _end_attempt(self, ticket: Ticket, reason: FailureReason, detail: str, now: float) -> None:
        session = self._live(ticket, now)
        if session is not None:
            self._end(session, reason, detail, now)

    def _end(
        self, session: Session, reason: FailureReason, detail: str, now: float, committed: int | None = None
    ) -> None:
        """The one way out: leases, request and listener go, a tombstone stays."""
        del self._sessions[session.ticket.session]
        self._bury(session.ticket, committed, now)
        if session.opened_at is not None:
            request_id = session.prompt.request.request_id if session.prompt is not None else None
            failure = reason if committed is None else None
            self._on_ended(LeaseRecord(request_id, session.ticket, session.opened_at, now, failure))
        session.let_go()
        if session.prompt is not None:
            request = session.prompt.request
            if self._engine.requests.get(request.request_id) is request:
                self._engine.abort(request.request_id)
        if session.listener is not None:
            if committed is None:
                self._awake_until = now + max(self._config.lease_s, self._config.in_doubt_s)
            session.listener(SessionEnded(reason, detail))

    def _bury(self, ticket: Ticket, committed: int | None, now: float) -> None:
        self._tombstones.pop(ticket.session, None)
        self._tombstones[ticket.session] = Tombstone(ticket.attempt, committed, now + self._config.tombstone_s)
        if len(self._tombstones) <= self._config.max_tombstones:
            return
        _, oldest = self._tombstones.popitem(last=False)
        if oldest.until > now and not self._forgot_early:
            self._forgot_early = True
            logger.warning(
                "more than max_tombstones (%d) sessions ended within tombstone_s (%g): the oldest are forgotten",
                self._config.max_tombstones,
                self._config.tombstone_s,
            )

    def _update_awake(self, now: float) -> None:
        awake = now < self._awake_until or any(session.opened for session in self._sessions.values())
        if awake != self._awake:
            self._awake = awake
            self._on_awake(awake)
