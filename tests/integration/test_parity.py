"""Greedy text of the real model: prefill and decode apart = one worker alone = Hugging Face transformers.

Where the reference's two best logits are nearer than rounding, the first difference may be there; nowhere else.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from tests.integration.processes import Processes, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

BLOCK, CHUNK = 16, 256
LENGTHS = [1, BLOCK - 1, BLOCK, BLOCK + 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK]
NUM_TOKENS = 8
WAYS = ("apart, alone", "apart, crowded", "together, alone", "together, crowded")
NEARLY_TIED = 1e-3  # logits; fp32 rounding of differently shaped batches stays below


def make_prompts(folder: Path) -> list[list[int]]:
    """16 prompts of real text, each from another place: no two share a prefix."""
    root = Path(__file__).parents[2]
    text = "\n".join((root / name).read_text() for name in ("LICENSE", "pyproject.toml"))
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    rng = random.Random(7)
    lengths = [*LENGTHS, *rng.choices(range(2, 120), k=7), 1500]
    return [(ids[rng.randrange(len(ids)) :] + ids * 2)[:n] for n in lengths]


class Reference:
    """Hugging Face's greedy continuation, with the gap between its two best logits at each token."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(2)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    @torch.inference_mode()
    def __call__(self, prompt: list[int]) -> tuple[list[int], list[float]]:
        output = self._model.generate(
            torch.tensor([prompt]),
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            eos_token_id=None,
            output_logits=True,
            return_dict_in_generate=True,
        )
        best = [logits[0].topk(2).values for logits in output.logits]
        return output.sequences[0, len(prompt) :].tolist(), [float(b[0] - b[1]) for b in best]


@pytest.fixture(scope="module")
def cluster(real_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    processes = Processes(
        real_model, tmp_path_factory.mktemp("logs"), engine={"num_blocks": 400, "enable_prefix_caching": False}
    )
    try:
        processes.start_workers()
        processes.start_proxy()
        yield processes
    finally:
        processes.stop()


def generate(cluster: Processes, prompt: list[int], path: str) -> list[int]:
    ids, finished = cluster.generate(prompt, NUM_TOKENS)
    assert finished.path == path
    return ids


def same(ids: list[int], expected: list[int], gaps: list[float]) -> bool:
    differing = [i for i, (a, b) in enumerate(zip(ids, expected, strict=True)) if a != b]
    return not differing or gaps[differing[0]] < NEARLY_TIED


def alone_and_in_a_crowd(cluster: Processes, prompts: list[list[int]], path: str) -> list[tuple[list[int], list[int]]]:
    """Each prompt's tokens when it is the only one, and when 16 run at a time."""
    alone = [generate(cluster, prompt, path) for prompt in prompts]
    with ThreadPoolExecutor(16) as pool:
        crowded = list(pool.map(lambda prompt: generate(cluster, prompt, path), prompts))
    return list(zip(alone, crowded, strict=True))


def test_apart_is_together_is_the_reference_token_for_token(cluster: Processes, real_model: Path) -> None:
    prompts = make_prompts(real_model)
    apart = alone_and_in_a_crowd(cluster, prompts, "p2p")
    decode = cluster.worker("decode-0")
    assert decode.metric("pdserve_computed_tokens_total", kind="prefill") == 0
    received = decode.metric("pdserve_kv_transfer_tokens_total")
    assert received == 2 * sum(len(prompt) for prompt in prompts)

    cluster.controller.set_members([decode.member()])
    wait_until(lambda: cluster.generate([1, 2], 1)[1].path == "local", 10)
    together = alone_and_in_a_crowd(cluster, prompts, "local")

    reference = Reference(real_model)
    for prompt, ways in zip(prompts, zip(apart, together, strict=True), strict=True):
        expected, gaps = reference(prompt)
        for name, tokens in zip(
            ("apart", "apart, crowded", "together", "together, crowded"), sum(ways, ()), strict=True
        ):
            assert same(tokens, expected, gaps), f"{name}, length {len(prompt)}: {tokens} is not {expected} ({gaps})"
    cluster.wait_idle()
