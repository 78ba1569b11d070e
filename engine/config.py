"""The engine's settings, validated once, at the edge; every message names the field and the fix."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from engine.scheduling import SchedulingConfig


class EngineConfig(BaseModel):
    """One model on one device."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: str = "cpu"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"  # auto: float32 on CPU, bfloat16 on a GPU
    max_model_len: int | None = Field(None, ge=2)  # tokens; None: the model's own context
    block_size: int = Field(16, ge=1, le=256)  # tokens
    num_blocks: int = Field(1024, ge=2)
    enable_prefix_caching: bool = True
    scheduling: SchedulingConfig = Field(default_factory=SchedulingConfig)
    threads: int = Field(1, ge=1)  # torch threads of this worker
    trace_steps: int = Field(4096, ge=0)  # the newest steps that are kept for `pdserve trace`; 0: none
    tensor_parallel_size: int = 1

    @field_validator("device")
    @classmethod
    def _is_device(cls, device: str) -> str:
        if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
            raise ValueError(f"{device!r} is no device: set cpu, cuda, or cuda:N as in cuda:0")
        return device

    @model_validator(mode="after")
    def _one_device(self) -> EngineConfig:
        if self.tensor_parallel_size != 1:
            raise ValueError("tensor_parallel_size is not supported yet: set it to 1")
        return self
