"""Steps are lines where nobody looks at a terminal, and signals end a command only where they may."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator

import pytest
from rich.console import Console

from deploy.interrupts import interrupt_on_signals, only_ctrl_c, uninterrupted
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_command(number: signal.Signals) -> None:
    interrupt_on_signals()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)


def test_a_command_under_nohup_outlives_its_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupt_on_signals()
    os.kill(os.getpid(), signal.SIGHUP)


def test_while_it_ends_only_ctrl_c_counts() -> None:
    only_ctrl_c()
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGHUP)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_what_must_be_finished_is_not_interrupted() -> None:
    with uninterrupted():
        os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
