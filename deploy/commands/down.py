"""`pdserve down`."""

from __future__ import annotations

import os

from rich.console import Console

from deploy.cluster_state import NoClusterError, default_store
from deploy.interrupts import Interrupts
from deploy.steps import Steps
from deploy.tear_down import tear_down


def run(name: str) -> None:
    """Twice is no error: what is wanted is that nothing runs."""
    store = default_store(os.environ)
    console = Console(highlight=False)
    try:
        state = store.read(name)
    except NoClusterError as error:
        console.print(f"nothing to end: {str(error).partition('; ')[0]}", markup=False, soft_wrap=True)
        return
    interrupts = Interrupts()
    interrupts.end()
    interrupts.install()
    with Steps(console) as steps:
        steps.say(f"ending {name}: up to {state.drain_timeout_s:g} s for what runs; Ctrl-C ends it now")
        tear_down(state, store, interrupts.hurried)
    console.print(f"{name} has ended.")
