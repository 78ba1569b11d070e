"""No command is left without an answer."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from kv_transfer.inbox import Command, Inbox
from kv_transfer.transport import TransferFailed


def command() -> Command:
    return Command(Future(), lambda: None)


def test_commands_are_taken_in_the_order_they_were_put() -> None:
    inbox, commands = Inbox(), [command() for _ in range(3)]
    for each in commands:
        inbox.put(each)
    assert list(inbox.take(timeout_s=0.0)) == commands
    assert list(inbox.take(timeout_s=0.0)) == []


def test_a_closed_inbox_refuses_what_is_there_and_what_comes_later() -> None:
    inbox, early, late = Inbox(), command(), command()
    inbox.put(early)
    inbox.close("it broke")
    inbox.put(late)
    for each in (early, late):
        with pytest.raises(TransferFailed, match="it broke"):
            each.future.result(0.0)


def test_a_cancelled_command_is_refused_in_silence() -> None:
    inbox, cancelled = Inbox(), command()
    inbox.put(cancelled)
    assert cancelled.future.cancel()
    inbox.close("it broke")
    assert cancelled.future.cancelled()
