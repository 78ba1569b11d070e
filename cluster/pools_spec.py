"""The pools of workers, one for each role: how many, in which groups, with which engine, and where."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cluster.group_limits import NO_GROUP, GroupLimits
from cluster.group_spec import GroupSpec
from cluster.placement_spec import PlacementSpec
from cluster.roles import WorkerRole
from engine.config import EngineConfig


@dataclass(frozen=True, slots=True)
class Share:
    """What a group gets of the workers that its pool starts with."""

    group: str
    num_workers: int
    engine: EngineConfig


class PoolSpec(BaseModel):
    """The workers of one role. `engine` is whole: the cluster's settings with the pool's own laid over them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    replicas: int = Field(0, ge=0, le=64)
    engine: EngineConfig = Field(default_factory=EngineConfig)
    placement: PlacementSpec = Field(default_factory=PlacementSpec)
    groups: tuple[GroupSpec, ...] = ()  # filled in this order; none: all workers are alike

    @property
    def limits(self) -> GroupLimits:
        return GroupLimits(tuple((group.name, group.most) for group in self.groups)) if self.groups else GroupLimits()

    @property
    def shares(self) -> list[Share]:
        """One for each group, also for those that get none yet."""
        taken: Counter[str] = Counter()
        for _ in range(self.replicas):
            taken[self.limits.choose(taken) or NO_GROUP] += 1
        return [Share(name, taken[name], self.engine_of(name)) for name, _ in self.limits.groups]

    def engine_of(self, group: str) -> EngineConfig:
        return next((each.engine for each in self.groups if each.name == group), self.engine)

    def placement_of(self, group: str) -> PlacementSpec:
        return next((each.placement for each in self.groups if each.name == group), self.placement)

    @model_validator(mode="after")
    def _groups_can_be_filled(self) -> PoolSpec:
        names = Counter(group.name for group in self.groups)
        twice = [name for name, count in names.items() if count > 1]
        if twice:
            raise ValueError(f"groups has {twice[0]} more than once: give each group a name of its own")
        for group, following in zip(self.groups, self.groups[1:], strict=False):
            if group.most is None:
                raise ValueError(
                    f"groups: {group.name} has no limit, so that {following.name} would never get a worker: "
                    f"set most of {group.name}, or put it last"
                )
        if not self.limits.has_room_for(self.replicas):
            raise ValueError(
                f"replicas is {self.replicas}, and its groups have room for {self.limits.capacity}: "
                "raise most of a group, leave it out of the last one, or lower replicas"
            )
        return self

    @model_validator(mode="after")
    def _groups_share_kv(self) -> PoolSpec:
        for group in self.groups:
            if group.engine.block_size != self.engine.block_size:
                raise ValueError(
                    f"groups: engine.block_size of {group.name} ({group.engine.block_size}) is not the pool's "
                    f"({self.engine.block_size}): its workers could not share KV; leave it out there"
                )
        return self


class Pools(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    prefill: PoolSpec = Field(default_factory=PoolSpec)
    decode: PoolSpec = Field(default_factory=PoolSpec)
    mixed: PoolSpec = Field(default_factory=PoolSpec)

    def of(self, role: WorkerRole) -> PoolSpec:
        return {"prefill": self.prefill, "decode": self.decode, "mixed": self.mixed}[role]
