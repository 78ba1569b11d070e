"""What the autoscaler is told: the targets of each class, the limits of each pool, and how soon it may act.

Frozen and validated once, with the cluster's other settings.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

ScaledRole = Literal["prefill", "decode"]
SCALED_ROLES: tuple[ScaledRole, ...] = ("prefill", "decode")


class ClassTargets(BaseModel):
    """Of one class of requests; None: it has no such target."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ttft_s: float | None = Field(None, gt=0)  # admission to first token
    tpot_s: float | None = Field(None, gt=0)  # a request's mean time of each token after the first


class Targets(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    interactive: ClassTargets = Field(default_factory=lambda: ClassTargets(ttft_s=1.0, tpot_s=0.1))
    batch: ClassTargets = Field(default_factory=ClassTargets)

    def of(self, priority: str) -> ClassTargets:
        return self.batch if priority == "batch" else self.interactive


class PoolLimits(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    min: int = Field(1, ge=1, le=64)
    max: int = Field(4, ge=1, le=64)

    @model_validator(mode="after")
    def _in_order(self) -> PoolLimits:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}: set min to at most max")
        return self

    def within(self, num_workers: int) -> int:
        return max(self.min, min(self.max, num_workers))


class AutoscaleSpec(BaseModel):
    """Off unless `enabled`. The times are meant for minutes of load, not for single requests."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = False
    targets: Targets = Field(default_factory=Targets)
    quantile: float = Field(0.9, gt=0, lt=1)  # of requests that a target is held for
    prefill: PoolLimits = Field(default_factory=PoolLimits)
    decode: PoolLimits = Field(default_factory=PoolLimits)
    max_workers: int | None = Field(None, ge=2, le=128)  # of both pools together
    role_change: bool = True  # a worker that one pool can spare goes to the other that lacks one
    headroom: float = Field(0.25, ge=0, lt=1)  # share of a pool that is left free when it is as large as needed
    kv_usage: float = Field(0.8, gt=0, le=1)  # of the decode workers' blocks: above it more workers are needed
    tolerance: float = Field(0.1, ge=0, lt=1)  # what the need may differ from a pool's size before anything happens
    every_s: float = Field(5.0, gt=0)  # between two looks; also how often proxies report
    window_s: float = Field(30.0, gt=0)  # of traffic that a look is based on
    up_after_s: float = Field(30.0, ge=0)  # that a lack must last
    down_after_s: float = Field(180.0, ge=0)  # that an excess must last
    cooldown_s: float = Field(60.0, ge=0)  # after a pool's change, once its workers are ready

    def limits(self, role: ScaledRole) -> PoolLimits:
        return self.prefill if role == "prefill" else self.decode

    @model_validator(mode="after")
    def _sees_enough(self) -> AutoscaleSpec:
        if self.window_s < 2 * self.every_s:
            raise ValueError(
                f"window_s {self.window_s:g} holds less than two looks of every_s {self.every_s:g}: "
                "set it to at least twice every_s"
            )
        if self.max_workers is not None and self.max_workers < self.prefill.min + self.decode.min:
            raise ValueError(
                f"max_workers {self.max_workers} is less than prefill.min + decode.min, "
                f"{self.prefill.min + self.decode.min}: raise it or lower those"
            )
        return self

    def check(self, prefill: int, decode: int, mixed: int) -> None:
        """Raises ValueError when pools of these sizes cannot be scaled so."""
        if not self.enabled:
            return
        if mixed:
            raise ValueError(
                "autoscale.enabled scales prefill and decode workers, and pools.mixed.replicas is "
                f"{mixed}: set it to 0, or autoscale.enabled to false"
            )
        sizes: dict[ScaledRole, int] = {"prefill": prefill, "decode": decode}
        for role, size in sizes.items():
            limits = self.limits(role)
            if not limits.min <= size <= limits.max:
                raise ValueError(
                    f"pools.{role}.replicas {size} is not from autoscale.{role}.min {limits.min} to "
                    f"max {limits.max}: set it between them, or change them"
                )
        if self.max_workers is not None and prefill + decode > self.max_workers:
            raise ValueError(
                f"pools.prefill.replicas + pools.decode.replicas is {prefill + decode}, above autoscale.max_workers "
                f"{self.max_workers}: start fewer, or raise it"
            )
