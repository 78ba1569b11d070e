"""A group: workers of a pool that differ from its others in engine or place, and how many of them there may be."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field, field_validator

from cluster.placement_spec import PlacementSpec
from engine.config import EngineConfig

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")


class GroupSpec(BaseModel):
    """`engine` and `placement` are whole: the pool's, with the group's own fields laid over them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    most: int | None = Field(None, ge=1, le=64)  # workers; None: no limit
    engine: EngineConfig = Field(default_factory=EngineConfig)
    placement: PlacementSpec = Field(default_factory=PlacementSpec)

    @field_validator("name")
    @classmethod
    def _is_name(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a group: write up to 32 of a-z, 0-9 and -, as in fast-nic")
        return name


def lay_over(engine: object, pool: object) -> object:
    """A pool's settings as read, `engine` laid under its own, and both that and its placement under its groups'.

    What has the wrong type stays as it is: validation names it.
    """
    if not isinstance(pool, Mapping):
        return pool
    laid = {**pool, "engine": _engine_over(engine, pool.get("engine", {}))}
    if isinstance(pool.get("groups"), list | tuple):
        laid["groups"] = [_group_over(laid, group) for group in pool["groups"]]
    return laid


def _group_over(pool: Mapping[str, object], group: object) -> object:
    if not isinstance(group, Mapping):
        return group
    under, own = pool.get("placement", {}), group.get("placement", {})
    placement = {**under, **own} if isinstance(under, Mapping) and isinstance(own, Mapping) else own
    return {**group, "engine": _engine_over(pool["engine"], group.get("engine", {})), "placement": placement}


def _engine_over(under: object, own: object) -> object:
    if not isinstance(under, Mapping) or not isinstance(own, Mapping):
        return own
    laid = {**under, **own}
    if isinstance(under.get("scheduling"), Mapping) and isinstance(own.get("scheduling"), Mapping):
        laid["scheduling"] = {**under["scheduling"], **own["scheduling"]}
    return laid
