"""What travels beside a request and its answer: HTTP headers, or gRPC metadata of the same names."""

from __future__ import annotations

import re
from collections.abc import Mapping

from proxy.admission.slo import Slo
from proxy.errors import invalid
from proxy.openai.unsupported import shortened
from proxy.request.kv_mode import KvMode
from proxy.request.lifecycle import Lifecycle
from proxy.request.priority import BATCH, INTERACTIVE, LABELS, MAX_LEVEL, Priority

MAX_SALT_LENGTH = 256  # characters
MILLISECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")


def read_slo(headers: Mapping[str, str]) -> Slo:
    """When the client hopes for its first token, and how long for each after it. Raises ApiError."""
    return Slo(_seconds(headers, "x-slo-ttft-ms"), _seconds(headers, "x-slo-tpot-ms"))


def _seconds(headers: Mapping[str, str], name: str) -> float | None:
    value = headers.get(name)
    if value is None:
        return None
    if not MILLISECONDS.fullmatch(value) or float(value) <= 0:
        raise invalid(name, f"must be a number of milliseconds above 0, not {shortened(value)!r}")
    return float(value) / 1e3


def read_priority(headers: Mapping[str, str], level: int | None = None) -> Priority:
    """The class is `x-priority`'s, the level the field `priority`'s. Raises ApiError."""
    label = headers.get("x-priority", INTERACTIVE)
    if label not in LABELS:
        raise invalid("x-priority", f"must be {INTERACTIVE} or {BATCH}, not {shortened(label)!r}")
    if level is not None and not -MAX_LEVEL <= level <= MAX_LEVEL:
        raise invalid("priority", f"must be from {-MAX_LEVEL} to {MAX_LEVEL} (lower is sooner), not {level}")
    return Priority(label == BATCH, level or 0)


def read_cache_salt(tenant: str, salt: str | None = None) -> str:
    """What keeps cached prefixes apart: the caller's tenant, and the field `cache_salt`. Raises ApiError."""
    if salt is not None and not (1 <= len(salt) <= MAX_SALT_LENGTH and salt.isprintable()):
        raise invalid("cache_salt", f"must be 1 to {MAX_SALT_LENGTH} printable characters")
    return f"{tenant} {salt or ''}" if tenant or salt else ""  # no tenant has a space: no two pairs are the same


def read_kv_mode(headers: Mapping[str, str]) -> KvMode | None:
    """None: the cluster's. Raises ApiError."""
    mode = headers.get("x-kv-mode")
    if mode is not None and mode not in tuple(KvMode):
        raise invalid("x-kv-mode", f"must be {', '.join(KvMode)}, not {shortened(mode)!r}")
    return None if mode is None else KvMode(mode)


def read_write_back(headers: Mapping[str, str]) -> bool:
    """Raises ApiError."""
    value = headers.get("x-kv-write-back", "false")
    if value not in ("true", "false"):
        raise invalid("x-kv-write-back", f"must be true or false, not {shortened(value)!r}")
    return value == "true"


def answer_metadata(lifecycle: Lifecycle) -> dict[str, str]:
    """True from the first token on."""
    route = lifecycle.route
    metadata = {
        "x-request-id": lifecycle.job.request_id,
        "x-cached-tokens": str(lifecycle.progress.usage.cached_tokens),
    }
    if route is not None:
        metadata["x-path"] = route.path
        if route.decode_worker is not None:
            metadata["x-decode-worker"] = route.decode_worker
        if route.prefill_worker is not None:
            metadata["x-prefill-worker"] = route.prefill_worker
    return metadata
