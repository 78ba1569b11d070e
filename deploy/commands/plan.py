"""`pdserve plan`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console

from deploy.errors import CommandError
from deploy.model_store import default_cache_dir, resolve_model
from deploy.plan.hardware import HARDWARE, Hardware
from deploy.plan.model_size import DTYPE_BYTES, ModelSize
from deploy.plan.plan import Traffic, make_plan
from deploy.plan.report import lines
from engine.config import EngineConfig
from engine.model_config import ModelConfig, UnsupportedModelError


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What is None is the hardware's own."""

    model: str  # as in cluster.model, or a config.json
    hardware: str
    traffic: Traffic
    memory_gib: float | None
    link_gb_s: float | None
    compute_share: float | None
    memory_share: float | None
    dtype: str | None
    as_json: bool


def run(options: PlanOptions) -> None:
    hardware = _hardware(options)
    model = ModelSize.of(_model(options.model), hardware.dtype)
    engine = EngineConfig()
    chunk = engine.scheduling.prefill_chunk_size
    plan = make_plan(model, hardware, options.traffic, engine.block_size, chunk)
    if options.as_json:
        print(json.dumps({**asdict(plan), "max_num_seqs": plan.max_num_seqs, "kv_bytes_per_token": model.kv_bytes}))
        return
    console = Console(highlight=False)
    for line in lines(options.model, model, hardware, options.traffic, plan, engine.block_size):
        console.print(line, markup=False, soft_wrap=True, style=None if line.startswith(" ") else "bold")


def _hardware(options: PlanOptions) -> Hardware:
    known = HARDWARE.get(options.hardware)
    if known is None:
        raise CommandError(f"--hardware {options.hardware}: it is one of {', '.join(HARDWARE)}")
    if options.dtype is not None and options.dtype not in DTYPE_BYTES:
        raise CommandError(f"--dtype {options.dtype}: it is one of {', '.join(DTYPE_BYTES)}")
    own = {
        "memory_gib": options.memory_gib,
        "link_gb_s": options.link_gb_s,
        "compute_share": options.compute_share,
        "memory_share": options.memory_share,
        "dtype": options.dtype,
    }
    return replace(known, **{name: value for name, value in own.items() if value is not None})  # type: ignore[arg-type]


def _model(model: str) -> ModelConfig:
    """A folder with nothing but a config.json is enough."""
    try:
        return ModelConfig.from_folder(resolve_model(model, default_cache_dir(os.environ)))
    except UnsupportedModelError as error:
        raise CommandError(f"{Path(model)}: {error}") from error
