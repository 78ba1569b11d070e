"""One request's trace: its span, from its admission to its end, and those of its stages in the proxy.

Without a tracer it does nothing. Workers make the spans of their stages themselves, below the same span.
"""

from __future__ import annotations

from proxy.request.generation import Generation
from telemetry.log_format import Fields
from telemetry.tracer import Tracer


class RequestTrace:
    """Maintains the span, while it is open."""

    def __init__(self, tracer: Tracer | None, traceparent: str) -> None:
        """`traceparent`: the client's."""
        self._tracer = tracer
        self._span = tracer.begin(traceparent) if tracer is not None else None

    @property
    def traceparent(self) -> str:
        """For workers; empty when the request is not traced."""
        return self._span.traceparent if self._span is not None else ""

    @property
    def trace_id(self) -> str | None:
        return self._span.trace_id if self._span is not None else None

    def refused(self, request_id: str, error: BaseException) -> None:
        """It was not admitted."""
        if self._span is not None:
            self._span.end({"pdserve.request_id": request_id}, str(error) or type(error).__name__)

    def ended(self, generation: Generation, fields: Fields) -> None:
        """`fields`: what the log says of it."""
        if self._span is None or self._tracer is None:
            return
        for choice in generation.choices:
            self._tracer.record(self._span.traceparent, choice.stages.own)
        attributes = {f"pdserve.{name}": value for name, value in fields.items() if value is not None}
        self._span.end(attributes, str(generation.error) if generation.error is not None else None)
