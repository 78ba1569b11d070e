"""Steps are lines where nobody looks at a terminal, and signals end a command only where they may."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator

import pytest
from rich.console import Console

from deploy.interrupts import Interrupts
from deploy.steps import Steps


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, action in before.items():
        signal.signal(number, action)


def test_off_a_terminal_each_step_is_a_line_told_once() -> None:
    out = io.StringIO()
    with Steps(Console(file=out)) as steps:
        for step in ("one", "one", "[two]"):
            steps.say(step)
    assert out.getvalue() == "one …\n[two] …\n"


def test_on_a_terminal_the_step_is_shown_in_place() -> None:
    out = io.StringIO()
    with Steps(Console(file=out, force_terminal=True)) as steps:
        steps.say("[one]")
    assert "[one] …" in out.getvalue()


@pytest.fixture
def interrupts() -> Interrupts:
    return Interrupts()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_command(interrupts: Interrupts, number: signal.Signals) -> None:
    interrupts.install()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)
    assert not interrupts.hurried.is_set()


def test_a_command_under_nohup_outlives_its_terminal(interrupts: Interrupts) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupts.install()
    os.kill(os.getpid(), signal.SIGHUP)


def test_a_second_ctrl_c_hurries_from_the_first_one_on(interrupts: Interrupts) -> None:
    interrupts.install()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    assert not interrupts.hurried.is_set()
    os.kill(os.getpid(), signal.SIGINT)
    assert interrupts.hurried.is_set()


def test_what_ends_by_itself_is_hurried_but_never_broken_off(interrupts: Interrupts) -> None:
    interrupts.install()
    interrupts.end()
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGINT):
        os.kill(os.getpid(), number)
    assert interrupts.hurried.is_set()
