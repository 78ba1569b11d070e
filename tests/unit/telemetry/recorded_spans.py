"""A tracer whose spans stay in memory, and what they say."""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from telemetry.otlp_tracer import OtlpTracer


class RecordedSpans:
    """Maintains the spans that have ended."""

    def __init__(self, sample_ratio: float = 1.0) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracer = OtlpTracer(SimpleSpanProcessor(self._exporter), sample_ratio, "pdserve-test", "test-0")

    @property
    def names(self) -> list[str]:
        return [span.name for span in self._exporter.get_finished_spans()]

    def named(self, name: str) -> ReadableSpan:
        """The only one of that name."""
        (found,) = (span for span in self._exporter.get_finished_spans() if span.name == name)
        return found


def parent_of(span: ReadableSpan) -> tuple[int, int]:
    """Trace and span."""
    assert span.parent is not None
    return span.parent.trace_id, span.parent.span_id


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9
