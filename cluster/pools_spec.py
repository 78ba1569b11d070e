"""The pools of workers, one for each role: how many, with which engine, and where."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

from cluster.placement_spec import PlacementSpec
from cluster.roles import WorkerRole
from engine.config import EngineConfig


class PoolSpec(BaseModel):
    """The workers of one role. `engine` is whole: the cluster's settings with the pool's own laid over them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    replicas: int = Field(0, ge=0, le=64)
    engine: EngineConfig = Field(default_factory=EngineConfig)
    placement: PlacementSpec = Field(default_factory=PlacementSpec)


class Pools(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    prefill: PoolSpec = Field(default_factory=PoolSpec)
    decode: PoolSpec = Field(default_factory=PoolSpec)
    mixed: PoolSpec = Field(default_factory=PoolSpec)

    def of(self, role: WorkerRole) -> PoolSpec:
        return {"prefill": self.prefill, "decode": self.decode, "mixed": self.mixed}[role]


def laid_over(engine: object, pool: object) -> object:
    if not isinstance(engine, Mapping) or not isinstance(pool, Mapping):
        return pool  # wrong types: validation names them
    own = pool.get("engine", {})
    if not isinstance(own, Mapping):
        return pool
    laid = {**engine, **own}
    if isinstance(engine.get("scheduling"), Mapping) and isinstance(own.get("scheduling"), Mapping):
        laid["scheduling"] = {**engine["scheduling"], **own["scheduling"]}
    return {**pool, "engine": laid}
