"""Keys for tests, and files of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from proxy.access.api_key import ApiKey, NewKey
from proxy.access.caller import TenantLimits
from proxy.access.key_file import KeyFile

CREATED_AT = datetime(2026, 1, 1, tzinfo=UTC)


def make_key(name: str, **fields: object) -> tuple[str, ApiKey]:
    """The key itself, and what is kept of it. Its tenant is called like it."""
    drawn = NewKey.draw()
    described = {"name": name, "id": drawn.id, "sha256": drawn.sha256, "tenant": name, "created_at": CREATED_AT}
    return drawn.text, ApiKey.model_validate(described | fields)


def write_keys(path: Path, *keys: ApiKey, tenants: Mapping[str, TenantLimits] | None = None) -> Path:
    KeyFile(keys=keys, tenants=dict(tenants or {})).write(path)
    return path
