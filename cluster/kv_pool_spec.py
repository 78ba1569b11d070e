"""The nodes of the KV pool, as a cluster's configuration has them: how many, and what each may keep."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cluster.placement_spec import PlacementSpec
from kv_transfer.pool_config import PoolConfig

GIB = 1 << 30


class KVPoolSpec(BaseModel):
    """The nodes that keep KV for every worker. `ram_gib` and `disk_gib` are each node's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nodes: int = Field(0, ge=0, le=64)
    ram_gib: float = Field(0.5, gt=0)
    disk_gib: float = Field(0.0, ge=0)  # 0: no tier below the memory
    disk_dir: Path | None = None  # this cluster's alone, on every machine; a node empties its folder in it
    watermark: float = Field(0.9, gt=0, le=1)  # the share of its memory above which a node evicts ahead
    placement: PlacementSpec = Field(default_factory=PlacementSpec)

    @model_validator(mode="after")
    def _disk_has_a_place(self) -> KVPoolSpec:
        if self.disk_gib and self.disk_dir is None:
            raise ValueError(f"disk_gib is {self.disk_gib:g} and disk_dir is not set: say where, or set disk_gib to 0")
        if self.disk_dir is not None and not self.disk_dir.is_absolute():
            raise ValueError(f"disk_dir is {self.disk_dir}: write the whole path, since nodes start elsewhere")
        return self

    def node_config(self) -> PoolConfig:
        return PoolConfig(
            ram_bytes=int(self.ram_gib * GIB),
            disk_bytes=int(self.disk_gib * GIB),
            disk_dir=self.disk_dir,
            watermark=self.watermark,
        )
