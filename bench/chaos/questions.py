"""What a drill asks: greedy and seeded text, logprobs, stop strings, penalties, a JSON schema and calls of a function.

All answers are determined, so that each must come out as it did before anything was disturbed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from bench.load import WORDS

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "size": {"type": "integer", "minimum": 1, "maximum": 9999},
        "kind": {"enum": ["old", "new"]},
    },
    "required": ["name", "size", "kind"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look_up", "description": "Looks up a word.", "parameters": SCHEMA}}


@dataclass(frozen=True, slots=True)
class Question:
    path: str
    body: Mapping[str, Any]


def make_questions(model: str, number: int, rng: Random, num_tokens: int) -> list[Question]:
    """Of each kind about as many; `num_tokens`: of a free answer."""
    kinds = list(KINDS.values())
    return [kinds[n % len(kinds)](model, rng, num_tokens) for n in range(number)]


def _prompt(rng: Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.choice([1, 8, 20, 60, 120])))


def _completion(model: str, rng: Random, num_tokens: int, **fields: Any) -> Question:
    body = {"model": model, "prompt": _prompt(rng), "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    return Question(COMPLETIONS, {**body, **fields})


def _chat(model: str, rng: Random, **fields: Any) -> Question:
    messages = [{"role": "user", "content": f"Tell me about a {rng.choice(WORDS)} {rng.choice(WORDS)}."}]
    return Question(CHAT, {"model": model, "messages": messages, "temperature": 0, **fields})


def _greedy(model: str, rng: Random, num_tokens: int) -> Question:
    return _completion(model, rng, num_tokens)


def _seeded(model: str, rng: Random, num_tokens: int) -> Question:
    return _completion(model, rng, num_tokens, temperature=0.8, top_p=0.95, seed=rng.randrange(2**32))


def _with_logprobs(model: str, rng: Random, num_tokens: int) -> Question:
    return _completion(model, rng, num_tokens, logprobs=2)


def _with_stop(model: str, rng: Random, num_tokens: int) -> Question:
    return _completion(
        model, rng, num_tokens, stop=[" the", "ing ", "\n\n"], temperature=0.7, seed=rng.randrange(2**32)
    )


def _with_penalties(model: str, rng: Random, num_tokens: int) -> Question:
    return _completion(model, rng, num_tokens, frequency_penalty=0.8, presence_penalty=0.4, repetition_penalty=1.2)


def _json(model: str, rng: Random, num_tokens: int) -> Question:
    wanted = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}
    return _chat(model, rng, max_tokens=4 * num_tokens, response_format=wanted)


def _call(model: str, rng: Random, num_tokens: int) -> Question:
    return _chat(model, rng, max_tokens=4 * num_tokens, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)


KINDS: dict[str, Callable[[str, Random, int], Question]] = {
    "greedy": _greedy,
    "seeded": _seeded,
    "logprobs": _with_logprobs,
    "stop": _with_stop,
    "penalties": _with_penalties,
    "json": _json,
    "tool call": _call,
}
