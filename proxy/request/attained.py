"""Which of a request's goals one of its choices attained."""

from __future__ import annotations

from proxy.admission.slo import Slo
from proxy.request.lifecycle import Lifecycle


def attained(choice: Lifecycle, slo: Slo) -> tuple[str, ...]:
    """Labels. Of a choice that has ended; one that failed or was cancelled has attained nothing."""
    if choice.error is not None:
        return ()
    return slo.attained(choice.timings.time_to_first_token_s, choice.progress.time_per_output_token_s)
