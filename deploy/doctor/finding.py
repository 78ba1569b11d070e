"""One thing that was looked at, and what to do where it is not well."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"  # a cluster runs; something will be slow, or missing
    ERROR = "error"  # a cluster does not run


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    level: Level
    seen: str
    fix: str = ""  # empty where nothing is to be done


def fine(what: str, seen: str) -> Finding:
    return Finding(what, Level.OK, seen)


def warning(what: str, seen: str, fix: str) -> Finding:
    return Finding(what, Level.WARNING, seen, fix)


def error(what: str, seen: str, fix: str) -> Finding:
    return Finding(what, Level.ERROR, seen, fix)
