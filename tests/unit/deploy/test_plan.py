"""A plan's arithmetic: the engine's own figures, laws that must hold, and what cannot be done told with the way out."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy.cli import app
from deploy.errors import CommandError
from deploy.plan.hardware import HARDWARE
from deploy.plan.model_size import ModelSize
from deploy.plan.plan import Plan, PlanError, Traffic, make_plan
from deploy.plan.report import lines
from engine.kv_cache import KVLayout
from engine.model_config import ModelConfig

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "eos_token_id": 128001,
}  # fmt: skip
CHATS = Traffic(requests_s=20, prompt_tokens=1000, output_tokens=200, cached_share=0, ttft_s=1, tpot_s=0.05)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    return tmp_path


@pytest.fixture
def llama(folder: Path) -> ModelSize:
    return ModelSize.of(ModelConfig.from_folder(folder), "bfloat16")


def planned(model: ModelSize, traffic: Traffic = CHATS, hardware: str = "h100") -> Plan:
    return make_plan(model, HARDWARE[hardware], traffic, block_size=16, chunk=256)


def test_a_model_s_size_is_the_published_one(llama: ModelSize) -> None:
    assert llama.parameters == 8_030_261_248
    assert llama.kv_bytes == 128 * 1024


def test_a_block_is_as_large_as_the_engine_makes_it(llama: ModelSize) -> None:
    assert planned(llama).block_bytes == KVLayout(32, 8, 16, 128, "bfloat16").block_bytes


def test_weights_and_blocks_fill_the_usable_memory_and_no_more(llama: ModelSize) -> None:
    plan, hardware = planned(llama), HARDWARE["h100"]
    left = hardware.usable_bytes - llama.weight_bytes - plan.num_blocks * plan.block_bytes
    assert 0 <= left < plan.block_bytes


def test_a_prompt_costs_its_parts_however_it_is_cut(llama: ModelSize) -> None:
    head = 2 * llama.head_parameters
    parts = llama.prompt_operations(600) + llama.prompt_operations(1000, 600) - head
    assert llama.prompt_operations(1000) == parts


def test_longer_prompts_move_the_ratio_towards_prefill(llama: ModelSize) -> None:
    chats = planned(llama)
    code = planned(llama, replace(CHATS, prompt_tokens=4000, output_tokens=20))
    assert code.num_prefill / code.num_decode > chats.num_prefill / chats.num_decode


def test_the_goals_are_met_with_room_to_spare(llama: ModelSize) -> None:
    for rate in (0.1, 5, 80, 400):
        plan = planned(llama, replace(CHATS, requests_s=rate))
        assert plan.ttft_s <= CHATS.ttft_s
        assert plan.step_s <= CHATS.tpot_s
        assert plan.prefill_busy <= 0.7
        assert plan.num_running <= 0.8 * plan.max_num_seqs


def test_one_worker_fewer_of_either_kind_would_not_do(llama: ModelSize) -> None:
    traffic = replace(CHATS, requests_s=200)
    plan = planned(llama, traffic)
    assert plan.num_prefill > 1
    assert traffic.requests_s * plan.prompt_s / (plan.num_prefill - 1) > 0.7
    assert plan.num_running * plan.num_decode / plan.step_s >= traffic.requests_s * traffic.output_tokens


def test_cached_prompts_need_fewer_prefill_workers(llama: ModelSize) -> None:
    busy = replace(CHATS, requests_s=200)
    assert planned(llama, replace(busy, cached_share=0.8)).num_prefill < planned(llama, busy).num_prefill


@pytest.mark.parametrize(
    ("changes", "hardware", "way_out"),
    [
        ({"prompt_tokens": 9000}, "h100", "lower --prompt-tokens"),
        ({}, "cpu-core", "set --memory-gib"),
        ({"ttft_s": 0.01}, "h100", "meets --ttft 0.01; raise it"),
        ({"tpot_s": 0.001}, "h100", "meets --tpot 0.001; raise it"),
        ({"requests_s": 1e6}, "h100", "lower --rate"),
    ],
)
def test_what_cannot_be_done_names_the_option_to_change(
    llama: ModelSize, changes: dict[str, float], hardware: str, way_out: str
) -> None:
    with pytest.raises(PlanError, match=re.escape(way_out)):
        planned(llama, replace(CHATS, **changes), hardware)  # type: ignore[arg-type]


def test_the_report_shows_its_arithmetic_and_a_command(llama: ModelSize) -> None:
    plan = planned(llama)
    text = "\n".join(lines("llama", llama, HARDWARE["h100"], CHATS, plan, 16))
    assert "65,536 × 2 B = 128 KiB a token" in text
    assert "16 tokens × 128 KiB = 2048 KiB" in text
    assert f"pdserve up --prefill {plan.num_prefill} --decode {plan.num_decode}" in text
    assert f"num_blocks={plan.num_blocks}" in text


def test_the_command_plans_from_a_config_json_alone(folder: Path) -> None:
    options = ["--hardware", "h200", "--rate", "20", "--prompt-tokens", "1000", "--json"]
    result = CliRunner().invoke(app, ["plan", str(folder), *options])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["kv_bytes_per_token"] == 128 * 1024


def test_the_command_takes_the_user_s_own_figures(folder: Path) -> None:
    runner = CliRunner()
    narrow = runner.invoke(app, ["plan", str(folder), "--hardware", "h100", "--memory-gib", "24", "--json"])
    assert json.loads(narrow.output)["num_blocks"] < 10_000


@pytest.mark.parametrize("option", ["--hardware", "--dtype"])
def test_an_unknown_name_is_answered_with_the_known_ones(folder: Path, option: str) -> None:
    result = CliRunner().invoke(app, ["plan", str(folder), "--hardware", "h100", option, "x"])
    assert isinstance(result.exception, CommandError)
    assert str(result.exception).startswith(f"{option} x: it is one of ")


def test_a_model_that_the_engine_does_not_compute_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_8B, "architectures": ["MixtralForCausalLM"]}))
    result = CliRunner().invoke(app, ["plan", str(tmp_path)])
    assert isinstance(result.exception, CommandError)
