"""What the engine refuses, by name."""

from __future__ import annotations


class EngineError(Exception):
    """Base of the errors that `Engine` raises."""


class RequestInvalid(EngineError):
    """The request can never run, here or elsewhere; the message names the field."""


class RequestTooLong(RequestInvalid):
    """The request could never end here; the message names the limit."""


class UnknownRequest(EngineError):
    """No such request, or it is in a state in which this cannot be done."""


class EngineStopped(EngineError):
    """The engine thread has ended; the request itself may be right."""
