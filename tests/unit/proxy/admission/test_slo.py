"""Which goals a client named, and which of them an answer met."""

from __future__ import annotations

import pytest

from proxy.admission.slo import Slo


@pytest.mark.parametrize(
    ("slo", "asked", "attained"),
    [
        (Slo(), (), ()),
        (Slo(ttft_s=1.0), ("ttft",), ("ttft",)),
        (Slo(ttft_s=0.9), ("ttft",), ()),
        (Slo(tpot_s=0.1), ("tpot",), ("tpot",)),
        (Slo(tpot_s=0.09), ("tpot",), ()),
        (Slo(1.0, 0.1), ("ttft", "tpot", "both"), ("ttft", "tpot", "both")),
        (Slo(1.0, 0.05), ("ttft", "tpot", "both"), ("ttft",)),
        (Slo(0.5, 0.1), ("ttft", "tpot", "both"), ("tpot",)),
    ],
)
def test_goals_are_met_up_to_their_limit(slo: Slo, asked: tuple[str, ...], attained: tuple[str, ...]) -> None:
    assert slo.asked == asked
    assert slo.attained(1.0, 0.1) == attained


def test_an_answer_of_one_token_has_no_later_ones_that_could_be_late() -> None:
    assert Slo(1.0, 0.001).attained(0.5, None) == ("ttft", "tpot", "both")
