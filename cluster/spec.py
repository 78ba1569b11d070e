"""What a cluster is to be: its model, its pools of workers, and what each worker is started with.

Frozen and validated once, when the configuration is read; a running cluster's wishes change in `cluster.fleet`, never here.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from engine.config import EngineConfig
from kv_transfer.config import TransferConfig

RoleName = Literal["prefill", "decode", "mixed"]


class WorkerSpec(BaseModel):
    """One start of one worker. `name` is stable, as in `decode-0`; `incarnation` is new with each start."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    name: str
    role: RoleName
    incarnation: str
    model_dir: str
    model_name: str  # as clients call it
    host: str  # its servers bind here, on ports the system picks, and peers reach it here
    engine: EngineConfig = Field(default_factory=EngineConfig)
    kv_transfer: TransferConfig = Field(default_factory=TransferConfig)
