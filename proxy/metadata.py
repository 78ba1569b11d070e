"""What travels beside a request and its answer: HTTP headers, or gRPC metadata of the same names."""

from __future__ import annotations

from collections.abc import Mapping

from proxy.errors import ApiError, ErrorCode
from proxy.lifecycle import Lifecycle

# Those that this server does not follow, and the values that ask for nothing.
UNSUPPORTED_HEADERS: dict[str, tuple[str, ...]] = {
    "x-kv-mode": ("p2p",),
    "x-kv-write-back": (),
    "x-priority": ("interactive",),
    "x-slo-tpot-ms": (),
    "x-slo-ttft-ms": (),
    "x-tenant": (),
}


def refuse_headers(headers: Mapping[str, str]) -> None:
    for name, neutral in UNSUPPORTED_HEADERS.items():
        if name in headers and headers[name] not in neutral:
            raise ApiError(
                ErrorCode.INVALID_ARGUMENT,
                f"{name}: this header is not supported by this server; leave it out",
                name,
                "unsupported_parameter",
            )


def answer_metadata(lifecycle: Lifecycle) -> dict[str, str]:
    """True from the first token on."""
    route = lifecycle.route
    metadata = {
        "x-request-id": lifecycle.job.request_id,
        "x-cached-tokens": str(lifecycle.progress.usage.cached_tokens),
    }
    if route is not None:
        metadata |= {"x-path": route.path, "x-decode-worker": route.decode_worker}
        if route.prefill_worker is not None:
            metadata["x-prefill-worker"] = route.prefill_worker
    return metadata
