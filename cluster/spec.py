"""What a cluster is to be: its model, its pools of workers, its proxy, and what each worker is started with.

Frozen and validated once, when the configuration is read; what a running cluster wishes changes in `cluster.fleet`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cluster.autoscale.spec import SCALED_ROLES, AutoscaleSpec
from cluster.group_limits import NO_GROUP, GroupLimits
from cluster.group_spec import lay_over
from cluster.kv_pool_spec import KVPoolSpec
from cluster.pool_node_spec import PoolNodeSpec
from cluster.pools_spec import Pools
from cluster.roles import ROLE_NAMES, RoleName, can_generate
from cluster.stuck_spec import StuckSpec
from cluster.worker_spec import WorkerSpec
from engine.config import EngineConfig
from kv_transfer.config import TransferConfig
from security.address import is_loopback
from telemetry.config import LogConfig, TracingConfig

ProcessSpec = WorkerSpec | PoolNodeSpec


class RestartSpec(BaseModel):
    """How a worker, or the proxy, that dies is replaced: each early death doubles the wait before the next start."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    first_delay_s: float = Field(0.5, ge=0)
    longest_delay_s: float = Field(30.0, ge=0)
    stable_after_s: float = Field(60.0, ge=0)  # a life this long is no early death
    max_failed_starts: int = Field(3, ge=1)  # in a row; then the worker is given up, its error kept


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
        return {**data, "pools": {name: lay_over(data.get("engine", {}), pool) for name, pool in pools.items()}}

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
    def _groups_have_room_to_scale(self) -> ClusterSpec:
        for role in SCALED_ROLES:
            limits, most = self.pools.of(role).limits, self.autoscale.limits(role).max
            if self.autoscale.enabled and not limits.has_room_for(most):
                raise ValueError(
                    f"autoscale.{role}.max is {most}, and pools.{role}.groups have room for {limits.capacity}: "
                    "lower it to that, or raise most of a group"
                )
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

    @property
    def group_limits(self) -> dict[RoleName, GroupLimits]:
        workers: dict[RoleName, GroupLimits] = {role: self.pools.of(role).limits for role in ROLE_NAMES}
        return {**workers, "pool": GroupLimits()}

    def process(
        self,
        name: str,
        role: RoleName,
        incarnation: str,
        model_dir: str,
        role_epoch: int = 1,
        group: str = NO_GROUP,
    ) -> ProcessSpec:
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
            group=group,
            role_epoch=role_epoch,
            incarnation=incarnation,
            model_dir=model_dir,
            model_name=self.model_name,
            host=self.host,
            tls=self.tls,
            engine=self.pools.of(role).engine_of(group),
            kv_transfer=self.kv_transfer,
            stuck=self.stuck,
            tracing=self.tracing,
            logs=self.logs,
            placement=self.pools.of(role).placement_of(group),
        )


class ProxySpec(BaseModel):
    """The proxy's process as the cluster sees it: a command and where it will listen."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: tuple[str, ...]
    grpc_address: str
    http_address: str
    logs: LogConfig = Field(default_factory=LogConfig)  # of the process that keeps it running
    stop_timeout_s: float = Field(35.0, gt=0)  # from SIGTERM to SIGKILL; beyond the proxy's own drain


class ControllerSettings(BaseModel):
    """What a controller is made of; the same for each of its restarts."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    spec: ClusterSpec
    model_dir: str
    proxy: ProxySpec | None  # None: it has none of its own
    log_dir: str
    state_dir: str  # survives the controller, not the cluster
