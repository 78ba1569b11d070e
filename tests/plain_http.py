"""HTTP without TLS: no authorities are read, which would cost each of httpx's clients 20 ms of a core and more."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import httpx


def get(url: str, **fields: Any) -> httpx.Response:
    return httpx.get(url, verify=False, **fields)


def post(url: str, **fields: Any) -> httpx.Response:
    return httpx.post(url, verify=False, **fields)


def stream(method: str, url: str, **fields: Any) -> AbstractContextManager[httpx.Response]:
    return httpx.stream(method, url, verify=False, **fields)
