"""Errors that a person can mend, shown as a message; everything else keeps its traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class CommandError(RuntimeError):
    """A command cannot do what it was asked; the message says why, and what to do."""


@contextmanager
def show_errors() -> Iterator[None]:
    """Ends the process with status 1 and the message of any error that is meant for people."""
    try:
        yield
    except Exception as error:
        if not _is_for_people(error):
            raise
        sys.exit(f"pdserve: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def _is_for_people(error: Exception) -> bool:
    """By the name of its class, so that no module is imported for errors that cannot have happened."""
    return any(kind.__module__.startswith("deploy.") for kind in type(error).__mro__)
