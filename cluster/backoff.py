"""How long to wait before something that died is started again: pure, so that a table tests it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cluster.spec import RestartSpec


@dataclass(frozen=True, slots=True)
class Backoff:
    """The early deaths in a row so far; each doubles the wait, and a stable life forgets them."""

    restart: RestartSpec
    early_deaths: int = 0

    def after_life(self, lived_s: float) -> Backoff:
        """The next one, after a life of so many seconds."""
        is_stable = lived_s >= self.restart.stable_after_s
        return replace(self, early_deaths=0 if is_stable else self.early_deaths + 1)

    @property
    def delay_s(self) -> float:
        if self.early_deaths == 0:
            return 0.0
        doublings = min(self.early_deaths - 1, 16)
        return min(self.restart.first_delay_s * 2.0**doublings, self.restart.longest_delay_s)
