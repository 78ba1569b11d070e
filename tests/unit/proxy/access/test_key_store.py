"""The file of keys, and the keys that hold while it changes."""

from __future__ import annotations

import hmac
import json
import logging
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.access import api_key
from proxy.access.api_key import ApiKey, NewKey, operator_key
from proxy.access.caller import Scope, TenantLimits
from proxy.access.key_file import KeyFile, KeyFileError
from proxy.access.key_store import CHECK_S, KeyStore
from tests.unit.proxy.access.keys import make_key, write_keys


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def pass_check(self) -> None:
        self.now += CHECK_S


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


class TestAKey:
    def test_it_is_256_random_bits_behind_a_prefix(self) -> None:
        drawn = [NewKey.draw() for _ in range(50)]
        assert all(api_key.FORM.fullmatch(key.text) for key in drawn)
        assert len({key.text.rpartition("-")[2][:8] for key in drawn}) == 50

    def test_only_its_digest_is_kept(self, path: Path) -> None:
        text, key = make_key("alice")
        write_keys(path, key)
        assert text.removeprefix(f"pdserve-{key.id}-") not in path.read_text()
        assert key.sha256 in path.read_text()

    def test_a_key_and_an_unknown_one_take_the_same_comparison(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text, key = make_key("alice")
        store = KeyStore(write_keys(path, key))
        compared: list[tuple[int, int]] = []

        def compare(left: str, right: str) -> bool:
            compared.append((len(left), len(right)))
            return hmac.compare_digest(left, right)

        monkeypatch.setattr(api_key, "compare_digest", compare)
        assert store.find(text) == key
        for wrong in (text[:-1] + ("A" if text[-1] != "A" else "B"), make_key("eve")[0], "", "pdserve-", "x" * 5000):
            assert store.find(wrong) is None
        assert compared == [(64, 64)] * 6

    @pytest.mark.parametrize("text", ["pdserve-1-2", "sk-something", "pdserve-0123456789abcdef-short", ""])
    def test_what_is_no_key_is_refused_as_the_operators(self, text: str) -> None:
        with pytest.raises(ValueError, match="no API key"):
            operator_key(text)


class TestTheFile:
    def test_what_is_written_is_read_and_is_the_owners_only(self, path: Path) -> None:
        _, key = make_key("alice", scopes={Scope.INFERENCE, Scope.OBSERVE})
        limits = TenantLimits(max_running=3)
        write_keys(path, key, tenants={"alice": limits})
        assert KeyFile.read(path) == KeyFile(keys=(key,), tenants={"alice": limits})
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert [file.name for file in path.parent.iterdir()] == [path.name]

    @pytest.mark.parametrize("mode", [0o644, 0o660, 0o606, 0o602])
    def test_one_that_others_can_read_or_change_is_refused_with_the_fix(self, path: Path, mode: int) -> None:
        write_keys(path)
        path.chmod(mode)
        with pytest.raises(KeyFileError, match=f"chmod 600 {path}"):
            KeyFile.read(path)

    @pytest.mark.parametrize("mode", [0o400, 0o440, 0o600, 0o640])
    def test_a_mounted_secret_may_be_its_groups_to_read(self, path: Path, mode: int) -> None:
        write_keys(path)
        path.chmod(mode)
        assert KeyFile.read(path) == KeyFile()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda content: content["keys"][0].update(sha256="12"), r"keys\.0\.sha256: String should match"),
            (lambda content: content["keys"][0].update(scopes=["all"]), r"keys\.0\.scopes"),
            (lambda content: content["keys"][0].update(tenant="two words"), r"keys\.0\.tenant"),
            (lambda content: content["keys"][0].update(expires_at="2026-01-01T00:00:00"), r"keys\.0\.expires_at"),
            (lambda content: content["keys"].append(content["keys"][0]), "2 keys have the name alice"),
            (lambda content: content.update(tenants={"a": {"max_running": 0}}), r"tenants\.a\.max_running"),
            (lambda content: content.update(more=1), "more: Extra inputs"),
        ],
    )
    def test_a_fault_is_named_without_quoting_what_is_there(
        self, path: Path, change: Callable[[dict[str, list[dict[str, object]]]], None], message: str
    ) -> None:
        write_keys(path, make_key("alice")[1])
        content = json.loads(path.read_text())
        digest = content["keys"][0]["sha256"]
        change(content)
        path.write_text(json.dumps(content))
        with pytest.raises(KeyFileError, match=message) as refused:
            KeyFile.read(path)
        assert digest not in str(refused.value)

    def test_one_that_is_not_there_is_named(self, path: Path) -> None:
        with pytest.raises(KeyFileError, match="cannot be read: No such file"):
            KeyStore(path)

    def test_one_that_cannot_be_written_leaves_nothing_behind(self, path: Path) -> None:
        path.mkdir()
        with pytest.raises(KeyFileError, match="cannot be written"):
            KeyFile().write(path)
        assert [file.name for file in path.parent.iterdir()] == [path.name]


class TestTheKeysThatHold:
    def test_a_new_key_holds_within_a_second(self, path: Path, clock: Clock) -> None:
        (first, first_key), (second, second_key) = make_key("first"), make_key("second")
        store = KeyStore(write_keys(path, first_key), clock=clock)
        write_keys(path, first_key, second_key)
        assert store.find(second) is None  # looked at a moment ago
        clock.pass_check()
        assert (store.find(first), store.find(second)) == (first_key, second_key)

    def test_a_revoked_key_and_new_limits_are_seen(self, path: Path, clock: Clock) -> None:
        text, key = make_key("alice")
        store = KeyStore(write_keys(path, key), clock=clock)
        assert store.limits("alice") == TenantLimits()
        write_keys(path, key.model_copy(update={"is_revoked": True}), tenants={"alice": TenantLimits(max_queued=2)})
        clock.pass_check()
        found = store.find(text)
        assert isinstance(found, ApiKey)
        assert found.is_revoked
        assert store.limits("alice").max_queued == 2

    @pytest.mark.parametrize("break_it", [lambda p: p.write_text("{"), lambda p: p.unlink(), lambda p: p.chmod(0o666)])
    def test_the_last_good_keys_outlive_a_broken_file(
        self, path: Path, clock: Clock, break_it: Callable[[Path], None], caplog: pytest.LogCaptureFixture
    ) -> None:
        text, key = make_key("alice")
        store = KeyStore(write_keys(path, key), clock=clock)
        break_it(path)
        for _ in range(3):
            clock.pass_check()
            assert store.find(text) == key
        told = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert len(told) == 1
        assert str(path) in told[0].getMessage()
        write_keys(path)
        clock.pass_check()
        assert store.find(text) is None

    def test_the_operators_key_is_in_no_file_and_outlives_each(self, path: Path, clock: Clock) -> None:
        drawn = NewKey.draw()
        store = KeyStore(write_keys(path), operator_key(drawn.text), clock)
        for _ in range(2):
            found = store.find(drawn.text)
            assert found is not None
            assert found.scopes == frozenset(Scope)
            write_keys(path, make_key("alice")[1])
            clock.pass_check()
