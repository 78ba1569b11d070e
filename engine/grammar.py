"""Structured output: which tokens a request's grammar allows next, by llguidance.

A grammar is compiled once, before its request is queued; a request's `GrammarMatcher` is derived from the compiled
grammar and the tokens generated so far, so that it can be made anew wherever the request goes on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from engine.errors import RequestInvalid
from engine.request import Request

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_RECENT = 32  # compiled grammars that are kept for the next request with the same one
MAX_LEXER_STATES = 50_000  # of one request; 1 to 2 kB each
LEXER_FUEL = 200_000  # bounds how long a hostile grammar holds up a step: 0.06 s; with llguidance's own limit 0.6 s
MAX_ERROR_LENGTH = 500  # characters


class GrammarFailed(Exception):
    """No next token can be chosen for this request; the message says why."""


class GrammarMatcher:
    """Maintains where in its grammar a completion is."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def take(self, token_id: int) -> None:
        """Raises GrammarFailed for a token that the grammar does not allow here."""
        self._matcher.consume_token(token_id)
        self._check()

    def allowed(self, vocab_size: int) -> NDArray[np.bool_]:
        """Which token may come next; the end of text, and nothing else, where the grammar can go no further.

        `vocab_size` is that of the logits. Tokens that the tokenizer does not know are not allowed.
        """
        mask = self._matcher.compute_bitmask()
        self._check()
        allowed = np.unpackbits(np.frombuffer(mask, np.uint8), count=vocab_size, bitorder="little").view(np.bool_)
        if not allowed.any():
            raise GrammarFailed("the grammar allows no token that the model has")
        return allowed

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarFailed(f"the grammar cannot go on: {_error_of(self._matcher)}")


class Grammars:
    """Maintains the compiled grammars of all live requests, and a few more. Any thread may call it."""

    def __init__(self, folder: Path | None, eos_token_ids: Iterable[int] = ()) -> None:
        """`folder`: the model's, whose `tokenizer.json` says what each token means. Without it, or without an end of
        text, every grammar is refused."""
        self._eos_token_ids = sorted(eos_token_ids)
        self._tokenizer: LLTokenizer | None = None
        try:  # now, since it keeps all other threads waiting
            self._tokenizer = _load_tokenizer(folder, self._eos_token_ids)
        except Exception as error:  # noqa: BLE001  llguidance raises what its parts do; a model may do without
            self._refusal = f"grammar is not supported: {error}"
        self._recent: OrderedDict[str, LLMatcher] = OrderedDict()  # least recently used first
        self._recent_lock = Lock()
        self._compiled: WeakKeyDictionary[Request, LLMatcher] = WeakKeyDictionary()
        self._compiler = ThreadPoolExecutor(1, "grammar")

    def prepare(self, grammar: str) -> Future[None]:
        """Compiles in a thread of its own, so that `admit` finds it done. The future raises what `admit` does."""
        with self._recent_lock:
            known = grammar in self._recent
        if not known:
            return self._compiler.submit(self._prepare, grammar)
        prepared: Future[None] = Future()
        prepared.set_result(None)
        return prepared

    def admit(self, request: Request) -> None:
        """Raises RequestInvalid where the request's grammar can never be followed."""
        if not request.sampling.grammar:
            return
        if not request.sampling.stop_token_ids.issuperset(self._eos_token_ids):
            raise RequestInvalid("grammar needs the end of text among stop_token_ids: leave ignore_eos off")
        self._compiled[request] = self._compile(request.sampling.grammar)

    def matcher(self, request: Request) -> GrammarMatcher:
        """At the request's start. Raises GrammarFailed."""
        compiled = self._compiled.get(request)
        if compiled is None:
            raise GrammarFailed("the grammar was not compiled")
        return GrammarMatcher(compiled.deep_copy())

    def _prepare(self, grammar: str) -> None:
        self._compile(grammar)

    def _compile(self, grammar: str) -> LLMatcher:
        with self._recent_lock:
            compiled = self._recent.get(grammar)
        if compiled is None:
            compiled = self._match(grammar)
            compiled.compute_bitmask()  # some faults show here only; and every copy has the first mask's work done
            if compiled.is_error():
                raise RequestInvalid(f"grammar cannot be used: {_error_of(compiled)}")
        with self._recent_lock:
            self._recent[grammar] = compiled
            self._recent.move_to_end(grammar)
            if len(self._recent) > MAX_RECENT:
                self._recent.popitem(last=False)
        return compiled

    def _match(self, grammar: str) -> LLMatcher:
        if self._tokenizer is None:
            raise RequestInvalid(self._refusal)
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(initial_lexer_fuel=LEXER_FUEL, max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)
        return LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)


def _load_tokenizer(folder: Path | None, eos_token_ids: list[int]) -> LLTokenizer:
    """Raises ValueError, or whatever llguidance does, with the reason why there is none."""
    if folder is None or not (folder / "tokenizer.json").is_file():
        raise ValueError("the model has no tokenizer.json")
    if not eos_token_ids:
        raise ValueError("the model names no end-of-text token")
    from llguidance import LLTokenizer

    return LLTokenizer(str(folder / "tokenizer.json"), eos_token=eos_token_ids)


def _error_of(matcher: LLMatcher) -> str:
    error: str = matcher.get_error()
    return error.removesuffix("<non-verbose/>").strip()[:MAX_ERROR_LENGTH]
