"""What a worker's KV is, known without its weights in memory: for a process that stores blocks and computes none."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from engine.config import EngineConfig
from engine.fake_runner import MODEL_TYPE, FakeModel
from engine.kv_cache import KVLayout
from engine.model_config import ModelConfig, model_fingerprint
from engine.torch_runner import kv_layout


@dataclass(frozen=True, slots=True)
class KVIdentity:
    """The same as that of an engine that `build_engine` makes of the same folder and configuration."""

    layout: KVLayout
    model_fingerprint: str

    @classmethod
    def of(cls, folder: Path, config: EngineConfig) -> KVIdentity:
        """Reads the weights once, where their fingerprint is not known yet. Raises `UnsupportedModelError`."""
        raw = json.loads((folder / "config.json").read_text())
        if raw.get("model_type") == MODEL_TYPE:
            fake = FakeModel(**raw["fake"])
            return cls(fake.layout(config.block_size), fake.info().fingerprint)
        return cls(kv_layout(ModelConfig.from_folder(folder), config), model_fingerprint(folder))
