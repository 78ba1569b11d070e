"""A decode worker that dies in the middle of answers of every kind: another goes on, and each comes out the same."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.chaos.answer import Answer, ask
from bench.chaos.questions import CHAT, COMPLETIONS, SCHEMA, TOOL, Question
from bench.fake_model import write_fake_model
from engine.fake_runner import FakeModel
from tests.integration.processes import Processes, metric_value

pytestmark = pytest.mark.integration

PATIENCE_S = 120.0
NUM_TOKENS = 20


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.long)])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Processes]:
    """The proxy does not know the second decode worker yet."""
    is_fake = request.param == "fake"
    paced = FakeModel(seconds_per_step=0.02)
    folder = write_fake_model(tmp_path / "model", paced) if is_fake else request.getfixturevalue("real_model")
    with Processes(folder, tmp_path, engine={"num_blocks": 128}) as processes:
        processes.start_workers(prefill=1, decode=2)
        processes.controller.set_members([w.member() for w in processes.workers if w.name != "decode-1"])
        processes.start_proxy()
        yield processes


def completion(**fields: Any) -> Question:
    body = {"model": "test", "prompt": "Once upon a time", "max_tokens": NUM_TOKENS, "temperature": 0}
    return Question(COMPLETIONS, {**body, "ignore_eos": True, **fields})


def chat(**fields: Any) -> Question:
    messages = [{"role": "user", "content": "Describe the city of Paris."}]
    return Question(CHAT, {"model": "test", "messages": messages, "temperature": 0, "max_tokens": 200, **fields})


QUESTIONS = {
    "greedy": completion(),
    "seeded": completion(temperature=0.9, top_p=0.95, seed=7),
    "logprobs": completion(logprobs=2),
    "penalties": completion(frequency_penalty=0.8, presence_penalty=0.4, repetition_penalty=1.2),
    "min_tokens and bias": completion(ignore_eos=False, min_tokens=NUM_TOKENS, logit_bias={"28": -5}),
    "choices": completion(n=2, temperature=0.9, seed=3),
    "schema": chat(response_format={"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}),
    "tool call": chat(tools=[TOOL], tool_choice="required", parallel_tool_calls=False),
}


async def test_an_answer_of_any_kind_goes_on_where_its_decode_worker_died(cluster: Processes) -> None:
    """Field report D22: neither text nor counted tokens come twice."""
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        undisturbed = {kind: await ask(client, cluster.http, each, streams=True) for kind, each in QUESTIONS.items()}
        late = undisturbed["greedy"].texts[0][-16:-8]  # a stop string across tokens, met after the move
        questions = {**QUESTIONS, "stop": completion(stop=[late])}
        undisturbed["stop"] = await ask(client, cluster.http, questions["stop"], streams=True)
        moved = await disturbed(client, cluster, questions)
    for kind, answer in moved.items():
        assert answer == undisturbed[kind], kind
    assert metric_value(f"{cluster.http}/metrics", "pdserve_migrations_total") >= len(questions) - 1
    cluster.wait_idle()


async def disturbed(client: httpx.AsyncClient, cluster: Processes, questions: dict[str, Question]) -> dict[str, Answer]:
    """The same streams at once; their decode worker is killed when each of them has begun."""
    speaker = cluster.worker("decode-0")
    begun: set[str] = set()
    all_begun = asyncio.Event()

    def on_piece(kind: str) -> None:
        begun.add(kind)
        if len(begun) == len(questions):
            all_begun.set()

    async def one(kind: str, question: Question) -> Answer:
        return await ask(client, cluster.http, question, streams=True, on_piece=lambda: on_piece(kind))

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        asking = {kind: group.create_task(one(kind, question)) for kind, question in questions.items()}
        await all_begun.wait()
        speaker.signal(signal.SIGSTOP)
        cluster.publish()
        await asyncio.to_thread(speaker.kill)
    return {kind: task.result() for kind, task in asking.items()}
