"""Engine settings for tests, named without saying which part of the configuration has them."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.scheduling import SchedulingConfig


def engine_config(**fields: object) -> EngineConfig:
    scheduling = {name: fields.pop(name) for name in list(fields) if name in SchedulingConfig.model_fields}
    return EngineConfig.model_validate({**fields, "scheduling": scheduling})
