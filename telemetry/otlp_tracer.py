"""Spans by OpenTelemetry's SDK, in a format that every collector reads.

A thread of the SDK's own sends them in batches; its queue is bounded, and what finds it full is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, format_trace_id
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from telemetry.stage import Stage, Value

EXPORT_TIMEOUT_S = 2.0  # of one try to send a batch: a collector that is away must not hold up a process that ends
HEADER = "traceparent"
PROPAGATOR = TraceContextTextMapPropagator()


class OtlpRequestSpan:
    """Maintains one open span."""

    def __init__(self, span: Span) -> None:
        self._span = span

    @property
    def trace_id(self) -> str | None:
        return format_trace_id(self._span.get_span_context().trace_id) if self._span.is_recording() else None

    @property
    def traceparent(self) -> str:
        if not self._span.is_recording():
            return ""
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def end(self, attributes: Mapping[str, Value], error: str | None) -> None:
        self._span.set_attributes(dict(attributes))
        if error is not None:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end()


class OtlpTracer:
    """Maintains the SDK's provider."""

    def __init__(self, processor: SpanProcessor, sample_ratio: float, service: str, instance: str) -> None:
        resource = Resource.create({"service.name": service, "service.instance.id": instance})
        sampler = ParentBased(TraceIdRatioBased(sample_ratio))
        self._provider = TracerProvider(sampler, resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("pdserve")

    @classmethod
    def open(cls, endpoint: str, sample_ratio: float, service: str, instance: str) -> OtlpTracer:
        exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_TIMEOUT_S)
        return cls(BatchSpanProcessor(exporter), sample_ratio, service, instance)

    def begin(self, traceparent: str) -> OtlpRequestSpan:
        return OtlpRequestSpan(self._tracer.start_span("proxy.request", _context(traceparent), SpanKind.SERVER))

    def record(self, traceparent: str, stages: Sequence[Stage]) -> None:
        if not traceparent:
            return
        parent = _context(traceparent)
        unix_at_zero = time.time() - time.monotonic()
        for stage in stages:
            start = _nanoseconds(unix_at_zero + stage.started_at)
            span = self._tracer.start_span(stage.name, parent, attributes=dict(stage.attributes), start_time=start)
            if stage.error is not None:
                span.set_status(Status(StatusCode.ERROR, stage.error))
            span.end(_nanoseconds(unix_at_zero + stage.started_at + stage.duration_s))

    def close(self) -> None:
        self._provider.shutdown()


def _context(traceparent: str) -> Context:
    return PROPAGATOR.extract({HEADER: traceparent}, Context())


def _nanoseconds(unix_s: float) -> int:
    return int(unix_s * 1e9)
