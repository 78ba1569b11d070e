"""What the source may not do, so that no port is left open by mistake and nothing from the network is unpickled."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SERVING = ("cluster", "decode_worker", "deploy", "engine", "kv_transfer", "prefill_worker", "proxy", "security")
UNPICKLING = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
PLAIN_OR_SECURE = {"insecure_channel", "secure_channel", "add_insecure_port", "add_secure_port"}
OBJECT_COLLECTIVES = {"recv_object_list", "broadcast_object_list", "all_gather_object", "scatter_object_list"}


@pytest.fixture(scope="module")
def nodes() -> Sequence[tuple[Path, ast.AST]]:
    files = [file for package in SERVING for file in sorted((ROOT / package).rglob("*.py"))]
    return [
        (file.relative_to(ROOT), node)
        for file in files
        for node in ast.walk(ast.parse(file.read_text(), str(file)))
        if isinstance(node, ast.Attribute | ast.Import | ast.ImportFrom | ast.Call)
    ]


def test_channels_and_ports_are_opened_in_one_place(nodes: Sequence[tuple[Path, ast.AST]]) -> None:
    found = {file for file, node in nodes if isinstance(node, ast.Attribute) and node.attr in PLAIN_OR_SECURE}
    assert found == {Path("security/connection.py")}


def test_nothing_is_unpickled(nodes: Sequence[tuple[Path, ast.AST]]) -> None:
    wrong = []
    for file, node in nodes:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        wrong += [f"{file} imports {name}" for name in names if name.split(".")[0] in UNPICKLING]
        if isinstance(node, ast.Attribute):
            of_torch = node.attr == "load" and isinstance(node.value, ast.Name) and node.value.id == "torch"
            if node.attr in OBJECT_COLLECTIVES or of_torch:
                wrong.append(f"{file}:{node.lineno} unpickles: {node.attr}")
    assert wrong == []


@pytest.mark.parametrize("word", ["authorization", "bearer"])
def test_no_header_with_a_key_is_named_in_a_log_call(nodes: Sequence[tuple[Path, ast.AST]], word: str) -> None:
    wrong = [
        f"{file}:{node.lineno}"
        for file, node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "logger"
        and word in ast.dump(node).lower()
    ]
    assert wrong == []
