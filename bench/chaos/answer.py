"""An answer as a client puts it together, the same whether it was streamed or came whole."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from bench.chaos.questions import Question


class Refused(Exception):
    """No answer, or one that broke off with an error; the message is the server's."""


@dataclass(slots=True)
class Answer:
    """Equal answers said the same, for the same reason, and counted the same tokens."""

    texts: dict[int, str] = field(default_factory=dict)  # by choice, whose pieces may come in any order
    calls: str = ""  # names and arguments of functions
    reason: str | None = None
    usage: tuple[int, int] | None = None  # prompt and completion tokens
    logprobs: list[tuple[str, float]] = field(default_factory=list)  # rounded: batches differ in the last digits


async def ask(
    client: httpx.AsyncClient,
    url: str,
    question: Question,
    *,
    streams: bool,
    on_piece: Callable[[], None] = lambda: None,
) -> Answer:
    """Raises Refused, and httpx.TransportError. `on_piece` is called after each event of a stream."""
    answer = Answer()
    if not streams:
        response = await client.post(url + question.path, json=dict(question.body))
        if response.status_code != 200:
            raise Refused(f"{response.status_code} {response.text[:300]}")
        _take(answer, response.json())
        return answer
    body = {**question.body, "stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", url + question.path, json=body) as response:
        if response.status_code != 200:
            raise Refused(f"{response.status_code} {(await response.aread())[:300]!r}")
        async for event in _events(response):
            _take(answer, event)
            on_piece()
    return answer


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Raises Refused for an error, and for an end without [DONE]."""
    async for line in response.aiter_lines():
        if line == "data: [DONE]":
            return
        if line.startswith("data: "):
            event: dict[str, Any] = json.loads(line[6:])
            if "error" in event:
                raise Refused(f"in the stream: {event['error']}")
            yield event
    raise Refused("the stream ended without [DONE]")


def _take(answer: Answer, event: dict[str, Any]) -> None:
    """A whole answer, or a piece of one."""
    usage = event.get("usage")
    if usage:
        answer.usage = (usage["prompt_tokens"], usage["completion_tokens"])
    for choice in event["choices"]:
        said = choice.get("message") or choice.get("delta") or {}
        text = choice.get("text") or said.get("content") or ""
        answer.texts[choice["index"]] = answer.texts.get(choice["index"], "") + text
        for call in said.get("tool_calls") or ():
            function = call["function"]
            answer.calls += (function.get("name") or "") + (function.get("arguments") or "")
        answer.reason = choice["finish_reason"] or answer.reason
        told = choice.get("logprobs")
        if told:
            values = zip(told["tokens"], told["token_logprobs"], strict=True)
            answer.logprobs += [(token, round(logprob, 2)) for token, logprob in values]
