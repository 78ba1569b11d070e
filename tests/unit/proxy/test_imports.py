"""The proxy starts in about a second: it loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys


def test_the_proxy_loads_no_torch_no_ray_and_no_transformers() -> None:
    program = "import sys, proxy.__main__; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert {"torch", "ray", "transformers", "numpy", "nixl"}.isdisjoint(result.stdout.split())
