"""For whoever has a server's certificate as a file: trust in that one certificate, whatever name or address it is for.

So the commands on the proxy's own machine need no authority and no name to reach it.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from security.channel_tls import ChannelTls
from security.pem import TlsError, read


def pinned_channel_tls(certificate: Path) -> ChannelTls:
    """For gRPC. Raises TlsError."""
    leaf = _leaf(certificate)
    return ChannelTls(grpc.ssl_channel_credentials(leaf.public_bytes(Encoding.PEM)), _a_name_of(leaf, certificate))


def pinned_context(certificate: Path) -> ssl.SSLContext:
    """For HTTP. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # it is this certificate or none
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # its issuer need not be known
    context.load_verify_locations(cadata=_leaf(certificate).public_bytes(Encoding.PEM).decode())
    return context


def _leaf(certificate: Path) -> x509.Certificate:
    """The first of a chain."""
    try:
        return x509.load_pem_x509_certificate(read(certificate))
    except ValueError as error:
        raise TlsError(f"{certificate} is no certificate in PEM: {error}") from error


def _a_name_of(leaf: x509.Certificate, file: Path) -> str:
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise TlsError(f"{file} is made out to no name (subjectAltName): make one that is") from None
    dns = names.get_values_for_type(x509.DNSName)
    if dns:
        return dns[0].replace("*", "any", 1)  # a wildcard covers any one name
    return str(names.get_values_for_type(x509.IPAddress)[0])
