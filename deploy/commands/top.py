"""`pdserve top`."""

from __future__ import annotations

import os
import threading

from rich.console import Console
from rich.live import Live
from rich.text import Text

from deploy.cluster_access import ClusterAccess
from deploy.cluster_state import default_store
from deploy.top.screen import State, screen
from deploy.top.state_source import NoStateError, StateSource

INTERVAL_S = 1.0
PRINTED_COLUMNS = 160


def run(name: str, once: bool) -> None:
    """Where the output is no terminal, it is printed once."""
    state = default_store(os.environ).read(name)
    access = ClusterAccess.of(state)
    console = Console(highlight=False)
    with StateSource(state.http_url, dict(access.metadata), access.proxy_context) as source:
        if once or not console.is_terminal:
            wide = Console(highlight=False, width=None if console.is_terminal else PRINTED_COLUMNS)
            wide.print(screen(source.read(), None, wide.width))
        else:
            _watch(source, console)


def _watch(source: StateSource, console: Console) -> None:
    """Until Ctrl-C. A proxy that is away for a while leaves its last picture, and a line that says so."""
    before: State | None = None
    now = source.read()
    with Live(screen(now, None, console.width), console=console, screen=True, auto_refresh=False) as live:
        pause = threading.Event()  # nobody sets it: waiting on it is a pause that Ctrl-C ends
        while not pause.wait(INTERVAL_S):
            try:
                before, now = now, source.read()
            except NoStateError as error:
                live.update(Text(str(error), "red"), refresh=True)
                continue
            same_life = before["started_at"] == now["started_at"]
            live.update(screen(now, before if same_life else None, console.width), refresh=True)
