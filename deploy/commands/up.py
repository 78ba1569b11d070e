"""`pdserve up`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from cluster.roles import RoleName
from deploy.cluster_access import ClusterAccess
from deploy.cluster_state import ClusterState, default_store
from deploy.config import DEFAULT_FILE, load, parse_setting
from deploy.controllers_end import wait_for_controllers_end
from deploy.errors import CommandError
from deploy.inference_client import Generation, GenerationFailedError, chat_request, text_request
from deploy.interrupts import Interrupts
from deploy.launch import Launch, LaunchOptions
from deploy.prometheus import find_prometheus
from deploy.steps import Steps
from rpc import inference_pb2

SAMPLE_PROMPT = "What is the capital of France?"
SAMPLE_TOKENS = 48
SAMPLE_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class UpOptions:
    name: str
    config: Path | None
    replicas: Mapping[str, int | None]  # by role; None: as configured
    model: str | None
    detach: bool
    with_prometheus: bool
    insecure: bool
    ray: str | None
    settings: list[str]

    @property
    def overrides(self) -> dict[str, object]:
        """Of the configuration file, by dotted name."""
        return dict(parse_setting(text) for text in self.settings) | {name: value for name, _, value in self._own()}

    @property
    def given_by(self) -> dict[str, str]:
        """The option of each override that has one of its own."""
        return {name: option for name, option, _ in self._own()}

    def _own(self) -> Iterator[tuple[str, str, object]]:
        for role, count in self.replicas.items():
            if count is not None:
                yield f"cluster.pools.{role}.replicas", f"--{role}", count
        if self.model is not None:
            yield "cluster.model", "--model", self.model
        if self.ray is not None:
            yield "ray.address", "--ray", self.ray
        if self.insecure:
            yield "proxy.insecure", "--insecure", True


def run(options: UpOptions) -> None:
    console = Console(highlight=False)
    file = options.config or DEFAULT_FILE
    config = load(file, options.overrides, options.given_by)
    if options.with_prometheus:
        find_prometheus()
    store = default_store(os.environ)
    interrupts = Interrupts()
    interrupts.install()
    with Steps(console) as steps:
        launch = Launch(
            LaunchOptions(options.name, file, config, options.with_prometheus),
            store,
            os.environ,
            steps.say,
            interrupts.hurried,
        )
        try:
            state = launch.run()
            steps.hide()
            _show(console, state, config.cluster.desired)
            if state.has_proxy:
                _show_trial(console, state)
                _sample(console, state)
            if options.detach:
                return
            _stay(console, state)
        except CommandError as error:
            kept = launch.keep_logs()
            _undo(launch, interrupts)
            if kept is None:
                raise
            raise CommandError(f"{error}\nall logs are kept in {kept}") from error
        except BaseException:  # Ctrl-C is the usual one
            _undo(launch, interrupts)
            raise
        _undo(launch, interrupts)


def _stay(console: Console, state: ClusterState) -> None:
    """Until Ctrl-C, SIGTERM or SIGHUP, or until the cluster ends without us."""
    with suppress(KeyboardInterrupt):
        console.print("\nCtrl-C ends it.")
        if state.head is not None:
            state.head.wait()
        else:
            wait_for_controllers_end(state)
        console.print("The cluster has ended.")


def _undo(launch: Launch, interrupts: Interrupts) -> None:
    interrupts.end()
    launch.undo()


def _show(console: Console, state: ClusterState, desired: Mapping[RoleName, int]) -> None:
    workers = " + ".join(f"{count} {role}" for role, count in desired.items() if count)
    proxy = [
        ("OpenAI HTTP", f"{state.http_url}/v1"),
        ("gRPC", f"{state.grpc_address}  pdserve.v1.Inference"),
        ("metrics", f"{state.http_url}/metrics"),
    ]
    elsewhere = [("proxies", f"start elsewhere: python -m proxy --controller {state.controller_address} …")]
    rows = [
        *(proxy if state.has_proxy else elsewhere),
        ("control", f"{state.controller_address}  pdserve.v1.Control"),
        ("logs", f"{state.log_dir}"),
    ]
    if state.prometheus_port is not None:
        rows.insert(len(rows) - 2, ("Prometheus", f"http://127.0.0.1:{state.prometheus_port}"))
    console.print(f"[bold]{escape(state.model)}[/bold] is served by {workers}")
    for title, value in rows:
        console.print(f"  {title:<12} {escape(value)}", soft_wrap=True)


def _show_trial(console: Console, state: ClusterState) -> None:
    body = {"model": state.model, "messages": [{"role": "user", "content": SAMPLE_PROMPT}], "max_tokens": SAMPLE_TOKENS}
    console.print("\nTry it:")
    key = "" if state.keys_file is None else " -H 'Authorization: Bearer KEY'"
    trust = "" if state.tls_cert is None else " --cacert FILE"
    console.print(
        f"  curl{trust} {state.http_url}/v1/chat/completions -H 'Content-Type: application/json'{key} \\\n"
        f"    -d '{escape(json.dumps(body))}'",
        soft_wrap=True,
    )


def _sample(console: Console, state: ClusterState) -> None:
    """One answer, streamed; a model without a chat template continues the prompt instead."""
    console.print(f"\n[bold]{SAMPLE_PROMPT}[/bold]")
    access = ClusterAccess.of(state)
    try:
        _stream(Generation(state.grpc_address, _sample_request(chat=True), SAMPLE_TIMEOUT_S, access), console)
    except GenerationFailedError as error:
        if error.code.name != "INVALID_ARGUMENT":
            raise
        _stream(Generation(state.grpc_address, _sample_request(chat=False), SAMPLE_TIMEOUT_S, access), console)


def _sample_request(*, chat: bool) -> inference_pb2.GenerateRequest:
    make = chat_request if chat else text_request
    return make(SAMPLE_PROMPT, max_tokens=SAMPLE_TOKENS, temperature=0.0)


def _stream(generation: Generation, console: Console) -> None:
    for text in generation:
        console.out(text, end="", highlight=False)
    console.print()
