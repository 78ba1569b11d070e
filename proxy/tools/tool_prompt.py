"""A chat with functions for a template that knows none: they are told in the system message, calls and results in text.

The wording is that of Qwen 2.5, whose format (`tool_call_format.HERMES`) the model is asked to write.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

INTRODUCTION = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>"""
INSTRUCTION = """</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""

Message = Mapping[str, Any]


def with_tools_as_text(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The same chat in messages of a role and a content, none of them from a tool."""
    told: list[Message] = []
    if tools:
        has_system = bool(messages) and messages[0]["role"] == "system"
        lines = [INTRODUCTION, *(json.dumps(tool, ensure_ascii=False) for tool in tools), INSTRUCTION]
        contents = [messages[0]["content"]] if has_system else []
        told.append({"role": "system", "content": "\n\n".join([*contents, "\n".join(lines)])})
        messages = messages[1:] if has_system else messages
    for are_results, group in itertools.groupby(messages, lambda message: message["role"] == "tool"):
        if are_results:  # of the same calls: they stand together
            results = [f"<tool_response>\n{message['content']}\n</tool_response>" for message in group]
            told.append({"role": "user", "content": "\n".join(results)})
        else:
            told += [{"role": message["role"], "content": _with_calls_as_text(message)} for message in group]
    return told


def _with_calls_as_text(message: Message) -> str:
    parts = [message["content"]] if message["content"] else []
    for call in message.get("tool_calls", ()):
        parts.append(f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>")
    return "\n".join(parts)
