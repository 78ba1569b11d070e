"""How requests ended, or that they were refused: counted, measured, one line each in the log, and where they are traced
the end of their span."""

from __future__ import annotations

import logging

from proxy.errors import ApiError
from proxy.metrics import ProxyMetrics
from proxy.openai.unsupported import shortened
from proxy.request.attained import attained
from proxy.request.generation import Generation
from proxy.request.generation_request import GenerationRequest
from proxy.request.lifecycle import Lifecycle
from proxy.request.priority import Priority
from proxy.request.request_trace import RequestTrace
from proxy.request.stages import longest
from telemetry.log_format import Fields
from telemetry.stage import Value

logger = logging.getLogger(__name__)


class Outcomes:
    def __init__(self, metrics: ProxyMetrics) -> None:
        self._metrics = metrics

    def refused(self, request_id: str, error: ApiError, priority: Priority) -> None:
        self._metrics.requests.labels(error.code.value, priority.label, "none").inc()
        self._metrics.rejected.labels(error.reason or error.code.value).inc()
        logger.info("request %r refused: %s: %s", shortened(request_id), error.code.value, error.message)

    def ended(self, request: GenerationRequest, generation: Generation, trace: RequestTrace) -> None:
        error, timings, priority = generation.error, generation.timings, request.priority
        code, path = _code_and_path(generation)
        self._metrics.requests.labels(code, priority.label, path).inc()
        self._metrics.request_duration.observe(timings.total_s)
        for choice in generation.choices:
            self._count_slo(request, choice)
        why = f": {error}" if error else ""
        fields = told(request, generation, trace.trace_id)
        logger.info("request %s: %s%s", generation.request_id, code, why, extra={"fields": fields})
        trace.ended(generation, fields)

    def _count_slo(self, request: GenerationRequest, choice: Lifecycle) -> None:
        """A choice that failed or was cancelled has attained nothing, and counts as asked."""
        for label in request.slo.asked:
            self._metrics.slo_requests.labels(label).inc()
        for label in attained(choice, request.slo):
            self._metrics.slo_attained.labels(label).inc()


def told(request: GenerationRequest, generation: Generation, trace_id: str | None) -> Fields:
    """What the log says of a request that has ended, by name; stages and times in seconds."""
    code, path = _code_and_path(generation)
    usage, timings, route = generation.usage, generation.timings, generation.choices[0].route
    stages: dict[str, Value] = {
        f"{name}_s": seconds for name, seconds in longest(choice.stages for choice in generation.choices).items()
    }
    return {
        "request_id": generation.request_id,
        "trace_id": trace_id,
        "outcome": code,
        "priority": f"{request.priority.label}:{request.priority.level}",
        "path": path,
        "prefill_worker": route.prefill_worker if route else None,
        "decode_worker": route.decode_worker if route else None,
        "choices": len(generation.choices),
        "attempts": generation.num_attempts,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        **stages,
        "queue_s": timings.queue_s,
        "ttft_s": timings.time_to_first_token_s,
        "tpot_s": generation.choices[0].progress.time_per_output_token_s,
        "total_s": timings.total_s,
    }


def _code_and_path(generation: Generation) -> tuple[str, str]:
    error, route = generation.error, generation.choices[0].route
    return error.code.value if error else "ok", route.path.value if route else "none"
