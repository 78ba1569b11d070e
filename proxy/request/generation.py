"""One request: its choices, each with a lifecycle of its own, read as one stream of events.

They are submitted together, end together when one fails, and count as one request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from proxy.config import ProxyConfig
from proxy.errors import ApiError
from proxy.metrics import ProxyMetrics
from proxy.request.event_buffer import Timings, Usage
from proxy.request.job import Job
from proxy.request.lifecycle import Lifecycle
from proxy.request.shared_events import SharedEvents
from proxy.routing.dispatcher import Dispatcher
from proxy.text.text_output import TextOutput


class Generation:
    """Maintains which choices still run, and the first error, which ends them all."""

    def __init__(
        self,
        choices: Sequence[tuple[Job, TextOutput]],
        config: ProxyConfig,
        dispatcher: Dispatcher,
        metrics: ProxyMetrics,
        on_end: Callable[[Generation], None],
    ) -> None:
        self.error: ApiError | None = None
        self.events = SharedEvents(config.max_buffered_tokens, len(choices))
        self.choices = tuple(
            Lifecycle(job, output, self.events, config, dispatcher, metrics, self._on_choice_end)
            for job, output in choices
        )
        self._num_running = len(choices)
        self._on_end = on_end

    @property
    def request_id(self) -> str:
        return self.choices[0].job.request_id

    @property
    def num_attempts(self) -> int:
        return sum(choice.num_attempts for choice in self.choices)

    @property
    def num_prompt_tokens(self) -> int:
        """Each prompt counts once, however many choices it has."""
        return sum(len(choice.job.prompt_ids) for choice in self.choices if choice.job.is_first_of_prompt)

    @property
    def usage(self) -> Usage:
        """Of all choices together. Of a prompt's choices the one with the fewest cached tokens tells them."""
        completion_tokens, cached_tokens = 0, [0]
        for choice in self.choices:
            usage = choice.progress.usage
            completion_tokens += usage.completion_tokens
            if choice.job.is_first_of_prompt:
                cached_tokens.append(usage.cached_tokens)
            cached_tokens[-1] = min(cached_tokens[-1], usage.cached_tokens)
        return Usage(self.num_prompt_tokens, completion_tokens, sum(cached_tokens))

    @property
    def timings(self) -> Timings:
        """Of the whole request until now: its last choice's time in the queue, and its first token."""
        each = [choice.timings for choice in self.choices]
        return Timings(
            queue_s=max(timings.queue_s for timings in each),
            time_to_first_token_s=min(timings.time_to_first_token_s for timings in each),
            total_s=max(timings.total_s for timings in each),
        )

    def submit(self) -> None:
        """Into the queue, where a place is reserved for each choice."""
        for choice in self.choices:
            choice.submit()

    def cancel(self, message: str = "the client went away") -> None:
        """Ends all choices on all workers. Does nothing to those that have ended."""
        for choice in self.choices:
            choice.cancel(message)

    def fail(self, error: ApiError) -> None:
        for choice in self.choices:
            choice.fail(error)

    def _on_choice_end(self, choice: Lifecycle) -> None:
        if choice.error is not None and self.error is None:
            self.error = choice.error
            self.fail(choice.error)  # the others come here too, before this one goes on
        self._num_running -= 1
        if not self._num_running:
            self._on_end(self)
