"""`pdserve certs`."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from deploy.errors import CommandError
from security.certificates import CertificatesError, make_certificates


def run(folder: Path, hosts: list[str], days: int) -> None:
    folder = folder.absolute()
    try:
        make_certificates(folder, hosts, days)
    except CertificatesError as error:
        raise CommandError(str(error)) from error
    settings = (f"cluster.tls={folder}", f"proxy.tls_cert={folder}/server.crt", f"proxy.tls_key={folder}/server.key")
    console = Console(highlight=False)
    for line in (
        f"{folder} holds {days} days for {', '.join(hosts)}.",
        "Start with it:  pdserve up " + " ".join(f"--set {setting}" for setting in settings),
        f"For clients:    {folder}/ca.crt",
        f"Keep offline:   {folder}/ca.key, which no process of a cluster needs",
        "Other machines: the folder without ca.key and server.key, at the same path",
    ):
        console.print(line, markup=False, soft_wrap=True)
