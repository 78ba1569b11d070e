"""The process in which clients' grammars are tried: `python -m proxy.grammar.grammar_checker TOKENIZER_JSON EOS_ID…`.

A line of JSON comes in for each, and a line goes out. A short grammar can make llguidance compute for ever, take all
memory or overflow its stack; here that ends this process, not the proxy, and no worker ever sees such a grammar.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
import threading
from typing import TextIO

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from proxy.grammar.structured_output import JSON_STYLE, GrammarKind

MAX_CPU_S = 2.0
MAX_MEMORY_BYTES = 2 << 30
STACK_BYTES = 1 << 20  # an eighth of what a worker's thread has: what passes here does not overflow there
NUM_TRIED_TOKENS = 16
LEXER_FUEL = 200_000  # as on the workers, whose step it bounds: 0.06 s at worst, and 0.6 s with llguidance's own limit
READY = "ready"


class GrammarChecker:
    """Turns what clients write into llguidance's serialised form, and takes a few steps with it."""

    def __init__(self, tokenizer: LLTokenizer) -> None:
        self._tokenizer = tokenizer

    def check(self, kind: GrammarKind, text: str) -> dict[str, str]:
        """`grammar`, or `error` with the reason."""
        try:
            grammar = _serialised(kind, text)
        except Exception as error:  # noqa: BLE001  gbnf_to_lark raises plain ones, and a RecursionError
            return {"error": str(error)}
        error_text = self._try(grammar)
        return {"error": error_text} if error_text else {"grammar": grammar}

    def _try(self, grammar: str) -> str:
        """Why it cannot be used; empty when it can. Some are only found too complex when a mask is computed."""
        limits = LLParserLimits(verbose_errors=False, initial_lexer_fuel=LEXER_FUEL)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
        chance = random.Random(0)
        for _ in range(NUM_TRIED_TOKENS):
            mask = b"" if matcher.is_error() else matcher.compute_bitmask()
            if matcher.is_error():
                return str(matcher.get_error())
            allowed = [index for index, byte in enumerate(mask) if byte]
            index = chance.choice(allowed)
            token_id = index * 8 + chance.choice([bit for bit in range(8) if mask[index] >> bit & 1])
            if token_id in self._tokenizer.eos_tokens:
                return ""
            matcher.consume_token(token_id)
        return ""


def _serialised(kind: GrammarKind, text: str) -> str:
    match kind:
        case GrammarKind.JSON_SCHEMA:
            return str(LLMatcher.grammar_from_json_schema(text, overrides=JSON_STYLE))
        case GrammarKind.REGEX:
            return str(LLMatcher.grammar_from_regex(text))
        case GrammarKind.GRAMMAR:
            return str(LLMatcher.grammar_from_lark(any_to_lark(text)))


def serve(checker: GrammarChecker, questions: TextIO, answers: TextIO) -> None:
    """Until `questions` ends, as it does when the proxy does."""
    print(READY, file=answers, flush=True)
    for line in questions:
        question = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)  # nobody catches SIGPROF: it ends the process
        answer = checker.check(GrammarKind(question["kind"]), question["text"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(answer), file=answers, flush=True)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the proxy, which then closes our input
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    tokenizer_file, *eos_token_ids = sys.argv[1:]
    checker = GrammarChecker(LLTokenizer(tokenizer_file, eos_token=[int(token_id) for token_id in eos_token_ids]))
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=serve, args=(checker, sys.stdin, sys.stdout))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
