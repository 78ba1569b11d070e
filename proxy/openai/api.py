"""OpenAI's two bodies that ask for text, and what they ask for: prompts, sampling, functions.

Whatever is wrong with one, the error names the field; nothing is ignored in silence (`unsupported.py`).
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from proxy.errors import invalid
from proxy.grammar.structured_output import STRUCTURED_OUTPUT_FIELDS, StructuredOutput, from_fields
from proxy.openai.body import Body, printable
from proxy.openai.messages import Message, read_messages
from proxy.request.sampling import MAX_LOGPROBS, Sampling
from proxy.text.prompt import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from proxy.tools.tool import ToolUse, read_tools

TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")


def _stop_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Stop = Annotated[list[str], BeforeValidator(_stop_list)]


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # accepted, and never done


class GenerationBody(Body):
    """What both endpoints have in common."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    n: int | None = None
    stop: Stop | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    response_format: Any = None
    regex: Any = None
    grammar: Any = None
    structured_outputs: Any = None  # vLLM's name for all of these, and its older ones
    guided_json: Any = None
    guided_regex: Any = None
    guided_grammar: Any = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: int | None = None
    cache_salt: str | None = None
    user: str | None = None  # a label of the client's own
    metadata: dict[str, str] | None = None  # likewise

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def limit(self) -> int | None:
        return self.max_tokens

    @property
    @abstractmethod
    def num_logprobs(self) -> int | None:
        """Likeliest tokens to be told with each one; None: nothing is told."""

    def check(self) -> None:
        if self.stream_options is not None and not self.streams:
            raise invalid("stream_options", "only with stream: true")

    def sampling(self) -> Sampling:
        return Sampling(
            max_tokens=self.limit(),
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            stop=tuple(self.stop or ()),
            include_stop_str_in_output=bool(self.include_stop_str_in_output),
            min_p=self.min_p or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            logit_bias=_logit_bias(self.logit_bias or {}),
            min_tokens=self.min_tokens or 0,
            num_logprobs=self.num_logprobs,
            n=1 if self.n is None else self.n,
            structured_output=self.structured_output(),
        )

    def tool_use(self) -> ToolUse | None:
        """The functions that may be called."""
        return None

    def structured_output(self) -> StructuredOutput | None:
        return from_fields({name: getattr(self, name) for name in STRUCTURED_OUTPUT_FIELDS})


class CompletionBody(GenerationBody):
    prompt: Any = Field(
        json_schema_extra={
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "integer"}},
                {"type": "array", "items": {"type": "string"}},
                {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
            ],
            "description": "A text, or its token ids; or a list of either.",
        }
    )
    logprobs: int | None = None
    best_of: int | None = None
    echo: bool | None = None

    @property
    def echoes(self) -> bool:
        return bool(self.echo)

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    def check(self) -> None:
        super().check()
        if self.best_of not in (None, 1 if self.n is None else self.n):
            raise invalid("best_of", "not supported by this server; leave it out or send the value of n")
        if self.logprobs is not None and self.echo:
            raise invalid("echo", "not together with logprobs: this server tells none of the prompt's tokens")

    def to_prompts(self) -> tuple[Prompt, ...]:
        return _completion_prompts(self.prompt)


class ChatBody(GenerationBody):
    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None

    @property
    def echoes(self) -> bool:
        return False

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def check(self) -> None:
        super().check()
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= MAX_LOGPROBS:
            raise invalid("top_logprobs", f"must be from 0 to {MAX_LOGPROBS}, not {self.top_logprobs}")
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs", "only with logprobs: true")

    def limit(self) -> int | None:
        if self.max_completion_tokens is None:
            return self.max_tokens
        if self.max_tokens is not None and self.max_tokens != self.max_completion_tokens:
            raise invalid("max_completion_tokens", "max_tokens says otherwise: send one of the two")
        if self.max_completion_tokens < 1:
            raise invalid("max_completion_tokens", f"must be at least 1, not {self.max_completion_tokens}")
        return self.max_completion_tokens

    def tool_use(self) -> ToolUse | None:
        return read_tools(self.tools, self.tool_choice, self.parallel_tool_calls)

    def to_prompts(self) -> tuple[Prompt, ...]:
        use = self.tool_use()
        definitions = tuple(tool.definition for tool in use.tools) if use is not None else ()
        return (ChatPrompt(read_messages(self.messages), definitions),)


def _completion_prompts(value: object) -> tuple[Prompt, ...]:
    if isinstance(value, list) and value and all(isinstance(item, str | list) for item in value):
        return tuple(_completion_prompt(item) for item in value)
    return (_completion_prompt(value),)


def _completion_prompt(value: object) -> Prompt:
    if isinstance(value, str):
        return TextPrompt(value)
    if not isinstance(value, list):
        raise invalid("prompt", "must be a string or a list of token ids, or a list of these")
    if not all(type(item) is int for item in value):
        raise invalid("prompt", "must be a string or a list of token ids, which are whole numbers")
    return TokenPrompt(tuple(value))


def _logit_bias(given: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    for key in given:
        if not TOKEN_ID.fullmatch(key):
            raise invalid("logit_bias", f"{printable(key)!r} is not a token id")
    return tuple((int(key), bias) for key, bias in given.items())
