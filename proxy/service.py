"""What both fronts stand before: checks a request, tokenises it, queues it, and knows what runs.

What takes long, for a long prompt, is done in another thread; everything else happens in the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import re
from functools import partial

from proxy.access.caller import Caller
from proxy.admission.aside import Aside
from proxy.admission.entrance import Entrance
from proxy.config import ProxyConfig
from proxy.dashboard.history import History
from proxy.errors import ApiError, ErrorCode, invalid
from proxy.grammar.grammar_compiler import GrammarCompiler
from proxy.metrics import ProxyMetrics
from proxy.model import ServedModel
from proxy.openai.unsupported import shortened
from proxy.request.course_log import CourseLog
from proxy.request.generation import Generation
from proxy.request.generation_request import Admission, GenerationRequest
from proxy.request.kv_mode import KvMode
from proxy.request.lifecycle import Lifecycle
from proxy.request.outcomes import Outcomes
from proxy.request.priority import LABELS, Priority
from proxy.request.reading import Reading
from proxy.request.request_trace import RequestTrace
from proxy.request.running import RunningRequests
from proxy.routing.dispatcher import Dispatcher
from proxy.text import prompt as prompts
from proxy.traffic.traffic_tally import TrafficTally
from proxy.workers.worker_pool import WorkerPool
from telemetry.tracer import Tracer

REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
logger = logging.getLogger(__name__)


class GenerationService:
    """Maintains what every request is admitted with."""

    def __init__(
        self,
        model: ServedModel,
        config: ProxyConfig,
        pool: WorkerPool,
        dispatcher: Dispatcher,
        metrics: ProxyMetrics,
        grammars: GrammarCompiler,
        traffic: TrafficTally,
        tracer: Tracer | None = None,
    ) -> None:
        self.model = model
        self.metrics = metrics
        self._is_draining = False
        self._config = config
        self._pool = pool
        self._dispatcher = dispatcher
        self._grammars = grammars
        self._traffic = traffic
        self._tracer = tracer
        self.courses = CourseLog(config.trace_requests)
        self.aside = Aside()
        self._entrance = Entrance(dispatcher.queue, asyncio.get_running_loop().time)
        self._outcomes = Outcomes(metrics)
        self.history = History(metrics, config, asyncio.get_running_loop().time)
        self._running = RunningRequests()
        metrics.watch(lambda: len(self._running), dispatcher.num_waiting)

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

    @property
    def running(self) -> list[Lifecycle]:
        """The choices of all requests that run."""
        return [choice for generation in self._running.generations() for choice in generation.choices]

    @property
    def num_waiting(self) -> dict[str, int]:
        """In the proxy, by priority."""
        return {label: self._dispatcher.num_waiting(label) for label in LABELS}

    async def keep_history(self) -> None:
        """Until cancelled."""
        await self.history.run(lambda: (self.running, self.num_waiting))

    async def submit(self, request: GenerationRequest) -> Reading:
        """Admits the request, or lets it read along with the same one that runs already. Raises ApiError."""
        try:
            running = self._running.find(request.caller.tenant, request.request_id)
            return await (self._admit(request) if running is None else running.attach(request))
        except ApiError as error:
            self.count_refusal(request.request_id, error, request.priority)
            raise

    def count_refusal(self, request_id: str, error: ApiError, priority: Priority) -> None:
        """Of a request that is not admitted, by whoever refuses it."""
        self._outcomes.refused(request_id, error, priority)
        self._traffic.refused(error, priority.label)
        self.history.refused(request_id, error)

    def abort(self, request_id: str, tenant: str = "") -> bool:
        """Ends it for all who read it. False when no such request of this tenant runs."""
        running = self._running.find(tenant, request_id)
        if running is None or running.generation is None:
            return False
        running.generation.cancel("the request was aborted")
        return True

    def check_room(self, caller: Caller, priority: Priority) -> None:
        """A flood is refused before it is read. Raises ApiError."""
        self._entrance.check_room(caller, priority)

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
                await self._running.wait_idle()
        except TimeoutError:
            logger.warning("%d requests still run: they are ended", len(self._running))
        left = list(self._running.generations())
        for generation in left:
            generation.fail(ApiError(ErrorCode.UNAVAILABLE, "the server shuts down", reason="shutting_down"))
        return len(left)

    def close(self) -> None:
        self.aside.close()

    async def _admit(self, request: GenerationRequest) -> Reading:
        admitted_at = asyncio.get_running_loop().time()
        self.check_model(request.model)
        max_model_len, is_large = self.max_model_len, request.is_large
        if not REQUEST_ID.fullmatch(request.request_id):
            raise invalid("request_id", "must be 1 to 128 visible ASCII characters (header x-request-id)")
        running = self._running.begin(request)
        trace = RequestTrace(self._tracer, request.traceparent)
        try:
            await self.aside.run(is_large, request.check, self.model, max_model_len)
            self._check_open()
            self._check_pool(request)
            visit = self._entrance.enter(request.caller, request.priority, request.num_choices, request.slo)
            try:
                prompt_ids = await self.aside.run(
                    is_large, prompts.all_to_ids, request.prompts, self.model, max_model_len
                )
                self._entrance.bring(visit, sum(map(len, prompt_ids)))
                output = request.sampling.structured_output
                grammar = await self._grammars.compile(output, request.caller.tenant) if output else ""
                self._check_open()
                admission = self._admission(admitted_at, trace)
                choices = request.choices(prompt_ids, self.model, max_model_len, admission, grammar)
                on_end = partial(self._on_end, request, trace)
                generation = Generation(choices, self._config, self._dispatcher, self.metrics, on_end)
            except BaseException:
                self._entrance.leave(visit)
                raise
        except BaseException as error:
            self._running.end(request)
            running.refused(error)
            trace.refused(request.request_id, error)
            raise
        self._traffic.arrived(generation)
        generation.submit()
        return running.admitted(generation)

    def _admission(self, at: float, trace: RequestTrace) -> Admission:
        default_mode = KvMode(self._config.kv_mode)
        return Admission(at, self._config.request_timeout_s, default_mode, trace.traceparent)

    def _check_open(self) -> None:
        if self._is_draining:
            raise ApiError(ErrorCode.UNAVAILABLE, "the server shuts down", reason="shutting_down")
        if not self._dispatcher.has_decode:
            raise ApiError(ErrorCode.UNAVAILABLE, "no decode worker is ready", reason="no_worker", retry_after_s=1)

    def _check_pool(self, request: GenerationRequest) -> None:
        """A cluster that is pooled by default serves without its pool; who asks for the pool must not be misled."""
        if self._pool.pool_nodes:
            return
        fix = "this cluster has no pool nodes; set kv_pool.nodes in its configuration"
        if request.kv_mode is KvMode.POOLED:
            raise invalid("x-kv-mode", f"cannot be pooled: {fix}, or leave it out")
        if request.writes_back:
            raise invalid("x-kv-write-back", f"cannot be true: {fix}, or leave it out")

    def _on_end(self, request: GenerationRequest, trace: RequestTrace, generation: Generation) -> None:
        self._running.end(request)
        self._traffic.ended(generation)
        self.courses.ended(generation.choices, asyncio.get_running_loop().time())
        self._entrance.rates.used(request.caller, generation.usage.completion_tokens)
        for choice in generation.choices:
            if choice.num_attempts:
                self._dispatcher.ended(choice.job, len(choice.progress.accepted))
            if choice.progress.first_token_at is not None:
                timings = choice.timings
                self._entrance.estimate.saw(timings.time_to_first_token_s - timings.queue_s)
        self._outcomes.ended(request, generation, trace)
        self.history.ended(request, generation)
