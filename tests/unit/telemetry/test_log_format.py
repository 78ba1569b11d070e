"""How lines of a log look in each format."""

from __future__ import annotations

import json
import logging
import sys

from telemetry.log_format import formatter


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.getLogger("proxy").makeRecord("proxy", logging.INFO, __file__, 1, message, (), None, extra=extra)
    made.created = 1.5
    return made


def test_people_read_fields_after_the_message_and_none_that_has_no_value() -> None:
    line = formatter("human").format(record("request r: ok", fields={"path": "p2p", "ttft_s": 0.25, "tpot_s": None}))
    assert line.endswith(" INFO proxy: request r: ok path=p2p ttft_s=0.2500")


def test_json_is_one_object_a_line_with_each_field_a_member() -> None:
    line = formatter("json").format(record("two\nlines", fields={"choices": 2, "tpot_s": None}))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:01.500Z",
        "level": "INFO",
        "logger": "proxy",
        "message": "two\nlines",
        "choices": 2,
        "tpot_s": None,
    }


def test_a_field_cannot_pass_for_the_line_s_own_level() -> None:
    assert json.loads(formatter("json").format(record("m", fields={"level": "ERROR"})))["level"] == "INFO"


def test_an_exception_is_part_of_the_json_object() -> None:
    failed = record("failed")
    try:
        raise RuntimeError("no room")
    except RuntimeError:
        failed.exc_info = sys.exc_info()
    assert json.loads(formatter("json").format(failed))["exception"].endswith("RuntimeError: no room")
