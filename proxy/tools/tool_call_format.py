"""How models write calls of functions in their text: three formats, told apart by the text of a chat template."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolCallFormat:
    """What stands around the JSON of a call, which is an object of a name and arguments."""

    name: str
    opening: str  # before the first call, or before each; empty: a text that begins with a brace is a call
    list_opening: str  # between `opening` and the first call
    separator: str  # between calls after one `opening`
    closing: str
    arguments_key: str
    any_order: bool  # of a call's keys, as its prompts show both; `closing` tells where such a call ends
    id_length: int  # characters of a call's id

    @property
    def markers(self) -> tuple[str, ...]:
        """Those that are a token of their own in many models."""
        return tuple(mark for mark in (self.opening, self.closing) if len(mark) > 1)


HERMES = ToolCallFormat(  # Hermes 2 and 3, Qwen 2.5 and 3
    name="hermes",
    opening="<tool_call>",
    list_opening="",
    separator="",
    closing="</tool_call>",
    arguments_key="arguments",
    any_order=True,
    id_length=24,
)
MISTRAL = ToolCallFormat(  # up to its tokenizer's version 7
    name="mistral",
    opening="[TOOL_CALLS]",
    list_opening="[",
    separator=",",
    closing="]",
    arguments_key="arguments",
    any_order=False,
    id_length=9,  # its templates refuse any other
)
LLAMA = ToolCallFormat(  # Llama 3.1 to 3.3, whose templates allow one call at a time
    name="llama",
    opening="",
    list_opening="",
    separator=";",
    closing="",
    arguments_key="parameters",
    any_order=False,
    id_length=24,
)
FORMATS = {form.name: form for form in (HERMES, MISTRAL, LLAMA)}


def detect(template: str) -> ToolCallFormat | None:
    """The format that a chat template with tools writes; None for one that this server does not parse."""
    if "<tool_call>" in template and "arguments" in template:
        return None if "<function=" in template or "<arg_key>" in template else HERMES
    if "[TOOL_CALLS]" in template:
        return None if "[ARGS]" in template or "[CALL_ID]" in template else MISTRAL
    if '"parameters"' in template and "ipython" in template:
        return LLAMA
    return None
