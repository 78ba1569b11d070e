"""Grammars over the fake model's tokenizer, whose ids are bytes and one end of text."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path

import numpy as np
import pytest
from llguidance import LLMatcher

from bench.fake_model import write_fake_model
from engine.derived_state import DerivedStates
from engine.errors import RequestInvalid
from engine.fake_runner import EOS_TOKEN_ID, VOCAB_SIZE
from engine.grammar import GrammarFailed, GrammarMatcher, Grammars
from engine.request import Request, SamplingParams

PHONE = LLMatcher.grammar_from_regex(r"[0-9]{3}-[0-9]{2}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fake_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def grammars(folder: Path) -> Grammars:
    return Grammars(folder, {EOS_TOKEN_ID})


def request(grammar: str, generated: bytes = b"", stop_token_ids: frozenset[int] | None = None) -> Request:
    stops = frozenset({EOS_TOKEN_ID}) if stop_token_ids is None else stop_token_ids
    sampling = SamplingParams(max_tokens=100, stop_token_ids=stops, grammar=grammar)
    return Request("r", [*b"a prompt", *generated], len(b"a prompt"), sampling)


def allowed(matcher: GrammarMatcher, vocab_size: int = VOCAB_SIZE) -> list[int]:
    mask = matcher.allowed(vocab_size)
    assert mask.shape == (vocab_size,)
    ids: list[int] = np.flatnonzero(mask).tolist()
    return ids


def matcher_of(grammars: Grammars, started: Request) -> GrammarMatcher:
    grammars.admit(started)
    return DerivedStates(grammars.matcher).of(started)


def test_each_token_narrows_what_may_follow_until_only_the_end_is_left(grammars: Grammars) -> None:
    digits = list(b"0123456789")
    assert allowed(matcher_of(grammars, request(PHONE))) == digits
    assert allowed(matcher_of(grammars, request(PHONE, b"12"))) == digits
    assert allowed(matcher_of(grammars, request(PHONE, b"123"))) == list(b"-")
    assert allowed(matcher_of(grammars, request(PHONE, b"123-45"))) == [EOS_TOKEN_ID]


def test_the_end_is_one_choice_of_several_where_the_text_may_end_or_go_on(grammars: Grammars) -> None:
    number = LLMatcher.grammar_from_regex(r"[0-7]+")
    assert allowed(matcher_of(grammars, request(number))) == list(b"01234567")
    assert allowed(matcher_of(grammars, request(number, b"1"))) == [*b"01234567", EOS_TOKEN_ID]


@pytest.mark.parametrize("vocab_size", [58, 100, 256, 257, 300, 1000])
def test_the_logits_vocabulary_may_be_larger_or_smaller_than_the_tokenizers(
    grammars: Grammars, vocab_size: int
) -> None:
    assert allowed(matcher_of(grammars, request(PHONE)), vocab_size) == list(b"0123456789")


def test_a_model_without_the_tokens_that_a_grammar_needs_fails_the_request(grammars: Grammars) -> None:
    with pytest.raises(GrammarFailed, match="no token that the model has"):
        matcher_of(grammars, request(PHONE)).allowed(48)


def test_every_end_of_text_id_ends_a_text(folder: Path) -> None:
    grammars = Grammars(folder, {EOS_TOKEN_ID, 0})
    ended = request(PHONE, b"123-45", frozenset({0, EOS_TOKEN_ID}))
    assert allowed(matcher_of(grammars, ended)) == [0, EOS_TOKEN_ID]


def test_a_matcher_follows_its_request_and_is_begun_anew_where_the_tokens_differ(grammars: Grammars) -> None:
    grammars.admit(followed := request(PHONE))
    matchers = DerivedStates(grammars.matcher)
    states = set()
    for token_id in b"123":
        states.add(id(matchers.of(followed)))
        followed.token_ids.append(token_id)
    assert len(states) == 1
    assert allowed(matchers.of(followed)) == list(b"-")
    del followed.token_ids[-2:]  # taken back, and generated otherwise
    followed.token_ids += b"9"
    assert allowed(matchers.of(followed)) == list(b"0123456789")


def test_requests_with_the_same_grammar_do_not_share_their_place_in_it(grammars: Grammars) -> None:
    first, second = request(PHONE), request(PHONE, b"123")
    grammars.admit(first)
    grammars.admit(second)
    matchers = DerivedStates(grammars.matcher)
    for _ in range(2):
        assert allowed(matchers.of(first)) == list(b"0123456789")
        assert allowed(matchers.of(second)) == list(b"-")


def test_generated_tokens_that_break_the_grammar_fail_the_request(grammars: Grammars) -> None:
    with pytest.raises(GrammarFailed, match="the grammar cannot go on"):
        matcher_of(grammars, request(PHONE, b"12x"))
    with pytest.raises(GrammarFailed, match="the grammar cannot go on"):
        matcher_of(grammars, request(PHONE, b"123-45x"))


@pytest.mark.parametrize(
    "grammar",
    [
        "{",
        "no grammar",
        json.dumps({"grammars": []}),
        LLMatcher.grammar_from_regex("(unclosed"),
        LLMatcher.grammar_from_regex(r"[^\s\S]"),  # matches nothing
        LLMatcher.grammar_from_lark("start: missing"),
        LLMatcher.grammar_from_json_schema({"type": "no such type"}),
    ],
)
def test_a_grammar_that_cannot_be_used_is_refused_by_name(grammars: Grammars, grammar: str) -> None:
    with pytest.raises(RequestInvalid, match=r"^grammar cannot be used: .") as refusal:
        grammars.admit(request(grammar))
    assert len(str(refusal.value)) < 600
    with pytest.raises(RequestInvalid, match=r"^grammar cannot be used"):
        grammars.prepare(grammar).result(10)


def test_a_grammar_that_was_prepared_is_known_at_admission(grammars: Grammars) -> None:
    grammars.prepare(PHONE).result(10)
    assert grammars.prepare(PHONE).done()
    assert allowed(matcher_of(grammars, request(PHONE))) == list(b"0123456789")


def test_a_request_keeps_its_grammar_however_many_others_come_and_go(grammars: Grammars) -> None:
    kept = request(PHONE)
    grammars.admit(kept)
    for n in range(50):
        grammars.admit(request(LLMatcher.grammar_from_regex(f"a{{{n}}}b")))
    assert allowed(DerivedStates(grammars.matcher).of(kept)) == list(b"0123456789")


def test_nothing_is_kept_of_a_request_that_has_gone(grammars: Grammars) -> None:
    matchers = DerivedStates(grammars.matcher)
    gone = request(PHONE)
    grammars.admit(gone)
    matcher = weakref.ref(matchers.of(gone))
    del gone
    gc.collect()
    assert matcher() is None


def test_a_grammar_needs_a_tokenizer_and_an_end_of_text(tmp_path: Path, folder: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "tokenizer.json").write_text("{}")
    for grammars, reason in (
        (Grammars(None, {EOS_TOKEN_ID}), r"the model has no tokenizer\.json"),
        (Grammars(tmp_path, {EOS_TOKEN_ID}), r"the model has no tokenizer\.json"),
        (Grammars(broken, {EOS_TOKEN_ID}), "."),
        (Grammars(folder), "the model names no end-of-text token"),
    ):
        with pytest.raises(RequestInvalid, match=f"^grammar is not supported: {reason}"):
            grammars.admit(request(PHONE))
    with pytest.raises(RequestInvalid, match="leave ignore_eos off"):
        Grammars(folder, {EOS_TOKEN_ID}).admit(request(PHONE, stop_token_ids=frozenset({7})))
