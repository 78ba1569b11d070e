"""What an answer may be asked to be: which fields are read, what is refused, and that no grammar harms the proxy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from llguidance import LLMatcher, LLTokenizer

from proxy.errors import ApiError, ErrorCode
from proxy.grammar.grammar_checker import GrammarChecker
from proxy.grammar.grammar_compiler import CompilerTimes, GrammarCompiler
from proxy.grammar.structured_output import MAX_BYTES, GrammarKind, StructuredOutput, from_fields
from tests.unit.proxy.conftest import EOS

PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
CHAIN = "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(3000)) + '\nr3000: "a"'  # overflows the stack


def regex(text: str) -> StructuredOutput:
    return StructuredOutput(GrammarKind.REGEX, text, "regex")


def schema(value: object) -> StructuredOutput:
    return StructuredOutput(GrammarKind.JSON_SCHEMA, json.dumps(value), "response_format")


def grammar(text: str) -> StructuredOutput:
    return StructuredOutput(GrammarKind.GRAMMAR, text, "grammar")


@pytest.fixture(scope="module")
def tokenizer(model_folder: Path) -> LLTokenizer:
    return LLTokenizer(str(model_folder / "tokenizer.json"), eos_token=[EOS])


@pytest.fixture(scope="module")
def checker(tokenizer: LLTokenizer) -> GrammarChecker:
    return GrammarChecker(tokenizer)


@pytest.fixture
async def compiler(model_folder: Path) -> AsyncIterator[GrammarCompiler]:
    compiler = GrammarCompiler(model_folder / "tokenizer.json", [EOS])
    yield compiler
    await compiler.close()


@pytest.mark.parametrize(
    ("field", "value", "kind", "text"),
    [
        ("response_format", {"type": "json_object"}, GrammarKind.JSON_SCHEMA, '{"type":"object"}'),
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}, "strict": True}},
            GrammarKind.JSON_SCHEMA,
            '{"type":"null"}',
        ),
        ("regex", "[0-9]+", GrammarKind.REGEX, "[0-9]+"),
        ("grammar", 'start: "a"', GrammarKind.GRAMMAR, 'start: "a"'),
        ("guided_json", {"type": "null"}, GrammarKind.JSON_SCHEMA, '{"type":"null"}'),
        ("guided_json", '{"type": "null"}', GrammarKind.JSON_SCHEMA, '{"type":"null"}'),
        ("guided_regex", "a", GrammarKind.REGEX, "a"),
        ("guided_grammar", 'root ::= "a"', GrammarKind.GRAMMAR, 'root ::= "a"'),
        ("structured_outputs", {"json": {"type": "null"}}, GrammarKind.JSON_SCHEMA, '{"type":"null"}'),
        ("structured_outputs", {"json_object": True, "regex": None}, GrammarKind.JSON_SCHEMA, '{"type":"object"}'),
        ("structured_outputs", {"choice": ["a", 'é"']}, GrammarKind.GRAMMAR, 'start: "a" | "é\\""'),
    ],
)
def test_each_way_to_ask_is_read(field: str, value: object, kind: GrammarKind, text: str) -> None:
    output = from_fields({field: value})
    assert output is not None
    assert (output.kind, output.text) == (kind, text)
    assert output.field.startswith(field)


@pytest.mark.parametrize(
    "fields",
    [{}, {"response_format": None, "regex": ""}, {"response_format": {"type": "text"}}, {"structured_outputs": {}}],
)
def test_what_asks_for_nothing_gives_nothing(fields: dict[str, object]) -> None:
    assert from_fields(fields) is None


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("response_format", "json", "response_format"),
        ("response_format", {"type": "xml"}, "response_format"),
        ("response_format", {"type": "json_object", "schema": {}}, "response_format.schema"),
        ("response_format", {"type": "json_schema"}, "response_format.json_schema"),
        ("response_format", {"type": "json_schema", "json_schema": {}}, "response_format.json_schema.schema"),
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"schema": {"x-guidance": {"lenient": True}}}},
            "response_format.json_schema.schema.x-guidance",
        ),
        ("guided_json", "{", "guided_json"),
        ("guided_json", [], "guided_json"),
        ("guided_json", '{"const": "\\ud800"}', "guided_json"),
        ("guided_json", {"minimum": float("inf")}, "guided_json"),
        ("regex", 5, "regex"),
        ("regex", "é" * MAX_BYTES, "regex"),
        ("structured_outputs", "x", "structured_outputs"),
        ("structured_outputs", {"whitespace_pattern": " "}, "structured_outputs.whitespace_pattern"),
        ("structured_outputs", {"choice": ["a", ""]}, "structured_outputs.choice"),
        ("structured_outputs", {"choice": "abc"}, "structured_outputs.choice"),
        ("structured_outputs", {"json_object": 1}, "structured_outputs.json_object"),
    ],
)
def test_a_malformed_field_is_named(field: str, value: object, param: str) -> None:
    with pytest.raises(ApiError) as failure:
        from_fields({field: value})
    assert (failure.value.code, failure.value.param) == (ErrorCode.INVALID_ARGUMENT, param)


@pytest.mark.parametrize(
    "fields",
    [{"regex": "a", "grammar": 'start: "a"'}, {"structured_outputs": {"regex": "a", "json_object": True}}],
)
def test_two_kinds_at_once_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ApiError, match="only one kind"):
        from_fields(fields)


@pytest.mark.parametrize(
    ("output", "accepted", "refused"),
    [
        (regex("[0-9]{2,3}"), "123", "1a"),
        (schema(PERSON), '{"name": "Ann","age":3}', '{"name":  "Ann"}'),
        (schema({"type": "object"}), '{"a": [1, {"b": null}]}', "[1]"),
        (schema({"type": "object"}), "{}", "{ }"),
        (schema({"type": "array", "items": {"enum": ["x", 1]}}), '["x", 1]', '["y"]'),
        (grammar('start: "a"+ "b"?'), "aab", "b"),
        (grammar('root ::= "yes" | digit+\ndigit ::= [0-9]'), "42", "no"),
    ],
)
def test_a_compiled_grammar_accepts_just_its_texts(
    checker: GrammarChecker, tokenizer: LLTokenizer, output: StructuredOutput, accepted: str, refused: str
) -> None:
    serialised = checker.check(output.kind, output.text)["grammar"]
    matcher = LLMatcher(tokenizer, serialised)
    assert matcher.consume_tokens(list(accepted.encode()))
    assert matcher.is_accepting()
    matcher = LLMatcher(tokenizer, serialised, log_level=0)
    assert matcher.try_consume_tokens(list(refused.encode())) < len(refused)


@pytest.mark.parametrize("text", [" " * 3, "\n", '{"a":' + " " * 2, '{"a": 1,  '])
def test_a_model_cannot_go_on_with_blanks(checker: GrammarChecker, tokenizer: LLTokenizer, text: str) -> None:
    matcher = LLMatcher(tokenizer, checker.check(GrammarKind.JSON_SCHEMA, '{"type":"object"}')["grammar"], log_level=0)
    assert matcher.try_consume_tokens(list(text.encode())) < len(text)


async def test_a_grammar_is_compiled_once(compiler: GrammarCompiler) -> None:
    first = await compiler.compile(regex("[ab]+"))
    await compiler.close()
    assert await compiler.compile(regex("[ab]+")) == first  # without a process


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (regex("[0-9"), "^regex: unclosed character class$"),
        (regex("(?=a)b"), "look-ahead"),
        (schema({"not": {"type": "string"}}), 'Unimplemented keys: \\["not"\\]'),
        (schema({"type": "integer", "minimum": 5, "maximum": 3}), "minimum \\(5\\) is greater than maximum"),
        (schema({"$ref": "http://127.0.0.1:1/a.json"}), "not present in a registry"),
        (grammar("start: foo"), 'unknown name: "foo"'),
        (grammar("root ::= foo"), "Rule 'foo' not found"),
        (grammar("hello"), "Expected ::="),
        (grammar("start: start"), "no text satisfies it"),
        (grammar("root ::= " + "(" * 3000), "recursion"),
        (regex("(a{1000}){1000}"), "too many expressions"),
        (grammar(CHAIN), "too complex"),
    ],
)
async def test_what_cannot_be_used_is_refused_in_few_words(
    compiler: GrammarCompiler, output: StructuredOutput, message: str
) -> None:
    with pytest.raises(ApiError, match=message) as failure:
        await compiler.compile(output)
    assert (failure.value.code, failure.value.param) == (ErrorCode.INVALID_ARGUMENT, output.field)
    assert len(failure.value.message) < 250
    assert "\n" not in failure.value.message


async def test_a_grammar_that_kills_its_process_is_refused_from_memory_and_others_go_on(
    compiler: GrammarCompiler,
) -> None:
    for _ in range(2):
        with pytest.raises(ApiError, match="too complex"):
            await compiler.compile(grammar(CHAIN))
    assert await compiler.compile(regex("a"))


async def test_grammars_that_come_together_take_turns_and_the_loop_goes_on(compiler: GrammarCompiler) -> None:
    outputs = [regex(f"[a-z]{{{n}}}") for n in range(1, 20)]
    compiled = await asyncio.gather(*(compiler.compile(output) for output in [*outputs, *outputs]))
    assert compiled[:19] == compiled[19:]
    assert len(set(compiled)) == 19


async def test_who_gives_up_waiting_leaves_nothing_behind(compiler: GrammarCompiler) -> None:
    await compiler.compile(regex("a"))
    giving_up = asyncio.create_task(compiler.compile(regex("b")))
    await asyncio.sleep(0)
    giving_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await giving_up
    assert await compiler.compile(regex("c")) == await compiler.compile(regex("c"))
    assert '"lark_grammar":"start: /c/"' in await compiler.compile(regex("c"))


async def test_a_tokenizer_that_cannot_be_loaded_is_the_servers_fault(tmp_path: Path) -> None:
    compiler = GrammarCompiler(tmp_path / "none.json", [EOS])
    with pytest.raises(ApiError, match="did not start") as failure:
        await compiler.compile(regex("a"))
    assert failure.value.code is ErrorCode.UNAVAILABLE


async def test_waiting_for_others_grammars_has_an_end(model_folder: Path) -> None:
    compiler = GrammarCompiler(model_folder / "tokenizer.json", [EOS], CompilerTimes(wait_s=0.001))
    slow = asyncio.create_task(compiler.compile(regex("a")))  # it starts the process
    await asyncio.sleep(0)
    with pytest.raises(ApiError, match="busy") as failure:
        await compiler.compile(regex("b"))
    assert failure.value.code is ErrorCode.RESOURCE_EXHAUSTED
    await slow
    await compiler.close()
