"""How the proxy does: health, readiness, metrics, and where Prometheus finds it and its workers."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from proxy.errors import ApiError, ErrorCode
from proxy.fronts.http_generation import error_response
from proxy.service import GenerationService
from proxy.workers.membership import MembershipWatch
from proxy.workers.worker_pool import WorkerPool
from rpc import worker_pb2

ROLE_NAMES = {
    worker_pb2.ROLE_PREFILL: "prefill",
    worker_pb2.ROLE_DECODE: "decode",
    worker_pb2.ROLE_MIXED: "mixed",
    worker_pb2.ROLE_POOL: "pool",
}


class HttpStatus:
    def __init__(self, service: GenerationService, pool: WorkerPool, watch: MembershipWatch) -> None:
        self._service = service
        self._pool = pool
        self._watch = watch

    async def health(self) -> Response:
        """Liveness: answers for as long as the process runs, ready or not."""
        return JSONResponse({"status": "ok"})

    async def ready(self) -> Response:
        """Readiness: 200 when a generation would work now, else 503."""
        if not self._service.is_ready:
            return error_response(ApiError(ErrorCode.UNAVAILABLE, "no worker is ready", reason="not_ready"))
        return JSONResponse({"status": "ready"})

    async def metrics(self) -> Response:
        return Response(self._service.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    async def targets(self, request: Request) -> Response:
        """For http_sd_configs: this proxy, at the address that was asked, the controller, workers and pool nodes."""
        targets = [self._target(request.headers.get("host", ""), "proxy", "proxy")]
        if self._watch.metrics_address:
            targets.append(self._target(self._watch.metrics_address, "controller", "controller"))
        for member in (*self._pool.members, *self._pool.pool_nodes):
            if member.metrics_address:
                role = ROLE_NAMES.get(member.role, "unknown")
                targets.append(self._target(member.metrics_address, role, member.worker, member.group))
        return JSONResponse(targets)

    def _target(self, address: str, role: str, worker: str, group: str = "") -> dict[str, Any]:
        labels = {"role": role, "worker": worker, "model_name": self._service.model.name}
        if group:
            labels["group"] = group
        return {"targets": [address], "labels": labels}
