"""Reads what the processes of a running cluster record, for some seconds from now on or back in time.

A process that does not answer is named in a warning and left out from then on; the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import grpc

from deploy.channel import open_channel
from deploy.trace.cluster_trace import Recording
from rpc import observe_pb2, observe_pb2_grpc
from security.channel_tls import ChannelTls

READ_TIMEOUT_S = 5.0
INTERVAL_S = 1.0  # between two readings; a buffer of 4096 steps holds many more seconds
MAX_READERS = 16


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    address: str  # of its gRPC server
    tls: ChannelTls | None = None
    metadata: tuple[tuple[str, str], ...] = ()


class Recorder:
    """Maintains what was read of each target so far. `find_targets` is asked again at the end, for those that came."""

    def __init__(
        self,
        find_targets: Callable[[], Sequence[Target]],
        warn: Callable[[str], None],
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        self._find_targets = find_targets
        self._warn = warn
        self._read_timeout_s = read_timeout_s
        self._recordings: dict[Target, Recording] = {}
        self._next: dict[Target, int] = {}  # the record to read next
        self._lost: set[Target] = set()

    def follow(self, seconds: float) -> list[Recording]:
        """What is recorded in the next `seconds`."""
        started_at = time.monotonic()
        targets = list(self._find_targets())
        self._read_all(targets, newest_s=0)
        is_over = False
        while not is_over:  # once at least, however long the first reading took
            left_s = started_at + seconds - time.monotonic()
            is_over = left_s <= INTERVAL_S
            time.sleep(max(0.0, min(left_s, INTERVAL_S)))
            self._read_all(targets)
        newcomers = [target for target in self._find_targets() if target not in targets]
        self._read_all(newcomers, newest_s=time.monotonic() - started_at)
        return list(self._recordings.values())

    def last(self, seconds: float) -> list[Recording]:
        """What was recorded in the last `seconds`, as far as it is still kept."""
        self._read_all(self._find_targets(), newest_s=seconds)
        return list(self._recordings.values())

    def _read_all(self, targets: Sequence[Target], newest_s: float | None = None) -> None:
        targets = [target for target in targets if target not in self._lost]
        with ThreadPoolExecutor(MAX_READERS) as readers:
            for target, answer in zip(
                targets, readers.map(lambda target: self._read(target, newest_s), targets), strict=True
            ):
                if isinstance(answer, str):
                    self._lost.add(target)
                    self._warn(f"{target.name} is left out: {answer}")
                else:
                    self._take(target, answer)

    def _read(self, target: Target, newest_s: float | None) -> list[observe_pb2.Records] | str:
        """The messages, or why there are none."""
        request = observe_pb2.ReadRequest(since=self._next.get(target, 0), newest_s=newest_s)
        try:
            with open_channel(target.address, target.tls) as channel:
                stub = observe_pb2_grpc.ObserveStub(channel)
                return list(stub.Read(request, timeout=self._read_timeout_s, metadata=target.metadata))
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return f"it did not answer within {self._read_timeout_s:g} s"
            return f"{error.code().name}: {error.details()}"

    def _take(self, target: Target, messages: Sequence[observe_pb2.Records]) -> None:
        source, records = messages[0].source, messages[1:]
        recording = self._recordings.get(target)
        if recording is None:
            recording = self._recordings[target] = Recording(source)
            if not source.capacity:
                self._warn(f"{target.name} records nothing: its buffer is set to 0")
        elif source.num_lost:
            self._warn(f"{target.name} records faster than it can be read: {source.num_lost} records are missing")
        recording.records += records
        self._next[target] = source.next
