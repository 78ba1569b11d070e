"""Two clusters' certificates, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from security.certificates import make_certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls") / "certificates"
    make_certificates(folder, ["localhost", "127.0.0.1"], days=30)
    return folder


@pytest.fixture(scope="session")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of another cluster: all right in itself."""
    folder = tmp_path_factory.mktemp("tls") / "foreign"
    make_certificates(folder, ["localhost"], days=30)
    return folder
