"""A model's chat template, rendered as Hugging Face transformers renders it.

The template comes with the model and is not trusted: it runs in Jinja's sandbox and sees plain JSON values only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import meta
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from proxy.tools.tool_call_format import HERMES, ToolCallFormat, detect
from proxy.tools.tool_prompt import with_tools_as_text

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatTemplateError(ValueError):
    """The template refuses these messages; the message says why."""


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}`, which marks the assistant's text for training: no effect here."""

    tags = {"generation"}  # noqa: RUF012  Jinja's own form

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class ChatTemplate:
    """A compiled template, that for chats with functions where the model has one, and the tokens that they may name."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], tool_source: str | None = None) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._template = environment.from_string(source)
        self._tool_template = self._template if tool_source is None else environment.from_string(tool_source)
        self._knows_tools = "tools" in meta.find_undeclared_variables(environment.parse(tool_source or source))
        self._special_tokens = dict(special_tokens)
        # In which the model writes calls; None for a format that this server does not parse.
        self.tool_call_format: ToolCallFormat | None = detect(tool_source or source) if self._knows_tools else HERMES

    @classmethod
    def load(cls, folder: Path) -> ChatTemplate | None:
        """The template of a Hugging Face model folder, or None when the model has none."""
        config_file = folder / "tokenizer_config.json"
        config = json.loads(config_file.read_text()) if config_file.is_file() else {}
        template_file = folder / "chat_template.jinja"
        source = template_file.read_text() if template_file.is_file() else config.get("chat_template")
        tool_source = None
        if isinstance(source, list):  # several, by name
            named = {item["name"]: item["template"] for item in source}
            source, tool_source = named.get("default"), named.get("tool_use")
        if source is None:
            return None
        return cls(source, _special_tokens(folder, config), tool_source)

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The whole prompt, special tokens included, up to where the assistant speaks. Raises ChatTemplateError."""
        if not self._knows_tools:
            messages, tools = with_tools_as_text(messages, tools), ()
        template = self._tool_template if tools else self._template
        try:
            return template.render(
                messages=[dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] or None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, OverflowError) as error:
            raise ChatTemplateError(str(error) or type(error).__name__) from error


def _special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    map_file = folder / "special_tokens_map.json"
    tokens = {**(json.loads(map_file.read_text()) if map_file.is_file() else {}), **config}
    named = {name: tokens[name] for name in SPECIAL_TOKENS if tokens.get(name) is not None}
    return {name: token if isinstance(token, str) else token["content"] for name, token in named.items()}


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
