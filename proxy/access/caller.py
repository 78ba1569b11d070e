"""Who asks: the tenant, what it may do and how much of it.

Every request has a caller; without API keys it is whoever the header `x-tenant` names, who may do all, without limits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

TENANT = re.compile(r"[\x21-\x7e]{1,128}")


class Scope(StrEnum):
    INFERENCE = "inference"  # models and generations
    OBSERVE = "observe"  # what all tenants do: metrics, scrape targets, records of requests


class TenantLimits(BaseModel):
    """How much one tenant may have at once and per minute, over all its keys on one proxy; None: no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_queued: int | None = Field(None, ge=1)  # choices that wait for a worker
    max_running: int | None = Field(None, ge=1)  # choices that a worker has
    requests_per_minute: int | None = Field(None, ge=1)
    tokens_per_minute: int | None = Field(None, ge=1)  # of prompts and completions together


@dataclass(frozen=True, slots=True)
class Caller:
    tenant: str  # "": none; whoever has no tenant shares one
    scopes: frozenset[Scope]
    limits: TenantLimits

    @classmethod
    def without_key(cls, tenant: str) -> Caller:
        return cls(tenant, frozenset(Scope), TenantLimits())
