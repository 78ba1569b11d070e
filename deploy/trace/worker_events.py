"""One worker's records as slices: its steps, and a lane for each request, in which it waits, computes and receives.

Records may come in several messages, in the order they were made; `finish` draws what is known by then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from deploy.trace.trace import Process, Slice, Trace, Value
from rpc import observe_pb2, worker_pb2

ROLES = {worker_pb2.ROLE_PREFILL: "prefill", worker_pb2.ROLE_DECODE: "decode", worker_pb2.ROLE_MIXED: "mixed"}


@dataclass(frozen=True, slots=True)
class Piece:
    """One thing that a request did, from `start` to `end`; a mark when they are equal."""

    kind: str  # wait | prefill | decode | handoff | preempted | ended
    name: str
    start: float
    end: float
    args: dict[str, Value]
    stages: Sequence[tuple[str, float]] = ()  # of a hand-off: names and seconds


@dataclass(slots=True)
class RequestPieces:
    """Maintains what one attempt at one request did here, and since when it waits."""

    pieces: list[Piece] = field(default_factory=list)
    waits_since: float | None = None
    waits_why: str = "waits"
    admitted: bool = False


class WorkerEvents:
    """Maintains the requests seen so far. Times of records are turned into Unix seconds on the way in."""

    def __init__(self, trace: Trace, source: observe_pb2.Source) -> None:
        self.source = source
        self.process: Process = trace.process(f"{source.name} ({ROLES[source.role]})", ROLES[source.role])
        self.last_chunks: dict[str, Slice] = {}  # by attempt: the newest prompt chunk computed here
        self.received: list[tuple[str, str, Slice]] = []  # attempt, P's incarnation, the hand-off
        self._steps = self.process.thread("steps")
        self._num_steps = 0
        self._requests: dict[str, RequestPieces] = {}
        self._leases: list[tuple[float, float, str, dict[str, Value]]] = []
        self._reads: list[tuple[float, float, str]] = []

    def add(self, records: observe_pb2.Records) -> None:
        ids = records.request_ids
        for step in records.steps:
            self._add_step(step, ids)
        for handoff in records.handoffs:
            self._add_handoff(handoff, ids[handoff.request])
        for lease in records.leases:
            request_id = ids[lease.request] if lease.HasField("request") else ""
            name = f"lease {label_of(request_id)}" if request_id else "lease without a prompt"
            ending: dict[str, Value] = {"request": key_of(request_id), "ended": lease.failure or "committed"}
            self._leases.append((self._unix(lease.opened_at), self._unix(lease.ended_at), name, ending))

    def finish(self) -> None:
        """Draws the requests, each in the first lane that is free, then leases and reads."""
        lanes = self.process.lanes("requests")
        drawn = [(request_id, _apart(one.pieces)) for request_id, one in self._requests.items() if one.pieces]
        for request_id, pieces in sorted(drawn, key=lambda one: one[1][0].start):
            self._draw(request_id, pieces, lanes.take(pieces[0].start, max(piece.end for piece in pieces)))
        lanes = self.process.lanes("leases")
        for start, end, name, args in sorted(self._leases, key=lambda lease: lease[0]):
            self.process.slice(lanes.take(start, end), name, "lease", start, end, args)
        lanes = self.process.lanes("reads")
        for start, end, request_id in sorted(self._reads):
            name = f"read {label_of(request_id)}"
            self.process.slice(lanes.take(start, end), name, "read", start, end, {"request": key_of(request_id)})

    def _add_step(self, step: observe_pb2.Step, ids: Sequence[str]) -> None:
        start = self._unix(step.started_at)
        end = start + step.duration_s
        for admission in step.admissions:
            self._admit(ids[admission.request], admission, start)
        for places, why in ((step.swapped_out, "swapped out"), (step.dropped, "to be computed again")):
            for place in places:
                self._preempt(ids[place], why, start)
        for chunk in step.chunks:
            self._work(ids[chunk.request], "prefill", f"prefill {chunk.num_tokens}", start, end, start=chunk.start)
        for place in step.decodes:
            self._work(ids[place], "decode", "decode", start, end)
        for ending in step.endings:
            mark = Piece("ended", ending.reason, end, end, {"reason": ending.reason})
            self._request(ids[ending.request]).pieces.append(mark)
        self._draw_step(step, start, end)

    def _draw_step(self, step: observe_pb2.Step, start: float, end: float) -> None:
        prefill, decode = sum(chunk.num_tokens for chunk in step.chunks), len(step.decodes)
        parts = [f"{name} {count}" for name, count in (("prefill", prefill), ("decode", decode)) if count]
        if parts:
            args: dict[str, Value] = {"step": self._num_steps, "prefill_tokens": prefill, "decode_tokens": decode}
            if step.num_blocks_swapped_out or step.num_blocks_swapped_in:
                args["blocks_swapped_out"], args["blocks_swapped_in"] = (
                    step.num_blocks_swapped_out,
                    step.num_blocks_swapped_in,
                )
            self.process.slice(self._steps, ", ".join(parts), "step", start, end, args)
            self._num_steps += 1
        self.process.counter("requests", end, {"running": step.num_running, "waiting": step.num_waiting})
        blocks = {
            "leased": step.num_blocks_leased,
            "used": step.num_blocks_used,
            "cached": step.num_blocks_cached,
            "free": step.num_blocks_free,
        }
        self.process.counter("KV blocks", end, blocks)

    def _admit(self, request_id: str, admission: observe_pb2.Admission, at: float) -> None:
        request = self._request(request_id)
        if request.admitted:
            return
        request.admitted = True
        request.waits_since = self._unix(admission.arrived_at)
        self._end_wait(request, at, prompt_tokens=admission.num_prompt, cached_tokens=admission.num_cached)

    def _preempt(self, request_id: str, why: str, at: float) -> None:
        request = self._request(request_id)
        request.pieces.append(Piece("preempted", f"preempted, {why}", at, at, {"how": why}))
        request.waits_since, request.waits_why = at, f"preempted, {why}"

    def _work(self, request_id: str, kind: str, name: str, at: float, until: float, **args: Value) -> None:
        request = self._request(request_id)
        self._end_wait(request, at)
        request.pieces.append(Piece(kind, name, at, until, {"step": self._num_steps, **args}))

    def _add_handoff(self, handoff: observe_pb2.Handoff, request_id: str) -> None:
        start, end = self._unix(handoff.started_at), self._unix(handoff.ended_at)
        args: dict[str, Value] = {"from": handoff.source}
        if handoff.failure:
            args["failure"] = handoff.failure
        else:
            args |= {"bytes": handoff.num_bytes, "tokens": handoff.num_tokens, "transport": handoff.transport}
        stages = [(stage.name, stage.duration_s) for stage in handoff.stages]
        name = f"hand-off failed: {handoff.failure}" if handoff.failure else "hand-off"
        self._request(request_id).pieces.append(Piece("handoff", name, start, end, args, stages))
        self._reads += [(self._unix(read.started_at), self._unix(read.ended_at), request_id) for read in handoff.reads]

    def _end_wait(self, request: RequestPieces, at: float, **args: Value) -> None:
        if request.waits_since is not None and request.waits_since < at:
            request.pieces.append(Piece("wait", request.waits_why, request.waits_since, at, args))
        request.waits_since = None

    def _draw(self, request_id: str, pieces: Sequence[Piece], tid: int) -> None:
        key, label, attempt = key_of(request_id), label_of(request_id), attempt_of(request_id)
        for piece in pieces:
            name, args = f"{label} {piece.name}", {"request": key, **piece.args}
            if piece.kind in ("preempted", "ended"):
                self.process.mark(tid, name, piece.kind, piece.start, args)
                continue
            drawn = self.process.slice(tid, name, piece.kind, piece.start, piece.end, args)
            if piece.kind == "prefill":
                self.last_chunks[attempt] = drawn
            elif piece.kind == "handoff":
                self._draw_stages(piece, tid)
                if "failure" not in piece.args:
                    self.received.append((attempt, str(piece.args["from"]), drawn))

    def _draw_stages(self, handoff: Piece, tid: int) -> None:
        at = handoff.start
        for name, seconds in handoff.stages:
            until = min(at + seconds, handoff.end)
            self.process.slice(tid, name, "stage", at, until)
            at = until

    def _request(self, request_id: str) -> RequestPieces:
        return self._requests.setdefault(request_id, RequestPieces())

    def _unix(self, at: float) -> float:
        return self.source.unix_at_zero + at


def _apart(pieces: Sequence[Piece]) -> list[Piece]:
    """In order, and none beyond the start of the next: two threads do not note the same moment at the same time."""
    ordered = sorted(pieces, key=lambda piece: piece.start)
    starts = [piece.start for piece in ordered[1:]] + [math.inf]
    return [replace(piece, end=min(piece.end, start)) for piece, start in zip(ordered, starts, strict=True)]


def attempt_of(engine_id: str) -> str:
    """The same on both sides of a hand-off: `ID.RANDOM#ATTEMPT` of an engine's `ID.RANDOM#ATTEMPT.NUMBER`."""
    head, separator, tail = engine_id.rpartition("#")
    return f"{head}#{tail.partition('.')[0]}" if separator else engine_id


def key_of(engine_id: str) -> str:
    """The same for all attempts at one request: the proxy's `ID.RANDOM`."""
    head, separator, _ = engine_id.rpartition("#")
    return head if separator else engine_id


def label_of(engine_id: str) -> str:
    """What the client called the request."""
    key = key_of(engine_id)
    return key.rpartition(".")[0] or key
