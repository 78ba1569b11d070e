"""What a cluster is to be: its model, its pools of workers, its proxy, and what each worker is started with.

Frozen and validated once, when the configuration is read; what a running cluster wishes changes in `cluster.fleet`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cluster.autoscale.spec import AutoscaleSpec
from cluster.kv_pool_spec import KVPoolSpec
from cluster.placement_spec import GPU, PlacementSpec
from cluster.stuck_spec import StuckSpec
from engine.config import EngineConfig
from kv_transfer.config import TransferConfig
from kv_transfer.pool_config import PoolConfig
from rpc import worker_pb2
from security.address import is_loopback
from telemetry.config import LogConfig, TracingConfig

WorkerRole = Literal["prefill", "decode", "mixed"]
RoleName = Literal["prefill", "decode", "mixed", "pool"]  # a pool node is started and watched as workers are
ROLE_NAMES: tuple[WorkerRole, ...] = ("prefill", "decode", "mixed")
ROLES: dict[RoleName, worker_pb2.Role] = {
    "prefill": worker_pb2.ROLE_PREFILL,
    "decode": worker_pb2.ROLE_DECODE,
    "mixed": worker_pb2.ROLE_MIXED,
    "pool": worker_pb2.ROLE_POOL,
}


def can_generate(replicas: Mapping[RoleName, int]) -> bool:
    """Whether a cluster of these pools could answer anybody."""
    return replicas["decode"] + replicas["mixed"] > 0


class WorkerSpec(BaseModel):
    """One start of one worker. `name` is stable, as in `decode-0`; `incarnation` is new with each start."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    name: str
    role: WorkerRole
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

    def can_become(self, next_spec: ProcessSpec) -> bool:
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


class PoolNodeSpec(BaseModel):
    """One start of one node of the KV pool, which is empty then."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    name: str
    role: Literal["pool"] = "pool"
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

    def can_become(self, _next_spec: ProcessSpec) -> bool:
        return False

    @property
    def holds(self) -> dict[str, float]:
        return dict(self.placement.resources)

    @property
    def pairs_on_node(self) -> bool:
        return False


ProcessSpec = WorkerSpec | PoolNodeSpec


class RestartSpec(BaseModel):
    """How a worker, or the proxy, that dies is replaced: each early death doubles the wait before the next start."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    first_delay_s: float = Field(0.5, ge=0)
    longest_delay_s: float = Field(30.0, ge=0)
    stable_after_s: float = Field(60.0, ge=0)  # a life this long is no early death
    max_failed_starts: int = Field(3, ge=1)  # in a row; then the worker is given up, its error kept


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


class ClusterSpec(BaseModel):
    """Everything the controller needs, besides where the model's folder is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = "smollm2-135m-instruct"  # that name, a Hugging Face folder, or a hub id
    served_name: str | None = None  # as clients call it; None: the last part of `model`
    host: str = "127.0.0.1"  # the controller listens here, and workers: on other machines at their own address
    num_nodes: int = Field(1, ge=1, le=64)  # machines: nothing starts before so many are there
    starts_proxy: bool = True  # False: proxies start elsewhere, with `python -m proxy --controller HOST:PORT`
    controller_port: int = Field(8002, ge=0, le=65535)  # 0: a free one, found at launch
    tls: Path | None = None  # folder that `pdserve certs` made, the same on every machine; None: all is plain
    pools: Pools = Field(default_factory=Pools)
    engine: EngineConfig = Field(default_factory=EngineConfig)  # of every pool, unless the pool says otherwise
    kv_transfer: TransferConfig = Field(default_factory=TransferConfig)
    kv_pool: KVPoolSpec = Field(default_factory=KVPoolSpec)
    autoscale: AutoscaleSpec = Field(default_factory=AutoscaleSpec)
    start_timeout_s: float = Field(300.0, gt=0)  # for one worker, its model loaded and its ports open
    drain_timeout_s: float = Field(30.0, ge=0)  # what runs may finish so long when a worker leaves
    restart: RestartSpec = Field(default_factory=RestartSpec)
    stuck: StuckSpec = Field(default_factory=StuckSpec)
    logs: LogConfig = Field(default_factory=LogConfig)  # of every process, the proxy too, as the next one
    tracing: TracingConfig = Field(default_factory=TracingConfig)

    @model_validator(mode="before")
    @classmethod
    def _lay_pools_over_engine(cls, data: object) -> object:
        """Pool by pool, `engine` becomes the cluster's with the pool's own fields over it."""
        if not isinstance(data, Mapping) or not isinstance(data.get("pools", {}), Mapping):
            return data
        pools = {**{role: {} for role in ROLE_NAMES}, **data.get("pools", {})}
        return {**data, "pools": {name: _laid_over(data.get("engine", {}), pool) for name, pool in pools.items()}}

    @model_validator(mode="after")
    def _can_serve(self) -> ClusterSpec:
        pools = self.pools
        if not can_generate(self.desired):
            raise ValueError("pools has no worker that generates: set pools.decode.replicas or pools.mixed.replicas")
        if pools.decode.engine.block_size != pools.prefill.engine.block_size:
            raise ValueError(
                f"pools.prefill.engine.block_size ({pools.prefill.engine.block_size}) is not that of pools.decode "
                f"({pools.decode.engine.block_size}): the two could not share KV; set them equal"
            )
        self.autoscale.check(pools.prefill.replicas, pools.decode.replicas, pools.mixed.replicas)
        return self

    @model_validator(mode="after")
    def _can_be_reached(self) -> ClusterSpec:
        if self.num_nodes > 1 and is_loopback(self.host):
            raise ValueError(
                f"num_nodes is {self.num_nodes} and host is {self.host}, which no other machine can reach: "
                "set host to this machine's own address"
            )
        return self

    @model_validator(mode="after")
    def _tls_is_a_whole_path(self) -> ClusterSpec:
        if self.tls is not None and not self.tls.is_absolute():
            raise ValueError(f"tls is {self.tls}: write the whole path, since processes start elsewhere")
        return self

    @property
    def model_name(self) -> str:
        return self.served_name or self.model.rstrip("/").rsplit("/", 1)[-1]

    @property
    def desired(self) -> dict[RoleName, int]:
        workers: dict[RoleName, int] = {role: self.pools.of(role).replicas for role in ROLE_NAMES}
        return {**workers, "pool": self.kv_pool.nodes}

    def process(self, name: str, role: RoleName, incarnation: str, model_dir: str, role_epoch: int = 1) -> ProcessSpec:
        if role == "pool":
            return PoolNodeSpec(
                name=name,
                incarnation=incarnation,
                model_dir=model_dir,
                model_name=self.model_name,
                host=self.host,
                tls=self.tls,
                engine=self.pools.prefill.engine,
                kv_transfer=self.kv_transfer,
                logs=self.logs,
                pool=self.kv_pool.node_config(),
                placement=self.kv_pool.placement,
            )
        return WorkerSpec(
            name=name,
            role=role,
            role_epoch=role_epoch,
            incarnation=incarnation,
            model_dir=model_dir,
            model_name=self.model_name,
            host=self.host,
            tls=self.tls,
            engine=self.pools.of(role).engine,
            kv_transfer=self.kv_transfer,
            stuck=self.stuck,
            tracing=self.tracing,
            logs=self.logs,
            placement=self.pools.of(role).placement,
        )


class ProxySpec(BaseModel):
    """The proxy's process as the cluster sees it: a command and where it will listen."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: tuple[str, ...]
    grpc_address: str
    http_address: str
    logs: LogConfig = Field(default_factory=LogConfig)  # of the process that keeps it running
    stop_timeout_s: float = Field(35.0, gt=0)  # from SIGTERM to SIGKILL; beyond the proxy's own drain


def _laid_over(engine: object, pool: object) -> object:
    if not isinstance(engine, Mapping) or not isinstance(pool, Mapping):
        return pool  # wrong types: validation names them
    own = pool.get("engine", {})
    if not isinstance(own, Mapping):
        return pool
    laid = {**engine, **own}
    if isinstance(engine.get("scheduling"), Mapping) and isinstance(own.get("scheduling"), Mapping):
        laid["scheduling"] = {**engine["scheduling"], **own["scheduling"]}
    return {**pool, "engine": laid}


class ControllerSettings(BaseModel):
    """What a controller is made of; the same for each of its restarts."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    spec: ClusterSpec
    model_dir: str
    proxy: ProxySpec | None  # None: it has none of its own
    log_dir: str
    state_dir: str  # survives the controller, not the cluster
