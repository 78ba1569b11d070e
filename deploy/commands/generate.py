"""`pdserve generate`."""

from __future__ import annotations

import os

from deploy.cluster_access import ClusterAccess
from deploy.cluster_state import default_store
from deploy.inference_client import Generation, chat_request, text_request

TIMEOUT_S = 600.0


def run(name: str, prompt: str, *, text: bool, **sampling: object) -> None:
    state = default_store(os.environ).read(name)
    make = text_request if text else chat_request
    for piece in Generation(state.grpc_address, make(prompt, **sampling), TIMEOUT_S, ClusterAccess.of(state)):
        print(piece, end="", flush=True)
    print()
