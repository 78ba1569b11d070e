"""What a proxy process does while a drill runs: its memory, and how long its health takes to answer."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from types import TracebackType

import httpx
import psutil

EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Sample:
    at: float
    rss_bytes: int
    health_s: float


@dataclass(slots=True)
class Watch:
    """Maintains its samples, from a thread, inside the `with` block."""

    http: str
    pid: int
    samples: list[Sample] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Watch:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        assert self._thread is not None
        self._thread.join(60)

    @property
    def slowest_health_s(self) -> float:
        return max(sample.health_s for sample in self.samples)

    @property
    def growth_after_a_quarter(self) -> float:
        """The most memory after the first quarter of the time, over the most within it."""
        first, last = self.samples[0].at, self.samples[-1].at
        border = first + (last - first) / 4
        early = max(sample.rss_bytes for sample in self.samples if sample.at <= border)
        return max(sample.rss_bytes for sample in self.samples if sample.at >= border) / early - 1

    @property
    def most_bytes(self) -> int:
        return max(sample.rss_bytes for sample in self.samples)

    @property
    def last_bytes(self) -> int:
        return self.samples[-1].rss_bytes

    def _run(self) -> None:
        process = psutil.Process(self.pid)
        with httpx.Client(timeout=30) as client:
            while not self._ended.wait(EVERY_S):
                began_at = time.monotonic()
                assert client.get(f"{self.http}/health").status_code == 200
                now = time.monotonic()
                self.samples.append(Sample(now, process.memory_info().rss, now - began_at))
