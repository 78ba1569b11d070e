"""How a browser brings an API key: it asks its user for a password, and sends that as HTTP's Basic scheme has it.

Only for pages that change nothing: a browser sends what it was given with every later request, whoever made it do so.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

CHALLENGE = 'Basic realm="pdserve: any name, and an API key with the scope observe as the password", charset="UTF-8"'


def as_bearer(authorization: Sequence[str]) -> list[str]:
    """Values of `authorization` with the password of each Basic one as a bearer's key; others as they are."""
    return [_as_bearer(value) for value in authorization]


def _as_bearer(value: str) -> str:
    scheme, _, given = value.partition(" ")
    if scheme.lower() != "basic":
        return value
    try:
        _, _, password = base64.b64decode(given.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return value
    return f"Bearer {password}"
