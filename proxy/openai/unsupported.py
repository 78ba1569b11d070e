"""Parameters of OpenAI's API, or of this project's to come, that are refused by name instead of ignored.

Each may be sent with the value that changes nothing, as client libraries do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from proxy.errors import invalid

# The values, besides null, that ask for nothing.
UNSUPPORTED_FIELDS: dict[str, tuple[object, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "prompt_logprobs": (),
    "reasoning_effort": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": (),
    "web_search_options": (),
    # Sent by routers of other projects with every request.
    "continue_final_message": (False,),
    "include_reasoning": (True,),
    "no_stop_trim": (False,),
    "return_hidden_states": (False,),
    "separate_reasoning": (True,),
    "skip_special_tokens": (True,),
    "stream_reasoning": (True,),
}


def refuse_fields(extra: Mapping[str, object]) -> None:
    """Raises for the first of the fields that this server does not read, unless its value asks for nothing."""
    for name, value in extra.items():
        if name not in UNSUPPORTED_FIELDS:
            raise invalid(shortened(name), "unknown field", "unknown_field")
        neutral = UNSUPPORTED_FIELDS[name]
        if value is not None and not any(type_aware_equal(value, other) for other in neutral):
            allowed = f"; leave it out or send {neutral[0]!r}" if neutral else "; leave it out"
            raise invalid(name, f"not supported by this endpoint{allowed}", "unsupported_parameter")


def refuse_others(field: str, value: Mapping[str, object], known: Collection[str]) -> None:
    """Raises for the first key of a field's object that this server does not read."""
    for name, part in value.items():
        if name not in known and part is not None:
            raise invalid(f"{field}.{shortened(name)}", "not supported by this server; leave it out", "unknown_field")


def type_aware_equal(value: object, other: object) -> bool:
    """Equality that tells 1 from true."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def shortened(text: str) -> str:
    """At most 64 characters of what a client sent, for a message."""
    return text if len(text) <= 64 else text[:61] + "..."
