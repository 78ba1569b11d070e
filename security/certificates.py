"""Makes a cluster's certificates: its own authority, one for what is inside, and one for the ports that clients use.

A folder of them is made once, whole, and never written over.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from security.cluster_tls import AUTHORITY, INTERNAL, INTERNAL_NAME

AUTHORITY_DAYS = 3650
SERVER = "server"
CLOCK_SKEW = timedelta(hours=1)  # of a machine that checks a new certificate


class CertificatesError(Exception):
    """They cannot be made; the message says why and what to do."""


def make_certificates(folder: Path, hosts: Sequence[str], days: int) -> None:
    """`hosts`: names and addresses by which clients reach the proxy; `days`: how long all but the authority hold.

    Raises CertificatesError.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CertificatesError(f"{folder} is there already: name another folder; certificates are never written over")
    names = [_name(host) for host in hosts]
    now = datetime.now(UTC)
    authority = _Authority(now)
    until = now + timedelta(days=days)
    internal = [x509.DNSName(INTERNAL_NAME)]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))  # of mode 0700
        try:
            _write(made, AUTHORITY, authority.certificate, authority.key)
            both = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
            _write(made, INTERNAL, *authority.issue("pdserve internal", internal, both, until))
            _write(made, SERVER, *authority.issue("pdserve", names, (ExtendedKeyUsageOID.SERVER_AUTH,), until))
            os.replace(made, folder)  # an empty folder may be there
        except OSError:
            shutil.rmtree(made, ignore_errors=True)
            raise
    except OSError as error:
        raise CertificatesError(f"{folder} cannot be written: {error.strerror}") from error


class _Authority:
    """Maintains nothing on disk: its key is needed to issue certificates, and by no process of a cluster."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self.key = generate_private_key(SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pdserve cluster authority")])
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # signs certificates, lists
        builder = self._builder(self._name, self.key, now + timedelta(days=AUTHORITY_DAYS))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.certificate = builder.add_extension(usage, critical=True).sign(self.key, SHA256())

    def issue(
        self,
        common_name: str,
        names: Sequence[x509.GeneralName],
        uses: Sequence[x509.ObjectIdentifier],
        until: datetime,
    ) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
        key = generate_private_key(SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        builder = self._builder(subject, key, until)
        for extension, critical in (
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (x509.SubjectAlternativeName(names), False),
            (x509.ExtendedKeyUsage(uses), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), False),
        ):
            builder = builder.add_extension(extension, critical=critical)
        return builder.sign(self.key, SHA256()), key

    def _builder(self, subject: x509.Name, key: EllipticCurvePrivateKey, until: datetime) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - CLOCK_SKEW)
            .not_valid_after(until)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )


def _name(host: str) -> x509.GeneralName:
    """Raises CertificatesError."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if host == INTERNAL_NAME:
        raise CertificatesError(f"--host {host}: that name is what the cluster knows its own processes by")
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise CertificatesError(f"--host {host!r} is neither an address nor a name in ASCII") from error


def _write(folder: Path, name: str, certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> None:
    (folder / f"{name}.crt").write_bytes(certificate.public_bytes(Encoding.PEM))
    descriptor = os.open(folder / f"{name}.key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
