"""State files: claimed once, read back whole, forgotten."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from deploy.cluster_state import (
    ClusterExistsError,
    ClusterNameError,
    ClusterState,
    NoClusterError,
    StateFileError,
    StateStore,
    default_store,
)
from deploy.processes import ProcessReference, reference


def state(name: str = "default") -> ClusterState:
    return ClusterState(
        name=name,
        mark="abc",
        folder="/tmp/x",
        model="fake",
        config="local.yaml",
        host="::1",
        controller_address="[::1]:8002",
        controller_port=8002,
        grpc_port=8001,
        http_port=8000,
        prometheus_port=None,
        drain_timeout_s=30.0,
        shutdown_timeout_s=50.0,
        started_at=1.0,
        launcher=reference(os.getpid()),
    )


def test_a_claimed_state_is_read_back_as_it_was(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "pdserve")
    store.claim(state())
    assert store.read("default") == state()
    head = ProcessReference(1, 2)
    updated = store.update(state(), head=head, is_up=True)
    assert store.read("default") == updated
    assert updated.head == head


def test_a_name_is_claimed_once(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.claim(state())
    with pytest.raises(ClusterExistsError, match="pdserve down --name default"):
        store.claim(state())


def test_a_claim_is_seen_whole_or_not_at_all(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    seen: list[int] = []
    done = Event()

    def look() -> None:
        while not done.is_set():
            seen.append(len(store.all()))

    with ThreadPoolExecutor(1) as looking:
        looks = looking.submit(look)
        for _ in range(50):
            store.claim(state())
            store.forget("default")
        done.set()
        looks.result(timeout=10)
    assert set(seen) <= {0, 1}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"name": "old"}', '{"launcher": 1, "head": null}'])
def test_a_file_that_cannot_be_read_is_named_and_hurts_no_other_cluster(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    store = StateStore(tmp_path)
    store.claim(state("good"))
    (tmp_path / "bad.json").write_text(content)
    assert [found.name for found in store.all()] == ["good"]
    assert str(tmp_path / "bad.json") in caplog.text
    with pytest.raises(StateFileError, match=r"bad\.json.*remove the file"):
        store.read("bad")
    with pytest.raises(ClusterExistsError):
        store.claim(state("bad"))


def test_an_unknown_name_is_told_with_the_names_there_are(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.claim(state("one"))
    with pytest.raises(NoClusterError, match=r"no cluster named 'two' runs here \(running: one\); name it: --name one"):
        store.read("two")
    store.forget("one")
    store.forget("one")
    with pytest.raises(NoClusterError, match=r"\(running: none\); start it: pdserve up"):
        store.read("two")
    assert store.all() == []
    assert store.find("one") is None


@pytest.mark.parametrize("name", ["../x", "", "a b", "x" * 41, "a/b"])
def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ClusterNameError):
        StateStore(tmp_path).find(name)


def test_a_cluster_is_alive_while_its_head_is_or_while_it_is_brought_up(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.claim(state())
    assert store.read("default").is_alive
    assert not store.update(state(), head=ProcessReference(os.getpid(), 0)).is_alive


def test_addresses_keep_their_brackets() -> None:
    assert state().http_url == "http://[::1]:8000"
    assert state().grpc_address == "[::1]:8001"


def test_the_state_folder_follows_xdg() -> None:
    assert default_store({"XDG_STATE_HOME": "/s"})._folder == Path("/s/pdserve")
    assert default_store({})._folder == Path.home() / ".local/state/pdserve"
