"""Where spans go. A process that is not traced has no tracer, and imports nothing of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from telemetry.config import TracingConfig
from telemetry.stage import Stage, Value


class RequestSpan(Protocol):
    """Of one request, from its admission to its end."""

    @property
    def trace_id(self) -> str | None:
        """As a log line names it; None when the request is not sampled."""
        ...

    @property
    def traceparent(self) -> str:
        """That its stages, here and on workers, belong to; empty when the request is not sampled."""
        ...

    def end(self, attributes: Mapping[str, Value], error: str | None) -> None:
        """Once."""
        ...


class Tracer(Protocol):
    """Never blocks and never raises: what a collector does not take is dropped. Any thread may call it."""

    def begin(self, traceparent: str) -> RequestSpan:
        """`traceparent`: the client's; one that is empty or not W3C's begins a new trace."""
        ...

    def record(self, traceparent: str, stages: Sequence[Stage]) -> None:
        """Stages of the request with that span; nothing where `traceparent` is empty."""
        ...

    def close(self) -> None:
        """Sends what is left, within some seconds."""
        ...


def open_tracer(config: TracingConfig, service: str, instance: str) -> Tracer | None:
    """`service` and `instance` are told with each span. None without an endpoint."""
    if config.endpoint is None:
        return None
    from telemetry.otlp_tracer import OtlpTracer

    return OtlpTracer.open(config.endpoint, config.sample_ratio, service, instance)
