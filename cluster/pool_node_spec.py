"""What one node of the KV pool is started with: frozen and whole, as a worker's."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from cluster.placement_spec import PlacementSpec
from engine.config import EngineConfig
from kv_transfer.config import TransferConfig
from kv_transfer.pool_config import PoolConfig
from telemetry.config import LogConfig


class PoolNodeSpec(BaseModel):
    """One start of one node of the KV pool, which is empty then."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    name: str
    role: Literal["pool"] = "pool"
    group: Literal[""] = ""
    role_epoch: Literal[1] = 1
    incarnation: str
    model_dir: str
    model_name: str
    host: str
    tls: Path | None = None
    engine: EngineConfig = Field(default_factory=EngineConfig)  # of the workers whose blocks it keeps
    kv_transfer: TransferConfig = Field(default_factory=TransferConfig)
    logs: LogConfig = Field(default_factory=LogConfig)
    pool: PoolConfig
    placement: PlacementSpec = Field(default_factory=PlacementSpec)

    def can_become(self, _next_spec: BaseModel) -> bool:
        return False

    @property
    def holds(self) -> dict[str, float]:
        return dict(self.placement.resources)

    @property
    def pairs_on_node(self) -> bool:
        return False
