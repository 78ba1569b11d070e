"""The grammar by which a model writes calls of functions, in its own format and with arguments of their schemas. Pure.

Markers that are one token of the model are named by their id: for llguidance such a token is no text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from proxy.grammar.structured_output import JSON_STYLE
from proxy.tools.tool_call_format import ToolCallFormat

MAX_FORCED_CALLS = 8  # of one answer that must call: a small model could go on with calls for ever
MORE = f"{{0,{MAX_FORCED_CALLS - 1}}}"
TEXT = r"TEXT: /(.|\n)*/"
NO_BRACE = r"NO_BRACE: /([^{ \t\r\n](.|\n)*)?/"


def tool_call_grammar(
    form: ToolCallFormat,
    functions: Sequence[tuple[str, Mapping[str, Any]]],
    token_id: Callable[[str], int | None],
    *,
    is_forced: bool,
    is_parallel: bool,
) -> str:
    """In lark. `functions`: names, and JSON schemas of their arguments. Not forced: any text, until a call begins."""
    rules = [*RULES[form.name](is_forced, is_parallel), *_markers(form, token_id, is_forced)]
    rules.append("tool: " + " | ".join(f"tool_{i}" for i in range(len(functions))))
    for i, (name, schema) in enumerate(functions):
        head = json.dumps(f'{{"name": "{name}", "{form.arguments_key}": ')
        rules.append(f'tool_{i}: {head} arguments_{i} "}}"')
        rules.append(f"arguments_{i}: %json " + json.dumps({**schema, "x-guidance": JSON_STYLE}, ensure_ascii=False))
    return "\n".join(rules)


def _hermes(is_forced: bool, is_parallel: bool) -> list[str]:
    start = "(lead body)* TEXT" if is_parallel else "TEXT | lead body"
    if is_forced:
        start = 'opening body ("\\n" opening body)' + MORE if is_parallel else "opening body"
    return [f"start: {start}", 'body: "\\n" tool "\\n" closing']


def _mistral(is_forced: bool, is_parallel: bool) -> list[str]:
    more = f' (", " tool){MORE}' if is_parallel else ""
    return ["start: opening body" if is_forced else "start: TEXT | lead body", f'body: " "? "[" tool{more} "]"']


def _llama(is_forced: bool, is_parallel: bool) -> list[str]:
    """One call, as its templates allow no more; a text that begins with a brace is a call."""
    return ["start: tool"] if is_forced else ["start: NO_BRACE | tool", NO_BRACE]


def _markers(form: ToolCallFormat, token_id: Callable[[str], int | None], is_forced: bool) -> list[str]:
    ids = [token_id(mark) for mark in form.markers]
    written = [
        json.dumps(mark) if found is None else f"<[{found}]>" for mark, found in zip(form.markers, ids, strict=True)
    ]
    if not written:
        return []
    opening, *closing = written
    begin = [f"opening: {opening}"]
    if not is_forced:
        begin = [f"lead{'[lazy]' if ids[0] is None else ''}: TEXT {opening}", TEXT]
    return [*begin, *(f"closing: {mark}" for mark in closing)]


RULES: dict[str, Callable[[bool, bool], list[str]]] = {"hermes": _hermes, "mistral": _mistral, "llama": _llama}
