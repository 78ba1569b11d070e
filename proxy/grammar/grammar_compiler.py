"""Clients' grammars, compiled and tried in a process of their own, and the latest verdicts kept.

A grammar that makes that process hang or die is refused. The process starts when it is first needed, and again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from pathlib import Path

from proxy.errors import ApiError, ErrorCode, invalid
from proxy.grammar.fair_turn import FairTurn
from proxy.grammar.structured_output import StructuredOutput

MAX_KEPT = 256
MAX_LINE_BYTES = 4 << 20
END_S = 5.0  # for the process to be gone
MAX_MESSAGE = 200  # characters of llguidance's own words
ENDED_BY_GRAMMAR = (-signal.SIGPROF, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS)  # time, stack, memory
TOO_COMPLEX = "too complex: it takes more time, memory or depth to compile than this server allows"
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompilerTimes:
    start_s: float = 30.0
    answer_s: float = 10.0  # the process ends itself after 2 s of computing; this is for when it gets no time to
    wait_s: float = 10.0  # for others' grammars before this one


@dataclass(frozen=True, slots=True)
class Verdict:
    grammar: str = ""
    error: str = ""


class GrammarCompiler:
    """Maintains at most one process and, for the latest grammars, what it said."""

    def __init__(
        self, tokenizer_file: Path, eos_token_ids: Collection[int], times: CompilerTimes = CompilerTimes()
    ) -> None:
        self._arguments = [str(tokenizer_file), *(str(token_id) for token_id in sorted(eos_token_ids))]
        self._times = times
        self._verdicts: OrderedDict[tuple[str, str], Verdict] = OrderedDict()
        self._turn = FairTurn()
        self._process: Process | None = None

    async def compile(self, output: StructuredOutput, tenant: str = "") -> str:
        """llguidance's serialised form, which workers take. Raises ApiError."""
        key = (output.kind.value, output.text)
        verdict = self._kept(key)
        if verdict is None:
            async with self._my_turn(tenant):
                verdict = self._kept(key)
                if verdict is None:
                    verdict = self._keep(key, await self._check(output))
        if verdict.error:
            raise invalid(output.field, verdict.error, "invalid_grammar")
        return verdict.grammar

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await _end(process)

    def _kept(self, key: tuple[str, str]) -> Verdict | None:
        verdict = self._verdicts.get(key)
        if verdict is not None:
            self._verdicts.move_to_end(key)
        return verdict

    def _keep(self, key: tuple[str, str], verdict: Verdict) -> Verdict:
        self._verdicts[key] = verdict
        if len(self._verdicts) > MAX_KEPT:
            self._verdicts.popitem(last=False)
        return verdict

    @contextlib.asynccontextmanager
    async def _my_turn(self, tenant: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._times.wait_s):
                await self._turn.acquire(tenant)
        except TimeoutError as error:
            message = "the server is busy with others' grammars"
            raise ApiError(ErrorCode.RESOURCE_EXHAUSTED, message, reason="grammars_busy", retry_after_s=1) from error
        try:
            yield
        finally:
            self._turn.release()

    async def _check(self, output: StructuredOutput) -> Verdict:
        question = json.dumps({"kind": output.kind.value, "text": output.text}).encode() + b"\n"
        try:
            process = self._process or await self._start()
            line = await self._ask(process, question, self._times.answer_s)
            if line:
                answer = json.loads(line)
                return Verdict(answer.get("grammar", ""), _brief(answer.get("error", "")))
            exit_code = await _end(process)
        except BaseException:  # out of step with its answers
            await self.close()
            raise
        self._process = None
        if exit_code not in ENDED_BY_GRAMMAR:
            raise _not_available(f"it ended with exit code {exit_code}")
        logger.warning("a grammar of %d bytes ended the process that tried it: %d", len(output.text), exit_code)
        return Verdict(error=TOO_COMPLEX)

    async def _start(self) -> Process:
        process = self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "proxy.grammar.grammar_checker", *self._arguments),
            stdin=PIPE,
            stdout=PIPE,
            limit=MAX_LINE_BYTES,
        )
        if not await self._ask(process, b"", self._times.start_s):
            raise _not_available("it did not start")
        return process

    async def _ask(self, process: Process, question: bytes, timeout_s: float) -> bytes:
        """One line of answer; empty when the process has ended."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                process.stdin.write(question)
                with contextlib.suppress(ConnectionError):
                    await process.stdin.drain()
                return await process.stdout.readline()
        except TimeoutError as error:
            raise _not_available(f"no answer within {timeout_s:g} s") from error


async def _end(process: Process) -> int:
    """The exit code of a process that has closed its output, or was killed. Raises ApiError when it stays."""
    try:
        async with asyncio.timeout(END_S):
            return await process.wait()
    except TimeoutError as error:
        raise _not_available(f"it did not end within {END_S:g} s") from error


def _not_available(reason: str) -> ApiError:
    logger.error("the process that tries grammars: %s", reason)
    message = f"structured output is not available now: {reason}"
    return ApiError(ErrorCode.UNAVAILABLE, message, reason="grammars_unavailable", retry_after_s=1)


def _brief(error: str) -> str:
    """The line that says what is wrong."""
    lines = [line.strip() for line in error.removesuffix("<non-verbose/>").splitlines()]
    if not any(lines):
        return ""
    if lines[0].startswith("NoExtension"):
        return "no text satisfies it"
    said = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
    return said if len(said) <= MAX_MESSAGE else said[: MAX_MESSAGE - 3] + "..."
