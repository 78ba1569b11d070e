"""Whether each pool's scheduling can serve the model's context: told before anything is started."""

from __future__ import annotations

import json
from pathlib import Path

from cluster.roles import ROLE_NAMES
from cluster.spec import ClusterSpec
from deploy.errors import CommandError


class ContextError(CommandError):
    """A strategy that computes prompts whole has too small a budget; the message says what to set."""


def check_context(spec: ClusterSpec, model_dir: Path) -> None:
    """Raises ContextError. What the model's own configuration does not tell is left to the workers to check."""
    own = json.loads((model_dir / "config.json").read_text()).get("max_position_embeddings")
    for role in ROLE_NAMES:
        pool = spec.pools.of(role)
        for share in pool.shares:
            limit = share.engine.max_model_len or own
            if not pool.replicas or not isinstance(limit, int):
                continue
            try:
                share.engine.scheduling.check_context(limit)
            except ValueError as error:
                group = f" of group {share.group}" if share.group else ""
                raise ContextError(f"the {role} workers' engine.scheduling{group}: {error}") from error
