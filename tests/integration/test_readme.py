"""The README's commands, run in order as a newcomer would, and its outputs looked for in what they print."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.cluster_state import CLUSTER_VARIABLE, StateStore
from deploy.processes import marked
from tests.integration.test_cluster import assert_nothing_left

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
COMMAND_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    lines: tuple[str, ...]


def fenced_blocks(text: str) -> list[Block]:
    found = re.findall(r"^```(sh|text)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return [Block(language, tuple(body.strip().split("\n"))) for language, body in found]


def run(script: str, state_dir: Path) -> str:
    environment = {**os.environ, "XDG_STATE_HOME": str(state_dir), "COLUMNS": "200"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{script}\nended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def plain(text: str) -> str:
    """Without what differs from run to run: numbers, ids, this machine's name, the width of columns."""
    text = text.replace(socket.gethostname(), "vm")
    text = re.sub(r"/tmp/pdserve-\w+", "/tmp/pdserve-X", text)
    text = re.sub(r"[0-9a-f]{16,}", "ID", text)
    return " ".join(re.sub(r"\d+", "N", text).split())


def test_every_command_works_and_prints_what_the_readme_shows_and_the_last_leaves_nothing(tmp_path: Path) -> None:
    blocks = fenced_blocks((ROOT / "README.md").read_text())
    assert [block.language for block in blocks].count("sh") >= 5
    store = StateStore(tmp_path / "pdserve")
    output = ""
    try:
        for block in blocks:
            if block.language == "sh":
                output = run("\n".join(block.lines), tmp_path)
                if store.find("default") is not None:
                    state = store.read("default")
                    processes = marked(CLUSTER_VARIABLE, state.mark)
                continue
            printed = plain(output)
            for line in block.lines:
                assert plain(line) in printed, f"{line!r} is not in:\n{output}"
    finally:
        run("./deploy/stop.sh", tmp_path)
    assert len(processes) > 8
    assert_nothing_left(store, state, processes)
