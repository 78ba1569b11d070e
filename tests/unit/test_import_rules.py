"""Who may import whom. The rules are the architecture: a plane that cannot be imported cannot be mixed in."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVICES = ("prefill_worker", "decode_worker")
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "engine": (),
    "rpc": (),
    "security": (),
    "telemetry": (),
    "kv_transfer": ("engine",),
    "prefill_worker": ("engine", "kv_transfer", "rpc", "security", "telemetry"),
    "decode_worker": ("engine", "kv_transfer", "rpc", "security", "telemetry"),
    "cluster": (*SERVICES, "engine", "kv_transfer", "rpc", "security", "telemetry"),
    "proxy": ("rpc", "security", "telemetry", "engine.block_hash"),
    "bench": (*SERVICES, "cluster", "engine", "kv_transfer", "proxy", "rpc", "security", "telemetry"),
    "deploy": (*SERVICES, "engine", "kv_transfer", "rpc", "security", "telemetry", "cluster", "proxy", "bench"),
}
OURS = tuple(MAY_IMPORT)
ONLY_IN: dict[str, tuple[str, ...]] = {
    "ray": ("cluster", "deploy"),
    "torch": ("engine", "kv_transfer"),
    "nixl_cu12": ("kv_transfer",),
    "cupy": ("kv_transfer",),
    "fastapi": ("proxy",),
    "llguidance": ("engine", "proxy"),
    "cryptography": ("security",),
    "opentelemetry": ("telemetry",),
}


@cache
def imports_of(file: Path) -> tuple[str, ...]:
    """Every module that a file imports, anywhere in it; `from engine import block_hash` is `engine.block_hash`."""
    return tuple(_imports_of(file))


def _imports_of(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative import; write the path from the root"
            module = node.module or ""
            yield from (f"{module}.{alias.name}" if module in OURS else module for alias in node.names)


def python_files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def is_within(module: str, allowed: str) -> bool:
    return module == allowed or module.startswith(f"{allowed}.")


@pytest.mark.parametrize("package", OURS)
def test_a_package_imports_only_what_its_rule_allows(package: str) -> None:
    allowed = (package, *MAY_IMPORT[package])
    wrong = [
        f"{file.relative_to(ROOT)} imports {module}"
        for file in python_files(package)
        for module in imports_of(file)
        if module.split(".")[0] in OURS and not any(is_within(module, rule) for rule in allowed)
    ]
    assert wrong == []


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_heavy_library_stays_in_its_packages(library: str) -> None:
    wrong = [
        f"{file.relative_to(ROOT)} imports {module}"
        for package in OURS
        if package not in ONLY_IN[library]
        for file in python_files(package)
        for module in imports_of(file)
        if is_within(module, library)
    ]
    assert wrong == []


def test_the_folder_of_protos_holds_no_python() -> None:
    assert python_files("proto") == []


def test_every_package_is_in_the_wheel() -> None:
    assert f"packages = {sorted(OURS)}".replace("'", '"') in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("proxy.__main__", {"torch", "ray", "nixl_cu12", "transformers", "numpy", "opentelemetry.sdk"}),
        ("cluster.controller_actor", {"torch", "nixl_cu12", "transformers"}),
        ("deploy.commands.up", {"torch", "ray", "nixl_cu12", "transformers"}),
        ("deploy.commands.status", {"torch", "ray", "nixl_cu12", "transformers"}),
    ],
)
def test_a_light_process_loads_no_heavy_library(module: str, unwanted: set[str]) -> None:
    code = f"import sys, {module}; print(sorted({unwanted!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"
