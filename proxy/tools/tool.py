"""The functions that a chat may call, read from OpenAI's fields: what the prompt and the grammar need of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from proxy.errors import invalid
from proxy.grammar.structured_output import GrammarKind, StructuredOutput, check_size
from proxy.openai.unsupported import refuse_others
from proxy.tools.tool_call_format import ToolCallFormat
from proxy.tools.tool_call_grammar import tool_call_grammar

MAX_TOOLS = 128
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
FUNCTION_FIELDS = ("name", "description", "parameters", "strict")
CHOICES = ("none", "auto", "required")
ANY_ARGUMENTS: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    parameters: Mapping[str, Any]  # the JSON schema of its arguments
    is_strict: bool  # they must match it in any call, not just in one that is asked for
    definition: Mapping[str, Any]  # as the client wrote it, for the chat template


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A chat's functions, and how they may be called."""

    tools: tuple[Tool, ...]  # all, for the prompt
    callable: tuple[Tool, ...]
    is_forced: bool  # the answer must be calls
    is_parallel: bool  # more than one is allowed

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.callable)

    def structured_output(self, form: ToolCallFormat, token_id: Callable[[str], int | None]) -> StructuredOutput | None:
        """What makes the answer be calls, or makes its calls be right; None where the model is free. Raises ApiError.

        `token_id`: that of a text which is one token of the model.
        """
        if not self.is_forced and self.is_parallel and not any(tool.is_strict for tool in self.callable):
            return None
        functions = [(tool.name, tool.parameters) for tool in self.callable]
        forced, parallel = self.is_forced, self.is_parallel
        grammar = tool_call_grammar(form, functions, token_id, is_forced=forced, is_parallel=parallel)
        return check_size(StructuredOutput(GrammarKind.GRAMMAR, grammar, "tools"))


def read_tools(tools: object, tool_choice: object, parallel_tool_calls: bool | None) -> ToolUse | None:
    """None where no function may be called. Raises ApiError, naming the field."""
    found = _read_list(tools)
    named = _read_named(tool_choice)
    if not found:
        if named is not None or tool_choice == "required":
            raise invalid("tool_choice", "only with tools")
        return None
    if tool_choice == "none":
        return None
    if named is None:
        return ToolUse(found, found, tool_choice == "required", parallel_tool_calls is not False)
    chosen = tuple(tool for tool in found if tool.name == named)
    if not chosen:
        raise invalid("tool_choice", "names a function that is not in tools")
    return ToolUse(found, chosen, is_forced=True, is_parallel=False)


def _read_list(tools: object) -> tuple[Tool, ...]:
    if tools is None:
        return ()
    if not isinstance(tools, list):
        raise invalid("tools", "must be a list")
    if len(tools) > MAX_TOOLS:
        raise invalid("tools", f"{len(tools)} are too many: at most {MAX_TOOLS}")
    found = tuple(_read_tool(tool, f"tools.{i}") for i, tool in enumerate(tools))
    names = [tool.name for tool in found]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise invalid(f"tools.{i}.function.name", f"{name} is there twice")
    return found


def _read_tool(tool: object, field: str) -> Tool:
    if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(tool.get("function"), dict):
        raise invalid(field, 'must be {"type": "function", "function": {…}}')
    function = tool["function"]
    refuse_others(field, tool, ("type", "function"))
    refuse_others(f"{field}.function", function, FUNCTION_FIELDS)
    name, parameters = function.get("name"), function.get("parameters") or ANY_ARGUMENTS
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise invalid(f"{field}.function.name", "must be 1 to 64 letters, digits, _, - or .")
    if not isinstance(function.get("description", ""), str | None):
        raise invalid(f"{field}.function.description", "must be a string")
    if function.get("strict") not in (None, True, False):
        raise invalid(f"{field}.function.strict", "must be true or false")
    if not isinstance(parameters, dict) or parameters.get("type", "object") != "object":
        raise invalid(f"{field}.function.parameters", "must be the JSON schema of an object")
    return Tool(name, {"type": "object", **parameters}, bool(function.get("strict")), tool)


def _read_named(tool_choice: object) -> str | None:
    """The function that must be called, if it is named. Raises ApiError for what is no choice."""
    if tool_choice is None or tool_choice in CHOICES:
        return None
    function = tool_choice.get("function") if isinstance(tool_choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(tool_choice, dict) or tool_choice.get("type") != "function" or not isinstance(name, str):
        expected = 'must be none, auto, required or {"type": "function", "function": {"name": "…"}}'
        raise invalid("tool_choice", expected)
    return name
