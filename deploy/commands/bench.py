"""`pdserve bench kv`."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console

from bench import kv_report
from bench.kv import measure
from deploy.model_store import default_cache_dir, resolve_model


def run(model: str, num_tokens: int, repeats: int, output: Path | None) -> None:
    """The plot lies beside `output`, under its name."""
    console = Console(highlight=False)
    folder = resolve_model(model, default_cache_dir(os.environ))
    report = measure(folder, num_tokens, repeats, console.print)
    kv_report.show(report, console)
    if output is not None:
        plot = output.with_suffix(".svg")
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(kv_report.markdown(report, plot.name))
        kv_report.draw(report, plot)
        console.print(f"{output}, {plot}", markup=False, soft_wrap=True)
