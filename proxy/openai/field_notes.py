"""What the description of the API adds to the types of a body's fields: meaning and limits. docs/api.md says more."""

from __future__ import annotations

from typing import Any

from proxy.grammar.structured_output import RESPONSE_FORMATS
from proxy.request.priority import MAX_LEVEL
from proxy.request.sampling import (
    MAX_BIAS,
    MAX_BIASES,
    MAX_CHOICES,
    MAX_LOGPROBS,
    MAX_PENALTY,
    MAX_REPETITION_PENALTY,
    MAX_STOP_LENGTH,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TEMPERATURE,
    MAX_TOP_K,
    MIN_REPETITION_PENALTY,
)
from proxy.tools.tool import CHOICES, MAX_TOOLS

Schema = dict[str, Any]
GRAMMAR = {"type": "string", "minLength": 1}


def between(least: float, most: float, description: str) -> Schema:
    return {"minimum": least, "maximum": most, "description": description}


def object_of_type(names: tuple[str, ...] | list[str], **properties: Schema) -> Schema:
    return {
        "type": "object",
        "required": ["type"],
        "properties": {"type": {"enum": list(names)}, **properties},
        "additionalProperties": False,
    }


NAMED_FUNCTION = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
TOOL = {
    **object_of_type(
        ["function"],
        function={
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"},
                "description": {"type": "string"},
                "parameters": {"type": "object", "description": "JSON schema of an object"},
                "strict": {"type": ["boolean", "null"]},
            },
            "additionalProperties": False,
        },
    ),
    "required": ["type", "function"],
}
JSON_SCHEMA = {
    "type": "object",
    "required": ["schema"],
    "properties": {"name": {"type": "string"}, "schema": {"type": "object"}, "strict": {"type": ["boolean", "null"]}},
}
FIELD_NOTES: dict[str, Schema] = {
    "model": {"description": "The served name, or nothing; another one is 404."},
    "prompt": {"description": "A text, or its token ids; or a list of either."},
    "messages": {"minItems": 1, "description": "The chat so far."},
    "max_tokens": {"minimum": 1, "description": "Unset: all that the context leaves."},
    "max_completion_tokens": {"minimum": 1, "description": "Another name of max_tokens."},
    "min_tokens": {"minimum": 0, "description": "Before these nothing stops the completion."},
    "temperature": between(0, MAX_TEMPERATURE, "0 is greedy; unset: 1."),
    "top_p": between(0, 1, "Unset: 1."),
    "top_k": between(-1, MAX_TOP_K, "-1 and 0: every token."),
    "min_p": between(0, 1, "Of the likeliest token's probability."),
    "presence_penalty": between(-MAX_PENALTY, MAX_PENALTY, "For tokens that the completion has."),
    "frequency_penalty": between(-MAX_PENALTY, MAX_PENALTY, "For tokens, as often as the completion has them."),
    "repetition_penalty": between(MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY, "Unset: 1, none."),
    "logit_bias": {
        "maxProperties": MAX_BIASES,
        "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"},
        "additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS},
        "description": "By token id, what is added to its logit. At most as many as the vocabulary has, or the limit.",
    },
    "seed": {"minimum": -(2**63), "maximum": 2**64 - 1, "description": "The same text each time; unset: at random."},
    "n": between(1, MAX_CHOICES, f"Choices of each prompt; with several prompts at most {MAX_CHOICES} in all."),
    "stop": {
        "anyOf": [
            {"type": "string", "minLength": 1, "maxLength": MAX_STOP_LENGTH},
            {
                "type": "array",
                "maxItems": MAX_STOP_STRINGS,
                "items": {"type": "string", "minLength": 1, "maxLength": MAX_STOP_LENGTH},
            },
            {"type": "null"},
        ],
        "description": "Not part of the text.",
    },
    "stop_token_ids": {
        "maxItems": MAX_STOP_TOKEN_IDS,
        "items": {"type": "integer", "minimum": 0},
        "description": "Beside the end of text.",
    },
    "include_stop_str_in_output": {"description": "The stop string is part of the text."},
    "ignore_eos": {"description": "The end of text does not stop. Not with structured output."},
    "logprobs": {
        "description": f"Completions: 0 to {MAX_LOGPROBS}, the likeliest told with each token. Chats: a bool."
    },
    "top_logprobs": between(0, MAX_LOGPROBS, "With logprobs: true."),
    "echo": {"description": "The text starts with the prompt. Not with logprobs."},
    "best_of": {"description": "The value of n, for clients that always send it."},
    "stream": {"description": "Server-sent events, each a chunk, then [DONE]."},
    "stream_options": {"description": "Only with stream: true."},
    "response_format": {
        "anyOf": [
            object_of_type(list(RESPONSE_FORMATS[:2])),
            {**object_of_type(["json_schema"], json_schema=JSON_SCHEMA), "required": ["type", "json_schema"]},
            {"type": "null"},
        ],
        "description": "The text is JSON, of this schema or any.",
    },
    "structured_outputs": {
        "type": ["object", "null"],
        "properties": {"json": {}, "regex": GRAMMAR, "grammar": GRAMMAR, "json_object": {"type": "boolean"}},
        "description": "vLLM's name for response_format, regex and grammar: one of them.",
    },
    "regex": {**GRAMMAR, "type": ["string", "null"], "description": "The whole text matches it."},
    "grammar": {**GRAMMAR, "type": ["string", "null"], "description": "The text is a sentence of it: Lark or GBNF."},
    "guided_json": {"description": "vLLM's older name: a JSON schema."},
    "guided_regex": {"type": ["string", "null"], "description": "vLLM's older name of regex."},
    "guided_grammar": {"type": ["string", "null"], "description": "vLLM's older name of grammar."},
    "tools": {"type": ["array", "null"], "maxItems": MAX_TOOLS, "items": TOOL, "description": "That may be called."},
    "tool_choice": {
        "anyOf": [
            {"enum": [*CHOICES, None]},
            {**object_of_type(["function"], function=NAMED_FUNCTION), "required": ["type", "function"]},
        ],
        "description": "Only with tools, but for none and auto.",
    },
    "parallel_tool_calls": {"description": "More than one call in an answer; unset: true."},
    "priority": between(-MAX_LEVEL, MAX_LEVEL, "Lower is sooner."),
    "cache_salt": {"minLength": 1, "maxLength": 256, "description": "Requests with others share no cached prefix."},
    "user": {"description": "A label of the client's own; nothing is done with it."},
    "metadata": {"description": "Labels of the client's own; nothing is done with them."},
    "add_special_tokens": {"description": "To a text, as a start token; unset: true. Only with prompt."},
    "return_token_strs": {"description": "Whether token_strs is wanted."},
    "tokens": {"items": {"type": "integer", "minimum": 0}, "description": "Token ids."},
}
