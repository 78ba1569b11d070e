"""Lets callers in: of a request's headers it makes the `Caller`, or refuses it, the same for both fronts.

Middleware and interceptors cannot pass values on to what answers behind them; `current_caller()` does.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextvars import ContextVar

from proxy.access.api_key import ApiKey
from proxy.access.caller import TENANT, Caller, Scope
from proxy.access.key_store import KeyStore
from proxy.errors import ApiError, ErrorCode, invalid
from proxy.metrics import ProxyMetrics

logger = logging.getLogger(__name__)
_caller: ContextVar[Caller] = ContextVar("caller")


def current_caller() -> Caller:
    """Of the request that this task answers; the gate has set it."""
    return _caller.get()


class Gate:
    """Without `keys` everybody is let in."""

    def __init__(self, keys: KeyStore | None, metrics: ProxyMetrics) -> None:
        self._keys = keys
        self._metrics = metrics

    @property
    def has_keys(self) -> bool:
        return self._keys is not None

    def admit(self, authorization: Sequence[str], tenants: Sequence[str], needed: Scope | None) -> Caller:
        """Whoever sends these values of `authorization` and `x-tenant`, now the current caller.

        None: any key will do. Raises ApiError.
        """
        try:
            caller = self._caller(authorization, _one(tenants, "x-tenant"), needed)
        except ApiError as error:
            self._metrics.rejected.labels(error.reason or error.code.value).inc()
            logger.info("refused: %s: %s", error.code.value, error.message)
            raise
        _caller.set(caller)
        return caller

    def _caller(self, authorization: Sequence[str], tenant: str | None, needed: Scope | None) -> Caller:
        if tenant is not None and not TENANT.fullmatch(tenant):
            raise invalid("x-tenant", "must be 1 to 128 visible ASCII characters")
        if self._keys is None:
            return Caller.without_key(tenant or "")
        key = self._find(_one(authorization, "authorization"), self._keys)
        if needed is not None and needed not in key.scopes:
            raise _denied("authorization", f"the API key {key.name} has no scope {needed}", "insufficient_scope")
        if tenant is not None and tenant != key.tenant and not key.may_set_tenant:
            raise _denied("x-tenant", f"the API key {key.name} may not speak for this tenant", "tenant_not_allowed")
        speaks_for = tenant or key.tenant
        return Caller(speaks_for, key.scopes, self._keys.limits(speaks_for))

    def _find(self, authorization: str | None, keys: KeyStore) -> ApiKey:
        if not authorization:
            raise _unauthenticated("no API key: send it as Authorization: Bearer pdserve-…", "missing_api_key")
        scheme, _, text = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise _unauthenticated("send the API key as Authorization: Bearer pdserve-…", "invalid_api_key")
        key = keys.find(text.strip())
        if key is None:
            raise _unauthenticated("wrong API key", "invalid_api_key")
        if key.is_revoked:
            raise _unauthenticated(f"the API key {key.name} was revoked", "invalid_api_key")
        if key.has_expired(keys.now()):
            raise _unauthenticated(f"the API key {key.name} has expired", "invalid_api_key")
        return key


def _one(values: Sequence[str], name: str) -> str | None:
    """Which of several counts would be a matter of taste, and servers in between may have another."""
    if len(values) > 1:
        raise invalid(name, "is there more than once")
    return values[0] if values else None


def _unauthenticated(message: str, reason: str) -> ApiError:
    return ApiError(ErrorCode.UNAUTHENTICATED, message, "authorization", reason)


def _denied(param: str, message: str, reason: str) -> ApiError:
    return ApiError(ErrorCode.PERMISSION_DENIED, f"{param}: {message}", param, reason)
