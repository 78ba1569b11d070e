"""The proxy's one entrance, behind both fronts: checks a request, tokenises it, queues it, and knows what runs.

A prompt that takes long to tokenise is tokenised in another thread; everything else happens in the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from proxy import prompt as prompts
from proxy import sampling as samplings
from proxy.config import ProxyConfig
from proxy.dispatcher import Dispatcher
from proxy.errors import ApiError, ErrorCode, invalid
from proxy.job import Job
from proxy.lifecycle import Lifecycle
from proxy.metrics import ProxyMetrics
from proxy.model import ServedModel
from proxy.prompt import Prompt
from proxy.queue import QueueFull
from proxy.sampling import Sampling
from proxy.stop_strings import StopStrings
from proxy.text_output import TextOutput
from proxy.unsupported import shortened
from proxy.worker_pool import WorkerPool

INLINE_CHARACTERS = 2000  # a longer prompt would hold up the streams of others
TOKENIZER_THREADS = 2
REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
PRIORITY = "interactive"
logger = logging.getLogger(__name__)


def new_request_id() -> str:
    return f"req-{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a client asks, whichever port it used."""

    model: str | None  # None or empty: the one that is served
    request_id: str
    prompt: Prompt
    sampling: Sampling
    timeout_s: float | None = None


class GenerationService:
    """Maintains the requests that run, by their id."""

    def __init__(
        self,
        model: ServedModel,
        config: ProxyConfig,
        pool: WorkerPool,
        dispatcher: Dispatcher,
        metrics: ProxyMetrics,
    ) -> None:
        self.model = model
        self.metrics = metrics
        self._is_draining = False
        self._config = config
        self._pool = pool
        self._dispatcher = dispatcher
        self._running: dict[str, Lifecycle | None] = {}  # None: still being admitted
        self._tokenizing = ThreadPoolExecutor(TOKENIZER_THREADS, "tokenizer")
        self._idle = asyncio.Event()
        self._idle.set()
        metrics.watch(lambda: len(self._running), lambda: dispatcher.num_waiting)

    @property
    def is_ready(self) -> bool:
        """Whether a generation would work now."""
        return self._pool.is_ready and not self._is_draining

    @property
    def max_model_len(self) -> int:
        """Tokens of one request, prompt and completion together: the model's context, or less where a worker has less
        room."""
        limit = self._pool.max_model_len
        return self.model.max_model_len if limit is None else min(self.model.max_model_len, limit)

    async def submit(self, request: GenerationRequest) -> Lifecycle:
        """Admits the request; its events come from the `Lifecycle`. Raises ApiError."""
        try:
            return await self._admit(request)
        except ApiError as error:
            self.count_refusal(request.request_id, error)
            raise

    def count_refusal(self, request_id: str, error: ApiError) -> None:
        """Of a request that is not admitted, by whoever refuses it."""
        self.metrics.requests.labels(error.code.value, PRIORITY, "none").inc()
        self.metrics.rejected.labels(error.reason or error.code.value).inc()
        logger.info("request %r refused: %s: %s", shortened(request_id), error.code.value, error.message)

    def abort(self, request_id: str) -> bool:
        """False when no such request runs."""
        lifecycle = self._running.get(request_id)
        if lifecycle is None:
            return False
        lifecycle.cancel("the request was aborted")
        return True

    def check_model(self, name: str | None) -> None:
        if name and name != self.model.name:
            raise ApiError(
                ErrorCode.NOT_FOUND,
                f"model: {shortened(name)!r} is not served here; {self.model.name!r} is",
                "model",
                "model_not_found",
            )

    def stop_admitting(self) -> None:
        """From now on every new request is refused, and the proxy is not ready."""
        self._is_draining = True

    async def drain(self, timeout_s: float) -> int:
        """Admits nothing more and waits for what runs; what still does at the timeout is ended. Returns how many."""
        self.stop_admitting()
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            logger.warning("%d requests still run: they are ended", len(self._running))
        left = [lifecycle for lifecycle in self._running.values() if lifecycle is not None]
        for lifecycle in left:
            lifecycle.fail(ApiError(ErrorCode.UNAVAILABLE, "the server shuts down", reason="shutting_down"))
        return len(left)

    def close(self) -> None:
        self._tokenizing.shutdown(wait=False, cancel_futures=True)

    async def _admit(self, request: GenerationRequest) -> Lifecycle:
        admitted_at = asyncio.get_running_loop().time()
        self.check_model(request.model)
        samplings.check(request.sampling, self.model.vocab_size)
        prompts.check(request.prompt, self.model.vocab_size, self.max_model_len)
        self._check_open()
        request_id = request.request_id
        self._take_id(request_id)
        try:
            self._reserve()
            try:
                ids = await self._tokenize(request.prompt)
                self._check_open()
                lifecycle = self._lifecycle(request, request_id, ids, admitted_at)
            except BaseException:
                self._dispatcher.queue.cancel()
                raise
        except BaseException:
            self._forget(request_id)
            raise
        self._running[request_id] = lifecycle
        lifecycle.submit()
        return lifecycle

    def _check_open(self) -> None:
        if self._is_draining:
            raise ApiError(ErrorCode.UNAVAILABLE, "the server shuts down", reason="shutting_down")
        if not self._dispatcher.has_decode:
            raise ApiError(ErrorCode.UNAVAILABLE, "no decode worker is ready", reason="no_worker", retry_after_s=1)

    def _take_id(self, request_id: str) -> None:
        if not REQUEST_ID.fullmatch(request_id):
            raise invalid("request_id", "must be 1 to 128 visible ASCII characters (header x-request-id)")
        if request_id in self._running:
            raise ApiError(
                ErrorCode.ALREADY_EXISTS, f"request_id: {request_id} runs already", "request_id", "duplicate_request"
            )
        self._running[request_id] = None
        self._idle.clear()

    def _reserve(self) -> None:
        try:
            self._dispatcher.queue.reserve()
        except QueueFull as full:
            raise ApiError(
                ErrorCode.RESOURCE_EXHAUSTED, f"the server is busy: {full}", reason="queue_full", retry_after_s=1
            ) from full

    async def _tokenize(self, prompt: Prompt) -> list[int]:
        if prompts.num_characters(prompt) <= INLINE_CHARACTERS:
            return prompts.to_ids(prompt, self.model)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._tokenizing, prompts.to_ids, prompt, self.model)

    def _lifecycle(self, request: GenerationRequest, request_id: str, ids: list[int], admitted_at: float) -> Lifecycle:
        longest_s = self._config.request_timeout_s
        room = prompts.check_room(len(ids), self.max_model_len)
        job = Job(
            request_id=request_id,
            wire_id=f"{request_id}.{secrets.token_hex(4)}",
            session=secrets.token_bytes(16),
            prompt_ids=tuple(ids),
            sampling=samplings.resolve(request.sampling, self.model.eos_token_ids, room),
            admitted_at=admitted_at,
            timeout_s=longest_s if request.timeout_s is None else min(request.timeout_s, longest_s),
        )
        output = TextOutput(self.model.tokenizer.detokenizer(ids), StopStrings(request.sampling.stop))
        return Lifecycle(job, output, self._config, self._dispatcher, self.metrics, self._on_end)

    def _on_end(self, lifecycle: Lifecycle) -> None:
        self._forget(lifecycle.job.request_id)
        route, usage, timings = lifecycle.route, lifecycle.progress.usage, lifecycle.timings
        path = route.path if route else "none"
        self.metrics.requests.labels(lifecycle.end_code, PRIORITY, path).inc()
        self.metrics.request_duration.observe(timings.total_s)
        if lifecycle.progress.first_token_at is not None and usage.completion_tokens > 1:
            decoding_s = timings.total_s - timings.time_to_first_token_s
            self.metrics.time_per_output_token.observe(decoding_s / (usage.completion_tokens - 1))
        logger.info(
            "request %s: %s path=%s prefill=%s decode=%s attempts=%d prompt=%d completion=%d cached=%d "
            "queue_s=%.3f ttft_s=%.3f total_s=%.3f%s",
            *(lifecycle.job.request_id, lifecycle.end_code, path),
            *((route.prefill_worker, route.decode_worker) if route else (None, None)),
            *(lifecycle.num_attempts, usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens),
            *(timings.queue_s, timings.time_to_first_token_s, timings.total_s),
            f": {lifecycle.error}" if lifecycle.error else "",
        )

    def _forget(self, request_id: str) -> None:
        del self._running[request_id]
        if not self._running:
            self._idle.set()
