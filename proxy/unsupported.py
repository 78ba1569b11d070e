"""Parameters of OpenAI's API, or of this project's to come, that are refused by name instead of ignored.

Each may be sent with the value that changes nothing, as client libraries do.
"""

from __future__ import annotations

from collections.abc import Mapping

from proxy.errors import invalid

# The values, besides null, that ask for nothing.
UNSUPPORTED_FIELDS: dict[str, tuple[object, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "grammar": ("",),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0,),
    "prompt_logprobs": (),
    "reasoning_effort": (),
    "regex": ("",),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": (),
    "web_search_options": (),
}


def refuse_fields(extra: Mapping[str, object]) -> None:
    """Raises for the first of the fields that this server does not read, unless its value asks for nothing."""
    for name, value in extra.items():
        if name not in UNSUPPORTED_FIELDS:
            raise invalid(shortened(name), "unknown field", "unknown_field")
        neutral = UNSUPPORTED_FIELDS[name]
        if value is not None and not any(type_aware_equal(value, other) for other in neutral):
            allowed = f"; leave it out or send {neutral[0]!r}" if neutral else "; leave it out"
            raise invalid(name, f"not supported by this server{allowed}", "unsupported_parameter")


def type_aware_equal(value: object, other: object) -> bool:
    """Equality that tells 1 from true."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def shortened(text: str) -> str:
    """At most 64 characters of what a client sent, for a message."""
    return text if len(text) <= 64 else text[:61] + "..."
