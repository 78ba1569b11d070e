"""`pdserve down`."""

from __future__ import annotations

import os

from rich.console import Console

from deploy.cluster_state import default_store
from deploy.tear_down import tear_down


def run(name: str) -> None:
    store = default_store(os.environ)
    state = store.read(name)
    console = Console(highlight=False)
    with console.status(f"ending {name}: what runs may finish …"):
        tear_down(state, store)
    console.print(f"{name} has ended.")
