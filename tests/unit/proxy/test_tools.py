"""The functions of a chat: which fields are read, what models are told of them, and by which grammar they answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers

from proxy.errors import ApiError, ErrorCode
from proxy.grammar.structured_output import MAX_BYTES
from proxy.model import ServedModel
from proxy.openai.messages import FunctionCall, Message, MessageToolCall, read_messages
from proxy.text.chat_template import ChatTemplate
from proxy.text.tokenizer import Tokenizer
from proxy.tools.tool import ToolUse, read_tools
from proxy.tools.tool_call_format import HERMES, LLAMA, MISTRAL, ToolCallFormat
from proxy.tools.tool_calling import ToolCalling
from proxy.tools.tool_prompt import with_tools_as_text
from tests.unit.proxy.conftest import EOS


def function(name: str = "add", **fields: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


NUMBER = {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}}
ADD = function(parameters={**NUMBER, "required": ["a"]})
WEATHER = function("get_weather", description="of today", parameters={"properties": {}})
NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture(scope="module")
def tokenizer(model_folder: Any) -> LLTokenizer:
    return LLTokenizer(str(model_folder / "tokenizer.json"), eos_token=[EOS])


def use(*tools: object, choice: object = None, parallel: bool | None = None) -> ToolUse:
    found = read_tools(list(tools), choice, parallel)
    assert found is not None
    return found


def no_token(text: str) -> None:
    """Of a model whose markers are no tokens of their own."""


def accepts(tokenizer: LLTokenizer, form: ToolCallFormat, tool_use: ToolUse, text: str) -> bool:
    output = tool_use.structured_output(form, no_token)
    assert output is not None
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(output.text), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = list(text.encode())
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


def hermes(*calls: str) -> str:
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


@pytest.mark.parametrize(
    ("tools", "choice", "parallel", "expected"),
    [
        (None, None, None, None),
        ([], "auto", True, None),
        ([], "none", None, None),
        ([ADD], "none", None, None),
        ([ADD, WEATHER], None, None, (["add", "get_weather"], False, True)),
        ([ADD, WEATHER], "auto", False, (["add", "get_weather"], False, False)),
        ([ADD, WEATHER], "required", None, (["add", "get_weather"], True, True)),
        ([ADD, WEATHER], NAMED, True, (["get_weather"], True, False)),
        ([function("none")], {"type": "function", "function": {"name": "none"}}, None, (["none"], True, False)),
    ],
)
def test_the_choice_says_which_functions_may_and_must_be_called(
    tools: object, choice: object, parallel: bool | None, expected: object
) -> None:
    found = read_tools(tools, choice, parallel)
    told = found and ([tool.name for tool in found.callable], found.is_forced, found.is_parallel)
    assert told == expected


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ("add", None, "tools"),
        ([ADD] * 129, None, "tools"),
        (["add"], None, "tools.0"),
        ([{"type": "web_search"}], None, "tools.0"),
        ([{**ADD, "color": 1}], None, "tools.0.color"),
        ([function(returns={})], None, "tools.0.function.returns"),
        ([function("")], None, "tools.0.function.name"),
        ([function("a b")], None, "tools.0.function.name"),
        ([function(description=5)], None, "tools.0.function.description"),
        ([function(strict="yes")], None, "tools.0.function.strict"),
        ([function(parameters=[1])], None, "tools.0.function.parameters"),
        ([function(parameters={"type": "array"})], None, "tools.0.function.parameters"),
        ([ADD, ADD], None, "tools.1.function.name"),
        ([ADD], "any", "tool_choice"),
        ([ADD], {"type": "function"}, "tool_choice"),
        ([ADD], NAMED, "tool_choice"),
        ([], "required", "tool_choice"),
        (None, NAMED, "tool_choice"),
    ],
)
def test_a_malformed_field_is_named(tools: object, choice: object, param: str) -> None:
    with pytest.raises(ApiError) as failure:
        read_tools(tools, choice, None)
    assert (failure.value.code, failure.value.param) == (ErrorCode.INVALID_ARGUMENT, param)


@pytest.mark.parametrize(
    ("choice", "parallel", "accepted", "refused"),
    [
        ("required", None, hermes('{"name": "add", "arguments": {"a": 1}}'), "text"),
        (
            "required",
            True,
            hermes(*['{"name": "get_weather", "arguments": {}}'] * 8),
            hermes(*['{"name": "get_weather", "arguments": {}}'] * 9),
        ),
        (
            "required",
            None,
            hermes('{"name": "add", "arguments": {"a":-1}}'),
            hermes('{"name": "add", "arguments": {}}'),
        ),
        (
            "required",
            False,
            hermes('{"name": "get_weather", "arguments": {"x": [1]}}'),
            hermes(*['{"name": "get_weather", "arguments": {}}'] * 2),
        ),
        (
            NAMED,
            None,
            hermes('{"name": "get_weather", "arguments": {}}'),
            hermes('{"name": "add", "arguments": {"a": 1}}'),
        ),
        ("auto", False, "any < text", hermes(*['{"name": "get_weather", "arguments": {}}'] * 2)),
        ("auto", False, "so: " + hermes('{"name": "add", "arguments": {"a": 1}}'), "so: <tool_call> "),
    ],
)
def test_a_model_can_only_write_what_the_choice_allows(
    tokenizer: LLTokenizer, choice: object, parallel: bool | None, accepted: str, refused: str
) -> None:
    tool_use = use(ADD, WEATHER, choice=choice, parallel=parallel)
    assert accepts(tokenizer, HERMES, tool_use, accepted)
    assert not accepts(tokenizer, HERMES, tool_use, refused)


def test_a_strict_function_binds_its_calls_but_not_the_text_around(tokenizer: LLTokenizer) -> None:
    strict = use(function(strict=True, parameters={**NUMBER, "additionalProperties": False}))
    calls = hermes('{"name": "add", "arguments": {"a": 1}}', '{"name": "add", "arguments": {}}')
    assert accepts(tokenizer, HERMES, strict, f"First.\n{calls}\nThat was all.")
    assert accepts(tokenizer, HERMES, strict, "Just text.")
    assert not accepts(tokenizer, HERMES, strict, hermes('{"name": "add", "arguments": {"b": 1}}'))
    assert use(function()).structured_output(HERMES, no_token) is None


@pytest.mark.parametrize(
    ("form", "accepted", "refused"),
    [
        (
            MISTRAL,
            '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}, {"name": "get_weather", "arguments": {}}]',
            "[TOOL_CALLS] []",
        ),
        (LLAMA, '{"name": "add", "parameters": {"a": 1}}', '{"name": "add", "arguments": {"a": 1}}'),
    ],
)
def test_other_formats_are_forced_too(
    tokenizer: LLTokenizer, form: ToolCallFormat, accepted: str, refused: str
) -> None:
    tool_use = use(ADD, WEATHER, choice="required")
    assert accepts(tokenizer, form, tool_use, accepted)
    assert not accepts(tokenizer, form, tool_use, refused)
    free = use(ADD, WEATHER, parallel=False)
    assert accepts(tokenizer, form, free, "any text")
    assert accepts(tokenizer, form, free, accepted) is (form is LLAMA)  # one call only
    assert not accepts(tokenizer, form, free, refused)


def test_markers_that_are_tokens_are_named_by_their_id() -> None:
    ids = {"[TOOL_CALLS]": 5}
    forced = use(ADD, choice="required").structured_output(MISTRAL, ids.get)
    free = use(ADD, parallel=False).structured_output(MISTRAL, ids.get)
    assert forced is not None
    assert free is not None
    assert "opening: <[5]>" in forced.text
    assert "lead: TEXT <[5]>" in free.text


def test_functions_of_too_many_bytes_are_refused_where_they_make_a_grammar() -> None:
    long = function(parameters={"properties": {"a": {"enum": ["x" * MAX_BYTES]}}})
    assert use(long).structured_output(HERMES, no_token) is None
    with pytest.raises(ApiError, match=r"^tools: .*too many"):
        use(long, choice="required").structured_output(HERMES, no_token)


def test_a_template_without_tools_is_told_them_in_the_system_message() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    chat: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "content": "2", "tool_call_id": "1"},
        {"role": "tool", "content": "3", "tool_call_id": "2"},
    ]
    system, user, assistant, results = with_tools_as_text(chat, [ADD])
    assert system["content"].startswith("Be brief.\n\n# Tools\n\nYou may call")
    assert f"<tools>\n{json.dumps(ADD)}\n</tools>" in system["content"]
    assert user == chat[1]
    written = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    assert assistant == {"role": "assistant", "content": f"{written}\n{written}"}
    responses = "<tool_response>\n2\n</tool_response>\n<tool_response>\n3\n</tool_response>"
    assert results == {"role": "user", "content": responses}


TOOLS_OF_TEMPLATE = (
    "{% if tools is not none %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    '<tool_call>{"name": …, "arguments": …}</tool_call>\n{% endif %}'
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% if m.tool_calls is defined %}{{ m.tool_calls[0].function.arguments.a }}{% endif %}"
    "{% if m.role == 'tool' %}{{ m.name }} {{ m.tool_call_id }}{% endif %}{{ '|' }}{% endfor %}"
)
CHAT = [
    Message(role="user", content="1+1?"),
    Message(
        role="assistant",
        tool_calls=[MessageToolCall(id="c1", function=FunctionCall(name="add", arguments='{"a": 7}'))],
    ),
    Message(role="tool", content="2", tool_call_id="c1"),
]


def test_a_template_that_knows_functions_gets_them_and_messages_as_templates_expect_them() -> None:
    template = ChatTemplate(TOOLS_OF_TEMPLATE, {})
    assert template.tool_call_format is HERMES
    messages = [message.for_template() for message in read_messages(CHAT)]
    told = "user:1+1?|assistant:7|tool:2add c1|"  # the function's name is that of the call
    assert template.render(messages) == told
    definition = f'{json.dumps(ADD)}\n<tool_call>{{"name": …, "arguments": …}}</tool_call>\n'
    assert template.render(messages, [ADD]) == definition + told


def test_a_template_for_chats_with_functions_is_used_for_these(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": TOOLS_OF_TEMPLATE}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    template = ChatTemplate.load(tmp_path)
    assert template is not None
    assert template.tool_call_format is HERMES
    assert template.render([{"role": "user", "content": "x"}]) == "plain"
    assert template.render([{"role": "user", "content": "x"}], [ADD]).endswith("user:x|")


def test_a_model_whose_calls_cannot_be_parsed_refuses_functions(model: ServedModel) -> None:
    unknown = replace(model, tool_call_format=ChatTemplate("{{ tools }} <tool_call><function=…", {}).tool_call_format)
    with pytest.raises(ApiError, match=r"^tools: .*tool_call_format"):
        ToolCalling.of(use(ADD), unknown)


def test_special_tokens_are_text_only_where_a_parser_needs_them() -> None:
    library = Library(models.BPE(vocab={"a": 0, "[": 1}, merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["[TOOL_CALLS]", "<s>"])
    tokenizer = Tokenizer(library, None)
    ids = [3, 0, 2, 1]
    hidden, shown = tokenizer.detokenizer([]), tokenizer.detokenizer([], MISTRAL.markers)
    assert "".join(map(hidden.add, ids)) == "a["
    assert "".join(map(shown.add, ids)) == "a[TOOL_CALLS]["


def test_without_functions_only_old_calls_are_told() -> None:
    assert with_tools_as_text([{"role": "user", "content": "hi"}], []) == [{"role": "user", "content": "hi"}]
    told = with_tools_as_text([{"role": "user", "content": "hi"}], [WEATHER])
    assert [message["role"] for message in told] == ["system", "user"]
