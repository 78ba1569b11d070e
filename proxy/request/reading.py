"""What one client has of a request: its events from the start, and what both fronts tell of it beside them."""

from __future__ import annotations

from dataclasses import dataclass

from proxy.request.event_buffer import EventBuffer, Usage
from proxy.request.generation import Generation
from proxy.request.lifecycle import Lifecycle


@dataclass(frozen=True, slots=True)
class Reading:
    """One reader of a generation, which ends with its last reader."""

    generation: Generation
    events: EventBuffer

    @property
    def request_id(self) -> str:
        return self.generation.request_id

    @property
    def choices(self) -> tuple[Lifecycle, ...]:
        return self.generation.choices

    @property
    def num_prompt_tokens(self) -> int:
        return self.generation.num_prompt_tokens

    @property
    def usage(self) -> Usage:
        return self.generation.usage

    def cancel(self) -> None:
        """The client has what it wanted, or went away; who else reads the same goes on."""
        if not self.generation.events.leave(self.events):
            self.generation.cancel()
