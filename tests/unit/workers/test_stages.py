"""What workers tell of the stages of an attempt: to the proxy, and to the request's trace."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rpc import worker_pb2
from tests.unit.telemetry.recorded_spans import RecordedSpans, parent_of, seconds
from tests.unit.workers.pair import Pair, token_request

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PROMPT = list(range(28))


@pytest.fixture
def spans() -> RecordedSpans:
    return RecordedSpans()


@pytest.fixture
async def pair(spans: RecordedSpans) -> AsyncIterator[Pair]:
    async with Pair(tracer=spans.tracer) as pair:
        yield pair


def traced(max_tokens: int = 6) -> worker_pb2.TokenRequest:
    request = token_request("r", PROMPT, max_tokens)
    request.traceparent = f"00-{TRACE}-{SPAN}-01"
    return request


async def test_a_handed_over_prompt_s_stages_are_told_and_traced(pair: Pair, spans: RecordedSpans) -> None:
    pair.start(traced())
    await pair.to_d.finished("r")
    done = await pair.to_p.event("done")
    (first, *_) = pair.to_d.tokens("r")
    assert [stage.name for stage in done.stages] == ["prefill.queue", "prefill.compute"]
    told = [stage.name for stage in first.origin.stages]
    assert told == ["decode.queue", "kv.transfer", "kv.commit", "decode.first_token"]
    for stage in (*done.stages, *first.origin.stages):
        span = spans.named(stage.name)
        assert parent_of(span) == (int(TRACE, 16), int(SPAN, 16))
        assert seconds(span) == pytest.approx(stage.duration_s, abs=1e-5)
    transfer = spans.named("kv.transfer").attributes or {}
    assert (transfer["pdserve.transport"], transfer["pdserve.attempt"]) == ("local", 1)
    assert len(spans.names) == 6


async def test_what_decode_computes_itself_has_no_transfer(pair: Pair, spans: RecordedSpans) -> None:
    pair.start_decode(traced())
    await pair.to_d.finished("r")
    assert spans.names == ["decode.queue", "decode.first_token"]


async def test_a_first_token_that_ends_the_request_needs_no_commit(pair: Pair, spans: RecordedSpans) -> None:
    pair.start(traced(max_tokens=1))
    await pair.to_d.finished("r")
    assert "kv.commit" not in spans.names


async def test_a_transfer_that_failed_is_traced_with_its_reason(pair: Pair, spans: RecordedSpans) -> None:
    pair.d.transport.fail_next()
    pair.start(traced())
    failed = await pair.to_d.event("handoff_failed")
    assert failed.reason == "transfer_failed"
    assert spans.named("kv.transfer").status.description == "transfer_failed"


async def test_a_pooled_prompt_is_traced_on_both_workers(pair: Pair, spans: RecordedSpans) -> None:
    pair.start_node()
    await pair.prefill_into_pool(traced())
    pair.decode_from_pool(traced())
    await pair.to_d.finished("r")
    assert spans.names == ["prefill.queue", "prefill.compute", "decode.queue", "kv.transfer", "decode.first_token"]


async def test_a_request_without_a_trace_has_times_and_no_spans(pair: Pair, spans: RecordedSpans) -> None:
    pair.start(token_request("r", PROMPT))
    await pair.to_d.finished("r")
    assert len(pair.to_d.tokens("r")[0].origin.stages) == 4
    assert spans.names == []
