"""`python unpack_model.py FOLDER` puts the default model there, as an image is built."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from deploy.model_store import DEFAULT_MODEL, resolve_model


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        shutil.copytree(resolve_model(DEFAULT_MODEL, Path(cache)), sys.argv[1])


if __name__ == "__main__":
    main()
