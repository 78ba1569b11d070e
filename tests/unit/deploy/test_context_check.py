"""A strategy that cannot serve the model is refused before a process is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.config import DEFAULT_FILE, load
from deploy.context_check import ContextError, check_context


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 8192}))
    return tmp_path


def test_a_budget_below_the_model_s_context_is_refused_where_prompts_stay_whole(model_dir: Path) -> None:
    spec = load(DEFAULT_FILE, {"cluster.pools.prefill.engine.scheduling.strategy": "static"}).cluster
    with pytest.raises(ContextError, match=r"the prefill workers' engine.scheduling: strategy static .* at least 8192"):
        check_context(spec, model_dir)


def test_a_shorter_context_or_prompts_in_chunks_pass(model_dir: Path) -> None:
    check_context(load(DEFAULT_FILE, {}).cluster, model_dir)
    settings = {"cluster.engine.scheduling.strategy": "static", "cluster.engine.max_model_len": 512}
    check_context(load(DEFAULT_FILE, settings).cluster, model_dir)


def test_a_group_that_has_no_worker_yet_is_checked_too(model_dir: Path) -> None:
    groups = [{"name": "a", "most": 1}, {"name": "b", "engine": {"scheduling": {"strategy": "static"}}}]
    spec = load(DEFAULT_FILE, {"cluster.pools.decode.groups": groups}).cluster
    with pytest.raises(ContextError, match=r"the decode workers' engine.scheduling of group b: strategy static"):
        check_context(spec, model_dir)
