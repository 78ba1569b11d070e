"""How a log's lines look: for people, or each line one JSON object for a collector.

A record may have `fields` (`extra={"fields": {...}}`): people read them as `name=value` after the message, and in JSON
each is a member of the object.
"""

from __future__ import annotations

import datetime
import json
import logging
from collections.abc import Mapping

from telemetry.config import LogFormat
from telemetry.stage import Value

Fields = Mapping[str, Value | None]


class HumanFormatter(logging.Formatter):
    """A field without a value is left out."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        fields = _fields(record)
        told = [f" {name}={_human(value)}" for name, value in fields.items() if value is not None]
        return super().formatMessage(record) + "".join(told)


class JsonFormatter(logging.Formatter):
    """A field of a record's own never hides another one's: time, level, logger and message are always the line's."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, Value | None] = {
            **_fields(record),
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def formatter(log_format: LogFormat) -> logging.Formatter:
    return JsonFormatter() if log_format == "json" else HumanFormatter()


def log_to_stderr(log_format: LogFormat, level: str = "INFO") -> None:
    """All that this process says through `logging`."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(log_format))
    logging.basicConfig(level=level, handlers=[handler], force=True)


def _fields(record: logging.LogRecord) -> Fields:
    fields: Fields = getattr(record, "fields", {})
    return fields


def _human(value: Value) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
