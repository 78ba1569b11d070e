"""Errors that a person can mend, shown as a message; everything else keeps its traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class CommandError(Exception):
    """A command cannot do what it was asked; the message says why, and what to do. The base of all that say so."""


@contextmanager
def show_errors() -> Iterator[None]:
    """Ends the process with status 1 and the message of any error that is meant for people."""
    try:
        yield
    except CommandError as error:
        sys.exit(f"pdserve: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
