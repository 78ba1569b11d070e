"""Spans: whose they are, which there are, and that a collector gets them or nobody minds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from pydantic import ValidationError

from bench.free_port import free_port
from telemetry.config import TracingConfig
from telemetry.stage import Stage
from telemetry.tracer import Tracer, open_tracer
from tests.unit.telemetry.recorded_spans import RecordedSpans, parent_of, seconds

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PATIENCE_S = 30.0


def test_a_request_s_span_belongs_to_the_client_s_trace() -> None:
    spans = RecordedSpans()
    request = spans.tracer.begin(f"00-{TRACE}-{SPAN}-01")
    assert request.trace_id == TRACE
    assert request.traceparent.startswith(f"00-{TRACE}-")
    request.end({"pdserve.outcome": "ok"}, None)
    assert parent_of(spans.named("proxy.request")) == (int(TRACE, 16), int(SPAN, 16))


@pytest.mark.parametrize("traceparent", ["", "no", "00-0-0-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{SPAN}"])
def test_a_client_without_a_valid_traceparent_gets_a_trace_of_its_own(traceparent: str) -> None:
    spans = RecordedSpans()
    request = spans.tracer.begin(traceparent)
    assert request.trace_id not in (None, TRACE)
    request.end({}, None)
    assert spans.named("proxy.request").parent is None


def test_stages_are_children_with_their_own_times() -> None:
    spans = RecordedSpans()
    spans.tracer.record(f"00-{TRACE}-{SPAN}-01", [Stage("kv.transfer", 5.0, 5.25, {"pdserve.bytes": 4}, "stalled")])
    span = spans.named("kv.transfer")
    assert parent_of(span) == (int(TRACE, 16), int(SPAN, 16))
    assert seconds(span) == pytest.approx(0.25, abs=1e-4)
    assert (span.attributes or {})["pdserve.bytes"] == 4
    assert span.status.description == "stalled"


@pytest.mark.parametrize(("sample_ratio", "traceparent"), [(1.0, f"00-{TRACE}-{SPAN}-00"), (0.0, "")])
def test_what_is_not_sampled_has_no_spans_anywhere(sample_ratio: float, traceparent: str) -> None:
    spans = RecordedSpans(sample_ratio)
    request = spans.tracer.begin(traceparent)
    assert (request.trace_id, request.traceparent) == (None, "")
    spans.tracer.record(request.traceparent, [Stage("kv.transfer", 5.0, 5.25)])
    request.end({}, None)
    assert spans.names == []


def test_a_client_that_samples_overrules_the_ratio() -> None:
    assert RecordedSpans(0.0).tracer.begin(f"00-{TRACE}-{SPAN}-01").trace_id == TRACE


class Collector(ThreadingHTTPServer):
    """Maintains the batches that came."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiver)
        self.batches: list[tuple[str, ExportTraceServiceRequest]] = []  # path and content


class _Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.batches.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        serving = threading.Thread(target=collector.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        yield collector
        collector.shutdown()
        serving.join(PATIENCE_S)


def opened(endpoint: str | None) -> Tracer | None:
    return open_tracer(TracingConfig(endpoint=endpoint), "pdserve-proxy", "proxy-8000")


def test_a_collector_gets_the_spans_over_http_by_the_process_s_end(collector: Collector) -> None:
    tracer = opened(f"http://127.0.0.1:{collector.server_port}/")
    assert tracer is not None
    request = tracer.begin("")
    tracer.record(request.traceparent, [Stage("proxy.queue", 1.0, 2.0)])
    request.end({}, None)
    tracer.close()
    ((path, batch),) = collector.batches
    (resource,) = batch.resource_spans
    assert path == "/v1/traces"
    assert [span.name for scope in resource.scope_spans for span in scope.spans] == ["proxy.queue", "proxy.request"]
    told = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
    assert (told["service.name"], told["service.instance.id"]) == ("pdserve-proxy", "proxy-8000")


def test_a_collector_that_is_away_holds_nobody_up() -> None:
    tracer = opened(f"http://127.0.0.1:{free_port()}")
    assert tracer is not None
    started_at = time.monotonic()
    tracer.begin("").end({}, None)
    tracer.close()
    assert time.monotonic() - started_at < PATIENCE_S


def test_without_an_endpoint_there_is_no_tracer() -> None:
    assert opened(None) is None


def test_an_endpoint_that_is_no_url_is_refused_by_name() -> None:
    with pytest.raises(ValidationError, match="write http://HOST:PORT"):
        TracingConfig(endpoint="127.0.0.1:4318")
