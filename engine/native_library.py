"""Compiles a C source of ours with the system's compiler, once per source, compiler and CPU, into a cache directory.

Two processes that compile at the same time do no harm: each makes its own file and renames it into place.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

FLAGS = ("-std=gnu11", "-O3", "-march=native", "-shared", "-fPIC")
COMPILERS = ("cc", "gcc", "clang")
COMPILE_DEADLINE_S = 120.0


class NativeLibraryError(RuntimeError):
    """The source could not be compiled or loaded here; the message says why."""


def load_native_library(source: Path, cache_dir: Path) -> ctypes.CDLL:
    """The shared library made from `source`, which may use the C standard library and libm."""
    compiler = next((path for path in map(shutil.which, COMPILERS) if path), None)
    if compiler is None:
        raise NativeLibraryError(f"no C compiler found (looked for {', '.join(COMPILERS)})")
    parts = [source.read_bytes(), _run([compiler, "--version"]).encode(), " ".join(FLAGS).encode(), _cpu().encode()]
    key = hashlib.blake2b(b"\0".join(parts), digest_size=12).hexdigest()
    library = cache_dir / f"{source.stem}-{key}.so"
    try:
        if not library.is_file():
            cache_dir.mkdir(parents=True, exist_ok=True)
            _compile(compiler, source, library)
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise NativeLibraryError(str(error)) from error


def _compile(compiler: str, source: Path, library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as work:
        made = Path(work) / library.name
        _run([compiler, *FLAGS, "-o", str(made), str(source), "-lm"])
        made.rename(library)


def _run(command: list[str]) -> str:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_DEADLINE_S, check=True)
    except subprocess.CalledProcessError as error:
        raise NativeLibraryError(f"{command[0]} failed: {error.stderr.strip()[-500:]}") from error
    except subprocess.TimeoutExpired as error:
        raise NativeLibraryError(f"{command[0]} took over {COMPILE_DEADLINE_S:.0f} s") from error
    return result.stdout


def _cpu() -> str:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
