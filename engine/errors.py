"""What the engine refuses, by name."""

from __future__ import annotations


class EngineError(Exception):
    """Base of the errors that `Engine` raises."""


class RequestTooLong(EngineError):
    """The request could never finish here; the message names the limit."""


class UnknownRequest(EngineError):
    """No such request, or it is in a state in which this cannot be done."""


class EngineStopped(EngineError):
    """The engine thread has ended."""
