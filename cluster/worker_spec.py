"""What one worker is started with: frozen, and whole, so that nothing else need be known where it starts."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from cluster.group_limits import NO_GROUP
from cluster.placement_spec import GPU, PlacementSpec
from cluster.roles import WorkerRole
from cluster.stuck_spec import StuckSpec
from engine.config import EngineConfig
from kv_transfer.config import TransferConfig
from telemetry.config import LogConfig, TracingConfig


class WorkerSpec(BaseModel):
    """One start of one worker. `name` is stable, as in `decode-0`; `incarnation` is new with each start."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    name: str
    role: WorkerRole
    group: str = NO_GROUP  # of its pool
    role_epoch: int = 1  # grows with each change of the role that this name has
    incarnation: str
    model_dir: str
    model_name: str  # as clients call it
    host: str  # its servers bind here, on ports the system picks, and peers reach it here
    tls: Path | None = None  # folder of the cluster's certificates; None: all is plain
    engine: EngineConfig = Field(default_factory=EngineConfig)
    kv_transfer: TransferConfig = Field(default_factory=TransferConfig)
    stuck: StuckSpec = Field(default_factory=StuckSpec)
    tracing: TracingConfig = Field(default_factory=TracingConfig)
    logs: LogConfig = Field(default_factory=LogConfig)
    placement: PlacementSpec = Field(default_factory=PlacementSpec)

    @property
    def holds(self) -> dict[str, float]:
        """What it takes of its machine, by Ray's names."""
        return {GPU: 1.0, **self.placement.resources} if self.uses_gpu else dict(self.placement.resources)

    def can_become(self, next_spec: BaseModel) -> bool:
        """Whether the process of a worker with this spec could go on as the other: the same model at the same place."""
        if not isinstance(next_spec, WorkerSpec):
            return False
        mine = (self.name, self.model_dir, self.engine.device, self.placement)
        return mine == (next_spec.name, next_spec.model_dir, next_spec.engine.device, next_spec.placement)

    @property
    def uses_gpu(self) -> bool:
        return self.engine.device.startswith("cuda")

    @property
    def pairs_on_node(self) -> bool:
        """Whether it is better placed beside a worker that it hands KV to, or takes it from."""
        if self.placement.affinity != "auto":
            return self.placement.affinity == "pair"
        transports = self.kv_transfer.transports
        return self.uses_gpu and (transports == "auto" or "nccl" in transports)
