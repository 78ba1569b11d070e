"""Calls of functions, found in text that comes in pieces of any size."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.tools.tool_call_format import HERMES, LLAMA, MISTRAL, ToolCallFormat, detect
from proxy.tools.tool_call_parser import ArgumentsPiece, CallBegin, ContentPiece, Piece, ToolCallParser

NAMES = ("add", "get_weather")
ADD = '{"name": "add", "arguments": {"a": 1, "b": "}\\"]</tool_call>"}}'
ARGUMENTS = '{"a": 1, "b": "}\\"]</tool_call>"}'


@dataclass
class Heard:
    """What a client has after all pieces."""

    content: str = ""
    calls: list[list[str]] = field(default_factory=list)  # name and arguments
    reason: str = ""

    def take(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            match piece:
                case ContentPiece(text):
                    self.content += text
                case CallBegin(index, _, name):
                    assert index == len(self.calls)
                    self.calls.append([name, ""])
                case ArgumentsPiece(index, text):
                    assert index == len(self.calls) - 1
                    self.calls[index][1] += text


def hear(form: ToolCallFormat, pieces: list[str], reason: str = "stop", *, is_forced: bool = False) -> Heard:
    parser = ToolCallParser(form, NAMES, is_forced=is_forced)
    heard = Heard()
    for text in pieces:
        heard.take(parser.add(text))
    last, heard.reason = parser.finish(reason)
    heard.take(last)
    return heard


def hear_all_ways(form: ToolCallFormat, text: str, reason: str = "stop") -> Heard:
    """In one piece, by characters, and in threes: always the same."""
    whole = hear(form, [text], reason)
    assert hear(form, list(text), reason) == whole
    assert hear(form, [text[i : i + 3] for i in range(0, len(text), 3)], reason) == whole
    return whole


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (HERMES, f"<tool_call>\n{ADD}\n</tool_call>"),
        (HERMES, f"\n\n<tool_call>{ADD}</tool_call>\n"),
        (HERMES, f"<tool_call>\n{ADD}"),
        (HERMES, f'<tool_call>{{"arguments": {ARGUMENTS.replace("</", "<")}, "name": "add"}}</tool_call>'),
        (HERMES, f'<tool_call> {{ "name" : "add" ,\n"parameters":{ARGUMENTS} , "id": "x}}"}} </tool_call>'),
        (MISTRAL, f"[TOOL_CALLS] [{ADD}]"),
        (MISTRAL, f"[TOOL_CALLS][{ADD[:-1]}, " + '"id": "abcdefghi"}]'),
        (LLAMA, f' {{"name": "add", "parameters": {ARGUMENTS}}}'),
        (LLAMA, ADD),
    ],
)
def test_a_call_is_found_and_nothing_of_it_is_content(form: ToolCallFormat, text: str) -> None:
    heard = hear_all_ways(form, text)
    expected = ARGUMENTS.replace("</", "<") if '"arguments": {"a": 1, "b": "}\\"]<tool' in text else ARGUMENTS
    assert (heard.content, heard.calls, heard.reason) == ("", [["add", expected]], "tool_calls")


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (HERMES, f'I will.\n<tool_call>\n{ADD}\n</tool_call>\n<tool_call>\n{{"name": "get_weather"}}\n</tool_call>'),
        (MISTRAL, f'I will. [TOOL_CALLS] [{ADD}, {{"name": "get_weather", "arguments": {{}}}}]'),
    ],
)
def test_text_before_calls_and_several_calls(form: ToolCallFormat, text: str) -> None:
    heard = hear_all_ways(form, text)
    assert (heard.content, heard.calls) == ("I will.", [["add", ARGUMENTS], ["get_weather", "{}"]])


def test_calls_of_llama_are_separated_by_semicolons() -> None:
    heard = hear_all_ways(LLAMA, f'{ADD}; {{"name": "get_weather", "parameters": {{}}}}')
    assert heard.calls == [["add", ARGUMENTS], ["get_weather", "{}"]]


def test_text_after_a_call_is_content() -> None:
    assert hear_all_ways(HERMES, f"<tool_call>{ADD}</tool_call>\n\nDone. ").content == "\n\nDone."


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (HERMES, "2 < 3 <tool> <tool_cal <tool_call\n"),
        (HERMES, "the tag <tool_call> begins a call"),
        (HERMES, "<tool_call>\n{no json}\n</tool_call>"),
        (HERMES, '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>'),
        (HERMES, '<tool_call>\n{"name": "add", "arguments": 5}\n</tool_call> '),
        (HERMES, '<tool_call>\n{"name": "add"'),
        (HERMES, '<tool_call>[{"name": "add", "arguments": {}}]</tool_call>'),
        (HERMES, " \n"),
        (HERMES, ""),
        (MISTRAL, "[TOOL_CALLS] none [1]"),
        (MISTRAL, '[TOOL_CALLS] [{"name": "unknown", "arguments": {}}]'),
        (MISTRAL, "an [array] [TOOL_"),
        (LLAMA, '{"name": "Ann", "parameters": {"a": 1}}'),
        (LLAMA, '  {"age": 3}'),
        (LLAMA, "text with " + ADD),
        (LLAMA, "{"),
    ],
)
def test_what_only_looks_like_a_call_is_content_in_full(form: ToolCallFormat, text: str) -> None:
    heard = hear_all_ways(form, text)
    assert (heard.content, heard.calls, heard.reason) == (text, [], "stop")


def test_a_call_after_a_near_miss_is_found() -> None:
    heard = hear_all_ways(HERMES, f"<tool_call> <tool_call>{ADD}</tool_call>")
    assert (heard.content, heard.calls) == ("<tool_call>", [["add", ARGUMENTS]])


@pytest.mark.parametrize("form", [HERMES, MISTRAL, LLAMA])
def test_a_call_that_is_cut_ends_with_length_and_leaks_nothing(form: ToolCallFormat) -> None:
    before, after = {"hermes": ("<tool_call>\n", "\n</tool_call>"), "mistral": ("[TOOL_CALLS] [", "]")}.get(
        form.name, ("", "")
    )
    text = before + ADD + after
    for length in range(len(text)):
        heard = hear(form, [text[:length]], "length", is_forced=True)
        assert (heard.content, heard.reason) == ("", "length")
        if heard.calls:
            assert ARGUMENTS.startswith(heard.calls[0][1])
    opened = len(form.opening)
    assert all(hear(form, list(text[:n]), "length").content == "" for n in range(opened + 1, len(text)))


def test_a_call_that_the_model_breaks_off_is_not_reported_as_one() -> None:
    heard = hear_all_ways(HERMES, '<tool_call>{"name": "add", "arguments": {"a": ')
    assert (heard.calls, heard.reason) == ([["add", '{"a": ']], "stop")


def test_arguments_that_are_no_json_reach_the_client_without_markup() -> None:
    heard = hear_all_ways(HERMES, '<tool_call>{"name": "add", "arguments": {"a": one}}</tool_call>')
    assert (heard.content, heard.calls) == ("", [["add", '{"a": one}}']])


def test_half_a_character_in_an_escape_stays_an_escape() -> None:
    heard = hear_all_ways(HERMES, '<tool_call>{"arguments": {"a": "\\ud83d"}, "name": "add"}</tool_call>')
    assert heard.calls == [["add", '{"a": "\\ud83d"}']]


def test_the_name_comes_first_and_then_the_arguments_as_they_are_written() -> None:
    parser = ToolCallParser(HERMES, NAMES, new_id=lambda length: "x" * length)
    pieces: list[Piece] = []
    for text in ('<tool_call>\n{"name": "add", "arg', 'uments": {"a"', ": 1", "}}\n</tool_call>"):
        pieces += parser.add(text)
    begin = CallBegin(0, "x" * 24, "add")
    assert pieces == [begin, ArgumentsPiece(0, '{"a"'), ArgumentsPiece(0, ": 1"), ArgumentsPiece(0, "}")]


def test_ids_are_as_clients_and_templates_want_them() -> None:
    ids = [
        piece.call_id
        for form, text in ((HERMES, f"<tool_call>{ADD}"), (MISTRAL, f"[TOOL_CALLS][{ADD}"))
        for piece in ToolCallParser(form, NAMES).add(text)
        if isinstance(piece, CallBegin)
    ]
    assert [(call_id[:5], len(call_id)) for call_id in ids[:1]] == [("call_", 29)]
    assert len(ids[1]) == 9
    assert ids[1].isalnum()


PARTS = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "[",
        "]",
        ADD,
        "{",
        "}",
        '{"name": "add"',
        ', "arguments": {',
        " ",
        "a",
    ]
)


@given(st.lists(PARTS, max_size=8), st.lists(st.integers(1, 9), max_size=20), st.sampled_from([HERMES, MISTRAL, LLAMA]))
def test_how_the_text_is_cut_makes_no_difference(parts: list[str], cuts: list[int], form: ToolCallFormat) -> None:
    text = "".join(parts)
    pieces, rest = [], text
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]
    whole = hear(form, [text])
    assert hear(form, [*pieces, rest]) == whole
    if not whole.calls:
        assert whole.content == text


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ('<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>', HERMES),
        ("<tool_call>\\n<function=example>\\n<parameter=one> arguments", None),
        ('{{ "[TOOL_CALLS] [" }}', MISTRAL),
        ('{{ "[TOOL_CALLS]" + name + "[ARGS]" }}', None),
        ('Environment: ipython {"name": function name, "parameters": dictionary}', LLAMA),
        ("{% for tool in tools %}{{ tool }}{% endfor %}", None),
    ],
)
def test_a_templates_text_tells_its_format(template: str, expected: ToolCallFormat | None) -> None:
    assert detect(template) is expected
