"""How requests ended, or that they were refused: counted, measured, and one line each in the log."""

from __future__ import annotations

import logging

from proxy.errors import ApiError
from proxy.metrics import ProxyMetrics
from proxy.openai.unsupported import shortened
from proxy.request.generation import Generation
from proxy.request.generation_request import GenerationRequest
from proxy.request.lifecycle import Lifecycle
from proxy.request.priority import Priority

logger = logging.getLogger(__name__)


class Outcomes:
    def __init__(self, metrics: ProxyMetrics) -> None:
        self._metrics = metrics

    def refused(self, request_id: str, error: ApiError, priority: Priority) -> None:
        self._metrics.requests.labels(error.code.value, priority.label, "none").inc()
        self._metrics.rejected.labels(error.reason or error.code.value).inc()
        logger.info("request %r refused: %s: %s", shortened(request_id), error.code.value, error.message)

    def ended(self, request: GenerationRequest, generation: Generation) -> None:
        error, route = generation.error, generation.choices[0].route
        usage, timings, priority = generation.usage, generation.timings, request.priority
        code, path = error.code.value if error else "ok", route.path if route else "none"
        self._metrics.requests.labels(code, priority.label, path).inc()
        self._metrics.request_duration.observe(timings.total_s)
        for choice in generation.choices:
            self._count_slo(request, choice)
        logger.info(
            "request %s: %s priority=%s:%d path=%s prefill=%s decode=%s choices=%d attempts=%d "
            "prompt=%d completion=%d cached=%d queue_s=%.3f ttft_s=%.3f total_s=%.3f%s",
            *(generation.request_id, code, priority.label, priority.level, path),
            *((route.prefill_worker, route.decode_worker) if route else (None, None)),
            *(len(generation.choices), generation.num_attempts),
            *(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens),
            *(timings.queue_s, timings.time_to_first_token_s, timings.total_s),
            f": {error}" if error else "",
        )

    def _count_slo(self, request: GenerationRequest, choice: Lifecycle) -> None:
        """A choice that failed or was cancelled has attained nothing, and counts as asked."""
        for label in request.slo.asked:
            self._metrics.slo_requests.labels(label).inc()
        if choice.error is None:
            timings = choice.timings
            for label in request.slo.attained(timings.time_to_first_token_s, choice.progress.time_per_output_token_s):
                self._metrics.slo_attained.labels(label).inc()
