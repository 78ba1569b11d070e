"""From a trace to rows, and from rows to a picture."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from deploy.commands.timeline import run
from deploy.errors import CommandError
from deploy.timeline.picture import Panel, draw
from deploy.timeline.rows import MOST_ROWS, Row, TraceError, read_events, timeline
from deploy.trace.cluster_trace import Recording, cluster_trace
from rpc import observe_pb2, worker_pb2
from tests.unit.deploy.trace_records import KEY, decode_records, prefill_records, proxy_records, source


def of_cluster() -> list[dict[str, Any]]:
    return cluster_trace(
        [
            Recording(source("decode-0", worker_pb2.ROLE_DECODE), [decode_records()]),
            Recording(source("prefill-0", worker_pb2.ROLE_PREFILL), [prefill_records()]),
            Recording(source("proxy"), [proxy_records()]),
        ]
    ).events()


def of_engine(num_requests: int, num_steps: int = 4) -> list[dict[str, Any]]:
    """The first decodes in the first step; the others wait for that one, and then all do the same."""
    records = observe_pb2.Records(request_ids=[f"request {n}" for n in range(num_requests)])
    everybody = range(num_requests)
    records.steps.add(started_at=1.0, duration_s=0.1, decodes=[0])
    records.steps.add(
        started_at=1.1,
        duration_s=0.3,
        chunks=[observe_pb2.Chunk(request=n, num_tokens=8) for n in everybody],
        admissions=[observe_pb2.Admission(request=n, arrived_at=1.0) for n in everybody],
    )
    for number in range(2, num_steps):
        ends = [observe_pb2.Ending(request=n, reason="stop") for n in everybody] if number == num_steps - 1 else []
        records.steps.add(started_at=1.2 + 0.1 * number, duration_s=0.1, decodes=everybody, endings=ends)
    return cluster_trace([Recording(source("mixed-0", worker_pb2.ROLE_MIXED), [records])]).events()


def kinds(row: Row) -> list[tuple[str, str]]:
    return [(bar.kind, bar.role) for bar in sorted(row.bars, key=lambda bar: (bar.start, bar.kind))]


def test_a_request_is_one_row_across_proxy_and_workers() -> None:
    first, second = timeline(of_cluster()).rows
    assert (first.request, first.label, second.label) == (KEY, "req-1", "req-2")
    assert kinds(first) == [
        ("wait", "proxy"),
        ("wait", "prefill"),
        ("wait", "decode"),
        ("handoff", "decode"),
        ("prefill", "prefill"),
        ("prefill", "prefill"),
        ("read", "decode"),
        ("read", "decode"),
        ("read", "decode"),
        ("decode", "decode"),
        ("wait", "decode"),
        ("decode", "decode"),
    ]
    assert [(mark.kind, round(mark.at, 3)) for mark in first.marks if mark.role == "decode"] == [
        ("preempted", 4.5),
        ("ended", 5.5),
    ]
    assert [mark.role for mark in first.ends] == ["decode"]


def test_positions_count_from_the_first_thing_shown() -> None:
    first, second = timeline(of_cluster()).rows
    assert (first.start, round(first.end, 3)) == (0.0, 5.5)
    assert round(second.start, 3) == 1.5


def test_by_step_each_step_is_as_wide_as_any_other() -> None:
    _, row = timeline(of_engine(2), by_step=True).rows
    spans = [(bar.kind, bar.start, bar.end) for bar in row.bars]
    assert spans == [("wait", 0.0, 1.0), ("prefill", 1.0, 2.0), ("decode", 2.0, 3.0), ("decode", 3.0, 4.0)]
    assert [mark.at for mark in row.ends] == [4.0]


def test_several_engines_cannot_be_shown_by_step() -> None:
    with pytest.raises(TraceError, match="2 engines"):
        timeline(of_cluster(), by_step=True)


def test_a_trace_without_requests_is_refused() -> None:
    with pytest.raises(TraceError, match="no request"):
        timeline(cluster_trace([Recording(source("proxy"))]).events())


def test_more_requests_than_fit_are_counted() -> None:
    shown = timeline(of_engine(MOST_ROWS + 3))
    assert (len(shown.rows), shown.num_left_out) == (MOST_ROWS, 3)


@pytest.mark.parametrize("content", [None, "no json", "[1]", '{"traceEvents": 3}', "{}"])
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "trace.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(TraceError, match=r"trace\.json"):
        read_events(file)


def test_a_picture_names_its_rows_its_kinds_and_its_axis(tmp_path: Path) -> None:
    file = tmp_path / "picture.svg"
    draw([Panel("P and D", timeline(of_cluster()))], file)
    text = "".join(ElementTree.parse(file).getroot().itertext())
    for wanted in (
        "P and D",
        "req-1",
        "seconds",
        "prefill",
        "decode",
        "KV transfer",
        "waits",
        "preempted",
        "ended",
        "upper half: prefill worker",
    ):
        assert wanted in text, wanted


def test_a_picture_of_one_engine_has_no_halves(tmp_path: Path) -> None:
    file = tmp_path / "picture.svg"
    draw([Panel("one", timeline(of_engine(5), by_step=True)), Panel("two", timeline(of_engine(3), by_step=True))], file)
    text = "".join(ElementTree.parse(file).getroot().itertext())
    assert "step" in text
    assert "half" not in text


def test_a_picture_of_many_requests_and_steps_stays_small(tmp_path: Path) -> None:
    file = tmp_path / "picture.svg"
    draw([Panel("twenty", timeline(of_engine(20, num_steps=500)))], file)
    assert file.stat().st_size < 200_000


def test_the_same_trace_gives_the_same_picture(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        draw([Panel("same", timeline(of_engine(3)))], tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_png_is_written_when_the_name_ends_so(tmp_path: Path) -> None:
    draw([Panel("png", timeline(of_engine(2)))], tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_another_kind_of_file_and_a_folder_that_is_not_there_are_refused(tmp_path: Path) -> None:
    panel = Panel("one", timeline(of_engine(2)))
    with pytest.raises(CommandError, match="neither"):
        draw([panel], tmp_path / "picture.pdf")
    with pytest.raises(CommandError, match="cannot be written"):
        draw([panel], tmp_path / "nowhere" / "picture.svg")


def test_the_command_draws_a_trace_file(tmp_path: Path) -> None:
    trace, picture = tmp_path / "trace.json", tmp_path / "picture.svg"
    cluster_trace([Recording(source("prefill-0", worker_pb2.ROLE_PREFILL), [prefill_records()])]).save(trace)
    run("default", trace, 10.0, None, picture, by_step=False, title="one prompt")
    assert "one prompt" in picture.read_text()


def test_matplotlib_is_loaded_only_to_draw() -> None:
    code = "import sys, deploy.commands.timeline; print('matplotlib' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False", "False"]
