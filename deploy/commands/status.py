"""`pdserve status`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from deploy.cluster_report import ClusterReport, WorkerPart, cluster_report
from deploy.cluster_state import default_store

OUTPUT_COLUMNS = 160  # a narrower terminal wraps; a table squeezed into it could not be read


def run(name: str, as_json: bool) -> None:
    report = cluster_report(default_store(os.environ).read(name))
    if as_json:
        print(json.dumps(report, indent=2))
        return
    console = Console(highlight=False, width=OUTPUT_COLUMNS)
    cluster, controller, proxy = report["cluster"], report["controller"], report["proxy"]
    console.print(f"[bold]{cluster['name']}[/bold] serves {cluster['model']}, {cluster['state']}", markup=True)
    console.print(f"  controller  {controller['address']}  up {controller['uptime_s']:.0f} s", soft_wrap=True)
    if controller["error"]:
        console.print(f"  {controller['error']}", style="red", markup=False)
    if not cluster["has_proxy"]:
        console.print("  proxies     started elsewhere")
    running = f"process {proxy['pid']}" if proxy["pid"] else "not running"
    if cluster["has_proxy"]:
        line = f"  proxy       {proxy['http']}, gRPC {proxy['grpc']}  {running}, {proxy['restarts']} restarts"
        console.print(line, soft_wrap=True)
    console.print(workers_table(report["workers"]))
    if report["paths"]:
        console.print(_paths_table(report))
    for worker in report["workers"]:
        if worker["last_error"]:
            console.print(f"{worker['name']}: {worker['last_error']}", markup=False, soft_wrap=True)


def workers_table(workers: Sequence[WorkerPart]) -> Table:
    """With a column for groups only where there are some."""
    table = Table(box=None, pad_edge=False)
    has_groups = any(worker["group"] for worker in workers)
    identity_titles = ("WORKER", "ROLE", "GROUP", "STATE") if has_groups else ("WORKER", "ROLE", "STATE")
    for title in (*identity_titles, "RUNNING", "WAITING", "KV USE", "RESTARTS", "NODE", "ADDRESS"):
        table.add_column(title, overflow="fold")
    for worker in workers:
        load = worker["load"]
        kv_usage = "" if worker["kv_usage"] is None else f"{worker['kv_usage']:.0%}"
        running, waiting = ("", "") if load is None else (str(load["running"]), str(load["waiting"]))
        state = "stuck" if load is not None and load["stuck"] else worker["state"]
        group = (worker["group"],) if has_groups else ()
        identity = (worker["name"], worker["role"], *group, state)
        table.add_row(*identity, running, waiting, kv_usage, str(worker["restarts"]), worker["node"], worker["address"])
    return table


def _paths_table(report: ClusterReport) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("FROM", "TO", "KV PATH"):
        table.add_column(title)
    for path in report["paths"]:
        table.add_row(path["prefill"], path["decode"], path["transport"] or "none: computed there")
    return table
