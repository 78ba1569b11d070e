"""What a request's client hopes for: its first token, and the tokens after it, within so long."""

from __future__ import annotations

from dataclasses import dataclass

LABELS = ("ttft", "tpot", "both")


@dataclass(frozen=True, slots=True)
class Slo:
    """None: the client does not say."""

    ttft_s: float | None = None
    tpot_s: float | None = None  # mean time of each token after the first

    @property
    def asked(self) -> tuple[str, ...]:
        given = {"ttft": self.ttft_s is not None, "tpot": self.tpot_s is not None, "both": True}
        if not (given["ttft"] and given["tpot"]):
            given["both"] = False
        return tuple(label for label in LABELS if given[label])

    def attained(self, first_token_s: float, token_s: float | None) -> tuple[str, ...]:
        """Which of those asked were met; `token_s`: None of an answer with one token, whose others were all in time."""
        is_met = {
            "ttft": self.ttft_s is not None and first_token_s <= self.ttft_s,
            "tpot": self.tpot_s is not None and (token_s is None or token_s <= self.tpot_s),
        }
        is_met["both"] = is_met["ttft"] and is_met["tpot"]
        return tuple(label for label in self.asked if is_met[label])


NO_SLO = Slo()
