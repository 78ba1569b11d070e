"""The thread that owns an `Engine`: commands come in through one queue, step results go out to subscribers.

While the model computes a batch, in a thread of its own, commands go on; none of them hands out blocks.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from engine.batch import Batch, LayerWatch, Outcome, Work
from engine.engine import Engine, StepResult
from engine.errors import EngineStopped
from engine.request import RequestKind

T = TypeVar("T")
logger = logging.getLogger(__name__)

TICK_S = 0.25  # an idle engine still reports this often, so that leases and deadlines end without traffic
MAX_FAILED_STEPS = 3  # in a row, with nothing computed: then the device, not a request, is at fault


class EngineThread:
    """Maintains: the engine is touched in this thread only. `died` is set with a reason when it cannot go on."""

    def __init__(self, engine: Engine, tick_s: float = TICK_S) -> None:
        self.engine = engine
        self.load = engine.load()  # as of the last step or tick; read from any thread
        self.died: Future[str] = Future()
        self.num_turns = 0  # of its loop; one that stays the same for seconds means that a step or a command hangs
        self._tick_s = tick_s
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._subscribers: list[Callable[[StepResult], None]] = []
        self._layer_ends: tuple[int, ...] = ()
        self._on_layers: Callable[[Sequence[Work], int], None] | None = None
        self._computing: Batch | None = None
        self._stopping = threading.Event()
        self._device = ThreadPoolExecutor(1, "model")
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)

    def subscribe(self, on_step: Callable[[StepResult], None]) -> None:
        """`on_step` runs in the engine thread after each step and tick, before any later command."""
        self._subscribers.append(on_step)

    def watch_layers(self, ends: Sequence[int], on_layers: Callable[[Sequence[Work], int], None]) -> None:
        """In a step that ends a prompt for another worker, `on_layers(works, num_layers)` runs in the engine thread
        once the step's KV is written in so many layers, for each of `ends`, and with 0 when the step begins anew.
        It is not told of a step that is over. To be called before `start`.
        """
        self._layer_ends, self._on_layers = tuple(ends), on_layers

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Ends the thread after the step it is in. Later calls raise EngineStopped."""
        self._stopping.set()
        self._inbox.put(_nothing)
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._refuse_pending()

    def call(self, command: Callable[[Engine], T]) -> Future[T]:
        """Runs `command(engine)` in the engine thread, soon; its result or exception arrives in the future."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            if self._stopping.is_set():
                future.set_exception(EngineStopped("the engine has stopped"))
                return
            try:
                future.set_result(command(self.engine))
            except Exception as error:  # noqa: BLE001  handed to the caller, whose request it is
                future.set_exception(error)

        self._inbox.put(run)
        if self._stopping.is_set():
            self._refuse_pending()
        return future

    def tell(self, command: Callable[[Engine], object]) -> None:
        """As `call`, for who does not wait; an error is logged."""
        self.call(command).add_done_callback(_log_error)

    def _main(self) -> None:
        try:
            reason = self._run_steps()
        except Exception as error:
            logger.exception("the engine thread failed")
            reason = f"the engine thread failed: {type(error).__name__}: {error}"
        self._stopping.set()
        self._device.shutdown(wait=False)
        self._refuse_pending()
        if reason is not None:
            self.died.set_result(reason)

    def _run_steps(self) -> str | None:
        """Until `stop`, or until the device is seen to be at fault: then the reason."""
        num_failed_steps = 0
        idle = True
        while not self._stopping.is_set():
            self._run_commands(wait=idle)
            self.num_turns += 1
            schedule = self.engine.schedule()
            result = self.engine.finish(schedule, self._compute(schedule.batch))
            idle = result.num_tokens == 0 and not result.failed
            self.load = self.engine.load()
            self._publish(result)
            if result.num_tokens:
                num_failed_steps = 0
            elif result.failed:
                num_failed_steps += 1
            if num_failed_steps == MAX_FAILED_STEPS:
                return f"{MAX_FAILED_STEPS} steps in a row failed: {result.failed[0][1]}"
        return None

    def _compute(self, batch: Batch) -> Outcome:
        """The model runs in its own thread, so that a command waits for other commands only, not for a whole step."""
        if not batch.works:
            return Outcome()
        running = self._device.submit(self.engine.compute, self._watched(batch))
        running.add_done_callback(lambda _: self._inbox.put(_nothing))
        self._computing = batch
        while not running.done():
            try:
                self._inbox.get(timeout=self._tick_s)()
            except queue.Empty:
                self._publish(StepResult())  # a long step does not stop the ticks
        self._computing = None
        return running.result()

    def _watched(self, batch: Batch) -> Batch:
        on_layers = self._on_layers
        if on_layers is None or not any(w.sample and w.request.kind is RequestKind.PREFILL for w in batch.works):
            return batch

        def tell(num_layers: int) -> None:
            self.tell(lambda _: on_layers(batch.works, num_layers) if self._computing is batch else None)

        return replace(batch, watch=LayerWatch(self._layer_ends, tell))

    def _run_commands(self, wait: bool) -> None:
        try:
            command = self._inbox.get(timeout=self._tick_s) if wait else self._inbox.get_nowait()
            while True:
                command()
                command = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _publish(self, result: StepResult) -> None:
        for on_step in self._subscribers:
            try:
                on_step(result)
            except Exception:  # one subscriber's bug must not stop every request
                logger.exception("a step subscriber failed")

    def _refuse_pending(self) -> None:
        while True:
            try:
                self._inbox.get_nowait()()
            except queue.Empty:
                return


def _nothing() -> None:
    """Wakes the thread."""


def _log_error(future: Future[object]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None and not isinstance(error, EngineStopped):
        logger.error("a command failed", exc_info=error)
