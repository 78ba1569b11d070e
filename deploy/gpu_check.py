"""The GPUs a cluster wants, compared with those Ray has: it would wait for missing ones without a word."""

from __future__ import annotations

from cluster.roles import ROLE_NAMES
from cluster.spec import ClusterSpec
from deploy.errors import CommandError


class GpusMissingError(CommandError):
    """More workers want a GPU than there are GPUs; the message says what to set."""


def check_gpus(spec: ClusterSpec, num_gpus: int) -> None:
    """Each worker whose device is a GPU has one of its own. Raises GpusMissingError."""
    shares = {role: spec.pools.of(role).shares for role in ROLE_NAMES}
    wanting = {
        role: sum(share.num_workers for share in of_role if share.engine.device != "cpu")
        for role, of_role in shares.items()
    }
    if sum(wanting.values()) > num_gpus:
        workers = " + ".join(f"{count} {role}" for role, count in wanting.items() if count)
        raise GpusMissingError(
            f"{workers} workers with engine.device cuda need a GPU each, and Ray finds {num_gpus} here: "
            "set cluster.engine.device=cpu, or fewer replicas"
        )
