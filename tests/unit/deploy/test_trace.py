"""From what processes recorded to a trace that Perfetto opens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from deploy.trace.cluster_trace import Recording, cluster_trace
from deploy.trace.trace import Trace
from deploy.trace.worker_events import attempt_of, key_of, label_of
from rpc import worker_pb2
from tests.trace_format import check_trace
from tests.unit.deploy.trace_records import KEY, decode_records, prefill_records, proxy_records, source

LATER_S = 3.0


@pytest.fixture
def events() -> list[dict[str, Any]]:
    """Of a proxy, a P and a D whose monotonic clock started 3 s later than the others'."""
    trace = cluster_trace(
        [
            Recording(
                source("decode-0", worker_pb2.ROLE_DECODE, unix_at_zero=1000.0 + LATER_S), [decode_records(LATER_S)]
            ),
            Recording(source("prefill-0", worker_pb2.ROLE_PREFILL), [prefill_records()]),
            Recording(source("proxy"), [proxy_records()]),
        ]
    )
    return trace.events()


def of_kind(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event.get("cat") == kind]


def times(event: Mapping[str, Any]) -> tuple[float, float]:
    """Start and end in seconds on the workers' common scale; the proxy's first event was at 0.5 s."""
    return event["ts"] / 1e6 + 0.5, (event["ts"] + event["dur"]) / 1e6 + 0.5


def test_the_trace_is_well_formed(events: list[dict[str, Any]]) -> None:
    check_trace(events)


def test_processes_are_named_and_come_in_the_order_of_a_request_s_path(events: list[dict[str, Any]]) -> None:
    names = [(e["pid"], e["args"]["name"]) for e in events if e["name"] == "process_name"]
    assert names == [(1, "proxy"), (2, "prefill-0 (prefill)"), (3, "decode-0 (decode)")]


def test_clocks_that_started_at_different_times_line_up(events: list[dict[str, Any]]) -> None:
    chunks = [times(event) for event in of_kind(events, "prefill")]
    decodes = [times(event) for event in of_kind(events, "decode")]
    assert chunks == [pytest.approx((1.5, 2.0)), pytest.approx((2.0, 3.0))]
    assert decodes == [pytest.approx((4.0, 4.5)), pytest.approx((5.5, 6.0))]


def test_waiting_and_preemption_are_slices_of_their_own(events: list[dict[str, Any]]) -> None:
    waits = sorted(times(event) for event in of_kind(events, "wait"))
    assert waits == [pytest.approx((1.0, 1.1)), pytest.approx((1.0, 1.5)), pytest.approx((5.0, 5.5))]
    (preempted,) = of_kind(events, "preempted")
    assert preempted["args"]["how"] == "swapped out"


def test_a_hand_off_has_its_stages_inside_and_its_reads_beside(events: list[dict[str, Any]]) -> None:
    (handoff,) = of_kind(events, "handoff")
    stages = of_kind(events, "stage")
    assert [stage["name"] for stage in stages] == ["handshake", "wait_ready", "transfer", "validate"]
    assert {(stage["pid"], stage["tid"]) for stage in stages} == {(handoff["pid"], handoff["tid"])}
    assert len({read["tid"] for read in of_kind(events, "read")}) == 2  # two of the three overlap
    assert (handoff["args"]["bytes"], handoff["args"]["tokens"]) == (1 << 20, 300)


def test_an_arrow_leads_from_the_last_chunk_to_the_hand_off(events: list[dict[str, Any]]) -> None:
    tail, head = of_kind(events, "arrow")
    assert (tail["ph"], tail["pid"], head["ph"], head["pid"]) == ("s", 2, "f", 3)
    assert tail["ts"] / 1e6 + 0.5 == pytest.approx(3.0, abs=1e-5)


def test_counters_show_who_runs_and_which_blocks_are_used(events: list[dict[str, Any]]) -> None:
    counters = [event for event in events if event["ph"] == "C" and event["pid"] == 2]
    assert counters[0]["args"] == {"running": 1, "waiting": 0}
    assert counters[1]["args"]["used"] == 19


def test_the_proxy_s_view_has_phases_and_an_outcome_once_there_is_one(events: list[dict[str, Any]]) -> None:
    phases = [(event["name"], event["args"]["request"]) for event in events if event["pid"] == 1 and event["ph"] == "X"]
    assert phases == [
        ("req-1 queued", KEY),
        ("req-1 first token", KEY),
        ("req-2 queued", "req-2.0def"),
        ("req-1 streams", KEY),
    ]
    (answered,) = of_kind(events, "answered")
    assert (answered["args"]["outcome"], answered["args"]["decode_worker"]) == ("ok", "decode-0")


def test_a_request_that_runs_is_drawn_once_however_often_it_is_told() -> None:
    trace = cluster_trace([Recording(source("proxy"), [proxy_records(), proxy_records()])])
    assert len(of_kind(trace.events(), "queued")) == 2


def test_a_failed_hand_off_and_an_expired_lease_say_why() -> None:
    p, d = prefill_records(), decode_records()
    p.leases[0].failure = "lease_expired"
    d.handoffs[0].failure = "peer_silent"
    events = cluster_trace(
        [
            Recording(source("prefill-0", worker_pb2.ROLE_PREFILL), [p]),
            Recording(source("decode-0", worker_pb2.ROLE_DECODE), [d]),
        ]
    ).events()
    check_trace(events)
    assert of_kind(events, "handoff")[0]["args"]["failure"] == "peer_silent"
    assert of_kind(events, "lease")[0]["args"]["ended"] == "lease_expired"
    assert not of_kind(events, "arrow")


def test_a_wait_that_was_noted_after_the_hand_off_began_ends_where_that_begins() -> None:
    records = decode_records()
    records.steps[0].started_at = 1.2 + 0.0003
    events = cluster_trace([Recording(source("decode-0", worker_pb2.ROLE_DECODE), [records])]).events()
    check_trace(events)
    wait, (handoff,) = of_kind(events, "wait")[0], of_kind(events, "handoff")
    assert wait["ts"] + wait["dur"] == handoff["ts"]


def test_what_overlaps_gets_lanes_and_what_follows_takes_a_free_one() -> None:
    lanes = Trace().process("p", "mixed").lanes("requests")
    assert [lanes.take(0, 2), lanes.take(1, 3), lanes.take(2, 4)] == [1, 2, 1]


def test_a_recording_without_records_is_a_process_without_events() -> None:
    trace = cluster_trace([Recording(source("decode-0", worker_pb2.ROLE_DECODE))])
    check_trace(trace.events())
    assert all(event["ph"] == "M" for event in trace.events())


def test_the_file_is_json_and_says_when_it_began(tmp_path: Path) -> None:
    trace = cluster_trace([Recording(source("prefill-0", worker_pb2.ROLE_PREFILL), [prefill_records()])])
    num_events = trace.save(tmp_path / "trace.json", cluster="default")
    content = json.loads((tmp_path / "trace.json").read_text())
    assert len(content["traceEvents"]) == num_events
    assert content["otherData"] == {"started_at_unix_s": 1001.0, "cluster": "default"}


@pytest.mark.parametrize(
    ("engine_id", "attempt", "key", "label"),
    [
        ("req-1.0abc#2.17", "req-1.0abc#2", "req-1.0abc", "req-1"),
        ("a#b.c.0abc#1.0", "a#b.c.0abc#1", "a#b.c.0abc", "a#b.c"),
        ("request 1", "request 1", "request 1", "request 1"),
    ],
)
def test_an_engine_s_id_tells_attempt_request_and_label(engine_id: str, attempt: str, key: str, label: str) -> None:
    assert (attempt_of(engine_id), key_of(engine_id), label_of(engine_id)) == (attempt, key, label)
