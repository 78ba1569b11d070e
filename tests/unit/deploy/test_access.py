"""Keys and certificates as the commands use and check them."""

from __future__ import annotations

import re
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from deploy.cluster_access import ClusterAccess, write_operator_key
from deploy.commands import keys
from deploy.config import DEFAULT_FILE, ConfigError, load
from deploy.errors import CommandError
from deploy.prometheus import settings_for
from deploy.security_check import SecurityError, check_security
from proxy.access.caller import Scope, TenantLimits
from proxy.access.key_file import KeyFile
from proxy.access.key_store import KeyStore
from security.certificates import make_certificates
from tests.unit.deploy.test_cluster_state import state

INFERENCE = [Scope.INFERENCE]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls") / "made"
    make_certificates(folder, ["proxy.example"], days=1)
    return folder


def add(file: Path, name: str, tenant: str | None = None, days: int | None = None, **limits: int | None) -> None:
    keys.add(file, name, tenant, INFERENCE, days, limits, may_set_tenant=False)


class TestKeys:
    def test_a_key_is_printed_once_and_is_valid(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "keys.json"
        add(file, "alice", max_running=3)
        add(file, "bob", "alice", max_queued=2, max_running=None)
        printed = capsys.readouterr().out.split()
        store = KeyStore(file)
        found = [store.find(key) for key in printed]
        assert [(key.name, key.tenant) for key in found if key] == [("alice", "alice"), ("bob", "alice")]
        assert store.limits("alice") == TenantLimits(max_running=3, max_queued=2)
        keys.show(file)
        shown = capsys.readouterr().out
        assert "max_queued 2, max_running 3" in shown
        assert not [key for key in printed if key[-43:] in shown]

    def test_a_revoked_key_stays_in_the_list_and_keeps_its_name(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "keys.json"
        add(file, "alice", days=10)
        keys.revoke(file, "alice")
        keys.show(file)
        assert re.search(r"alice .* revoked", capsys.readouterr().out)
        with pytest.raises(CommandError, match="has a key 'alice' already"):
            add(file, "alice")

    @pytest.mark.parametrize(("name", "tenant"), [("two words", None), ("", None), ("a", "two words")])
    def test_a_name_that_cannot_be_is_refused_and_nothing_is_written(
        self, tmp_path: Path, name: str, tenant: str | None
    ) -> None:
        with pytest.raises(CommandError, match=r"name|tenant"):
            add(tmp_path / "keys.json", name, tenant)
        assert not (tmp_path / "keys.json").exists()

    def test_a_file_that_is_broken_or_away_is_named(self, tmp_path: Path) -> None:
        file = tmp_path / "keys.json"
        with pytest.raises(CommandError, match="cannot be read"):
            keys.revoke(file, "alice")
        file.write_text("{")
        file.chmod(0o600)
        with pytest.raises(CommandError, match=str(file)):
            add(file, "alice")
        with pytest.raises(CommandError, match="cannot be written"):
            add(file / "keys.json", "alice")

    def test_one_that_nobody_has_is_told(self, tmp_path: Path) -> None:
        KeyFile().write(tmp_path / "keys.json")
        with pytest.raises(CommandError, match="no key 'eve'"):
            keys.revoke(tmp_path / "keys.json", "eve")


class TestTheConfiguration:
    def test_beyond_loopback_needs_keys_then_tls(self, certificates: Path) -> None:
        cert = {"proxy.tls_cert": f"{certificates}/server.crt", "proxy.tls_key": f"{certificates}/server.key"}
        host, file = {"proxy.host": "10.0.0.1"}, {"proxy.keys_file": "/keys.json"}
        for given, missing in (({}, "keys_file"), (cert, "keys_file"), (file, "tls_cert")):
            with pytest.raises(ConfigError, match=f"host 10.0.0.1 can be reached.*set {missing}"):
                load(DEFAULT_FILE, {**host, **given})
        assert load(DEFAULT_FILE, {**host, **file, **cert}).proxy.host == "10.0.0.1"
        assert load(DEFAULT_FILE, {**host, **file, "proxy.insecure": True}).proxy.keys_file == Path("/keys.json")

    def test_the_inside_beyond_loopback_needs_certificates(self, certificates: Path) -> None:
        with pytest.raises(ConfigError, match=r"cluster\.host 10\.0\.0\.1 can be reached.*set cluster\.tls"):
            load(DEFAULT_FILE, {"cluster.host": "10.0.0.1"})
        assert load(DEFAULT_FILE, {"cluster.host": "10.0.0.1", "cluster.tls": str(certificates)})

    @pytest.mark.parametrize(
        ("setting", "message"),
        [
            ({"cluster.tls": "certs"}, "tls is certs: write the whole path"),
            ({"proxy.keys_file": "keys.json"}, "keys_file is keys.json: write the whole path"),
            ({"proxy.tls_cert": "/a"}, "belong together"),
        ],
    )
    def test_what_cannot_be_found_later_is_refused(self, setting: dict[str, object], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            load(DEFAULT_FILE, setting)

    @pytest.mark.parametrize(
        ("setting", "message"),
        [
            ({"cluster.tls": "/nowhere"}, r"cluster\.tls: /nowhere/ca\.crt cannot be read"),
            ({"proxy.keys_file": "/nowhere"}, r"proxy\.keys_file: /nowhere cannot be read"),
            ({"proxy.tls_cert": "/no", "proxy.tls_key": "/no"}, r"proxy\.tls_cert and tls_key: /no cannot be read"),
        ],
    )
    def test_files_are_tried_before_anything_starts(self, setting: dict[str, object], message: str) -> None:
        with pytest.raises(SecurityError, match=message):
            check_security(load(DEFAULT_FILE, setting))


class TestAccess:
    def test_a_plain_cluster_needs_nothing(self) -> None:
        assert ClusterAccess.of(state()) == ClusterAccess(None, None, None, ())

    def test_the_operators_key_is_its_owners_alone(self, tmp_path: Path) -> None:
        file = tmp_path / "operator_key"
        write_operator_key(file)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        access = ClusterAccess.of(replace(state(), operator_key_file=str(file)))
        assert access.metadata == (("authorization", f"Bearer {file.read_text()}"),)

    def test_files_that_went_away_are_named(self, tmp_path: Path) -> None:
        gone = str(tmp_path / "gone")
        for changed in (
            replace(state(), tls=gone),
            replace(state(), tls_cert=gone),
            replace(state(), operator_key_file=gone),
        ):
            with pytest.raises(CommandError, match="cannot be read"):
                ClusterAccess.of(changed)

    def test_prometheus_gets_in_and_gives_the_key_to_the_proxy_only(self, certificates: Path, tmp_path: Path) -> None:
        key = tmp_path / "operator_key"
        write_operator_key(key)
        locked = replace(state(), tls_cert=f"{certificates}/server.crt", operator_key_file=str(key))
        settings = yaml.safe_load(settings_for(locked, ClusterAccess.of(locked)))
        proxy, workers = settings["scrape_configs"]
        assert (proxy["scheme"], proxy["authorization"]) == ("https", {"credentials_file": str(key)})
        assert proxy["tls_config"]["server_name"] == "proxy.example"
        assert not {"scheme", "authorization", "tls_config"} & set(workers)
        for job, action in ((proxy, "keep"), (workers, "drop")):
            assert job["relabel_configs"] == [{"source_labels": ["role"], "regex": "proxy", "action": action}]
            (discovery,) = job["http_sd_configs"]
            assert discovery["url"] == "https://[::1]:8000/prometheus/targets"
            assert discovery["authorization"] == {"credentials_file": str(key)}
