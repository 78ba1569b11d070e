"""What `pdserve join` works out by itself, and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.commands.join import JoinError, address_towards, run


def test_the_own_address_is_the_one_that_leads_to_the_cluster() -> None:
    assert address_towards("127.0.0.1:6379") == "127.0.0.1"
    assert address_towards("[::1]:6379") == "::1"


@pytest.mark.parametrize("address", ["here", "here:there", "127.0.0.1"])
def test_an_address_without_a_port_is_refused(address: str) -> None:
    with pytest.raises(JoinError, match="write it as HOST:PORT"):
        address_towards(address)


def test_a_token_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(JoinError, match=r"--token-file .*nothing cannot be read: copy the token"):
        run("127.0.0.1:6379", tmp_path / "nothing", None, [], [])
