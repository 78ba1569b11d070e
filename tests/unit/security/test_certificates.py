"""What `pdserve certs` makes, and what is refused."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from deploy.commands import certs
from deploy.errors import CommandError
from security.certificates import CertificatesError, make_certificates
from security.cluster_tls import ClusterTls
from security.pem import TlsError, check_pair
from security.server_certificate import server_credentials


def read(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def names_of(certificate: x509.Certificate) -> set[str]:
    return {str(n.value) for n in certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value}


def test_the_authority_signs_one_for_the_inside_and_one_for_clients(certificates: Path) -> None:
    authority = read(certificates / "ca.crt")
    for name in ("internal", "server"):
        read(certificates / f"{name}.crt").verify_directly_issued_by(authority)
        check_pair(certificates / f"{name}.crt", certificates / f"{name}.key")
    assert names_of(read(certificates / "internal.crt")) == {"pdserve.internal"}
    assert names_of(read(certificates / "server.crt")) == {"localhost", "127.0.0.1"}


def test_keys_are_their_owners_alone_and_lifetimes_are_as_asked(certificates: Path) -> None:
    keys = sorted(certificates.glob("*.key"))
    assert [key.name for key in keys] == ["ca.key", "internal.key", "server.key"]
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}
    left = read(certificates / "internal.crt").not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=29) < left < timedelta(days=31)


def test_nothing_is_written_over(certificates: Path) -> None:
    before = (certificates / "ca.crt").read_bytes()
    with pytest.raises(CertificatesError, match="never written over"):
        make_certificates(certificates, ["localhost"], days=1)
    assert (certificates / "ca.crt").read_bytes() == before


@pytest.mark.parametrize(("host", "message"), [("pdserve.internal", "its own processes"), ("tönnies", "neither")])
def test_a_host_that_cannot_be_is_named(tmp_path: Path, host: str, message: str) -> None:
    with pytest.raises(CertificatesError, match=message):
        make_certificates(tmp_path / "new", [host], days=1)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CertificatesError, match="cannot be written"):
        make_certificates(tmp_path / "file" / "new", ["localhost"], days=1)


def test_the_command_says_the_settings_to_start_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certs.run(tmp_path / "new", ["localhost"], 30)
    said = capsys.readouterr().out
    assert f"--set cluster.tls={tmp_path}/new --set proxy.tls_cert={tmp_path}/new/server.crt" in said
    with pytest.raises(CommandError, match="never written over"):
        certs.run(tmp_path / "new", ["localhost"], 30)


def test_a_key_that_others_can_read_is_refused_with_the_fix(tmp_path: Path) -> None:
    make_certificates(tmp_path / "new", ["localhost"], days=1)
    key = tmp_path / "new" / "internal.key"
    key.chmod(0o644)
    with pytest.raises(TlsError, match=f"chmod 600 {key}"):
        ClusterTls.read(tmp_path / "new")


def test_a_certificate_and_another_ones_key_are_refused(certificates: Path, foreign: Path) -> None:
    with pytest.raises(TlsError, match="no certificate and its key"):
        server_credentials(certificates / "server.crt", foreign / "server.key")


def test_a_folder_without_certificates_is_named_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(TlsError, match=r"ca\.crt cannot be read: No such file.*pdserve certs"):
        ClusterTls.read(tmp_path)
