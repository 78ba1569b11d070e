"""From a model folder and a configuration to an engine."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from engine.config import EngineConfig
from engine.engine import Engine, ModelInfo
from engine.fake_runner import EOS_TOKEN_ID, MODEL_TYPE, load_fake_runner
from engine.grammar import Grammars
from engine.model import Model
from engine.model_config import ModelConfig, UnsupportedModelError, model_fingerprint
from engine.torch_runner import TorchRunner, load_torch_runner


def build_engine(folder: Path, config: EngineConfig, loaded: Model | None = None) -> Engine:
    """Loads the weights and makes the cache. Raises `UnsupportedModelError` for a model it cannot compute.

    `loaded`: what `model_of` kept of an engine of the same folder, to be used instead of reading it again.
    """
    torch.set_num_threads(config.threads)
    if json.loads((folder / "config.json").read_text()).get("model_type") == MODEL_TYPE:
        grammars = Grammars(folder, {EOS_TOKEN_ID})
        fake, info = load_fake_runner(folder, config, grammars)
        return Engine(config, info, fake, fake.cache, grammars)
    model = ModelConfig.from_folder(folder)
    max_model_len = config.max_model_len or model.max_model_len
    if max_model_len > model.max_model_len:
        raise UnsupportedModelError(
            f"max_model_len ({max_model_len}) is above the model's own context ({model.max_model_len}): lower it"
        )
    grammars = Grammars(folder, model.eos_token_ids)
    runner = load_torch_runner(folder, config, grammars, loaded=loaded)
    info = ModelInfo(model_fingerprint(folder), max_model_len, model.vocab_size, frozenset(model.eos_token_ids))
    return Engine(config, info, runner, runner.cache, grammars)


def model_of(engine: Engine) -> Model | None:
    """The weights of an engine that has ended, without its cache; None when it has none, as the fake runner."""
    return engine.runner.model if isinstance(engine.runner, TorchRunner) else None
