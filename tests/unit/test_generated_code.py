"""rpc/ is what the protos say: generated anew, it is the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_generated_code_matches_the_protos(tmp_path: Path) -> None:
    protos = sorted(str(file.relative_to(ROOT)) for file in (ROOT / "proto").glob("*.proto"))
    command = [
        sys.executable, "-m", "grpc_tools.protoc", "-I", "rpc=proto",
        f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", f"--grpc_python_out={tmp_path}", *protos,
    ]  # fmt: skip
    subprocess.run(command, cwd=ROOT, check=True, timeout=60)
    made = {file.name: file.read_text() for file in (tmp_path / "rpc").iterdir()}
    kept = {file.name: file.read_text() for file in (ROOT / "rpc").glob("*_pb2*.py*")}
    assert sorted(made) == sorted(kept)
    changed = sorted(name for name in made if made[name] != kept[name])
    assert not changed, f"{changed} differ from the protos; run: python -m {' '.join(command[2:5])} --python_out=. …"
