"""`pdserve keys`: the file of API keys that `proxy.keys_file` names, changed while the proxy runs or before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from deploy.cluster_state import NoClusterError, default_store
from deploy.errors import CommandError
from proxy.access.api_key import ApiKey, NewKey
from proxy.access.caller import Scope, TenantLimits
from proxy.access.key_file import KeyFile, KeyFileError

LOCK_TIMEOUT_S = 10.0
OUTPUT_COLUMNS = 160


def add(
    file: Path,
    name: str,
    tenant: str | None,
    scopes: list[Scope],
    days: int | None,
    limits: dict[str, int | None],
    *,
    may_set_tenant: bool,
) -> None:
    """Prints the key, once. Limits are the tenant's, so of all its keys; those that are not given stay as they are."""
    drawn, now = NewKey.draw(), datetime.now(UTC).replace(microsecond=0)
    given = {limit: value for limit, value in limits.items() if value is not None}
    with _changing(file):
        before = KeyFile.read(file) if file.exists() else KeyFile()
        if name in [key.name for key in before.keys]:
            raise CommandError(f"{file} has a key {name!r} already, valid or not: choose another name")
        try:
            key = ApiKey(
                name=name,
                id=drawn.id,
                sha256=drawn.sha256,
                tenant=tenant or name,
                may_set_tenant=may_set_tenant,
                scopes=frozenset(scopes),
                created_at=now,
                expires_at=None if days is None else now + timedelta(days=days),
            )
            tenants = dict(before.tenants)
            if given:
                known = tenants.get(key.tenant, TenantLimits()).model_dump()
                tenants[key.tenant] = TenantLimits.model_validate(known | given)
            changed = KeyFile(keys=(*before.keys, key), tenants=tenants)
        except ValidationError as error:
            raise CommandError(_first_fault(error)) from error
        changed.write(file)
    print(drawn.text)
    console = Console(stderr=True, highlight=False)
    console.print("Keep it: it is nowhere else, and cannot be shown again.", soft_wrap=True)


def revoke(file: Path, name: str) -> None:
    with _changing(file):
        before = KeyFile.read(file)
        if name not in [key.name for key in before.keys]:
            raise CommandError(f"{file} has no key {name!r}: `pdserve keys list` shows those that there are")
        keys = (key.model_copy(update={"is_revoked": True}) if key.name == name else key for key in before.keys)
        before.model_copy(update={"keys": tuple(keys)}).write(file)
    print(f"{name} is let in no more: within a second, and what runs may finish")


def show(file: Path) -> None:
    with _errors():
        content = KeyFile.read(file)
    table = Table(box=None, pad_edge=False)
    for title in ("NAME", "ID", "TENANT", "SCOPES", "STATE", "LIMITS OF THE TENANT"):
        table.add_column(title, overflow="fold")
    now = datetime.now(UTC)
    for key in content.keys:
        limits = content.tenants.get(key.tenant, TenantLimits()).model_dump(exclude_none=True)
        tenant = f"{key.tenant}, or any" if key.may_set_tenant else key.tenant
        scopes, of_tenant = ", ".join(sorted(key.scopes)), ", ".join(f"{name} {n}" for name, n in limits.items())
        table.add_row(key.name, key.id, tenant, scopes, _state(key, now), of_tenant)
    Console(highlight=False, width=OUTPUT_COLUMNS).print(table)


def find_file(file: Path | None, cluster: str) -> Path:
    """The one that is named, else the running cluster's. Raises CommandError."""
    if file is not None:
        return file
    try:
        named = default_store(os.environ).read(cluster).keys_file
    except NoClusterError as error:
        raise CommandError(f"{error}; or name a file: --file") from error
    if named is None:
        raise CommandError(f"{cluster} was started without proxy.keys_file: name a file with --file, and start with it")
    return Path(named)


def _state(key: ApiKey, now: datetime) -> str:
    if key.is_revoked:
        return "revoked"
    if key.expires_at is None:
        return "valid"
    return f"{'expired' if key.has_expired(now) else 'valid until'} {key.expires_at:%Y-%m-%d}"


@contextmanager
def _changing(file: Path) -> Iterator[None]:
    """One command at a time. Raises CommandError for what is wrong with the file."""
    with _errors(), FileLock(f"{file}.lock", timeout=LOCK_TIMEOUT_S, mode=0o600):
        yield


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except KeyFileError as error:
        raise CommandError(str(error)) from error
    except Timeout as error:
        raise CommandError(f"{error.lock_file} is held by another `pdserve keys`: try again") from error
    except OSError as error:
        raise CommandError(f"{error.filename} cannot be written: {error.strerror}") from error


def _first_fault(error: ValidationError) -> str:
    fault = error.errors()[0]
    field = ".".join(str(part) for part in fault["loc"])
    return f"{field}: {fault['msg'].removeprefix('Value error, ')}"
