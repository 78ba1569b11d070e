"""Whether workers have room for one more request: only a little ahead, so that the order is decided in the proxy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from proxy.request.job import Job
from proxy.routing.option import Option
from proxy.workers.worker_link import WorkerLink

MAX_UNTRANSFERRED = 8  # computed prompts that one decode worker has not taken over: more means that it is full


@dataclass(frozen=True, slots=True)
class Room:
    """The limits, and what they mean. Batch requests that are there already count for batch requests only."""

    dispatch_ahead: int
    long_prompt_tokens: int
    max_long_prefills: int

    def is_long(self, job: Job) -> bool:
        return len(job.prompt_ids) > self.long_prompt_tokens

    def is_anywhere(self, links: Iterable[WorkerLink], job: Job) -> bool:
        """Whether one of them could compute the prompt."""
        return any(self._for_prompt(link, job) for link in links)

    def is_in(self, option: Option, job: Job) -> bool:
        """Whoever is alone computes the prompt."""
        prefill, decode = option.prefill, option.decode
        if prefill is None:
            return decode is not None and self._for_prompt(decode, job)
        return self._for_prompt(prefill, job) and (decode is None or self.for_stream(decode, job))

    def for_stream(self, decode: WorkerLink, job: Job) -> bool:
        """For a request whose prompt is computed elsewhere."""
        return decode.tally.num_untransferred(batch=job.priority.is_batch) < MAX_UNTRANSFERRED

    def _for_prompt(self, link: WorkerLink, job: Job) -> bool:
        tally, batch = link.tally, job.priority.is_batch
        if tally.num_waiting(batch=batch) >= self.dispatch_ahead:
            return False
        return not self.is_long(job) or tally.num_long(self.long_prompt_tokens, batch=batch) < self.max_long_prefills
