"""When alerts fired and cleared, as the drill notes it."""

from __future__ import annotations

import httpx
import pytest

from bench.alerts.alert_watch import AlertWatch


class FakePrometheus:
    """Answers each look with the next of its answers, and with the last for good."""

    def __init__(self, *answers: dict[str, str]) -> None:
        self._answers = list(answers)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        states = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        alerts = [{"labels": {"alertname": name}, "state": state} for name, state in states.items()]
        return httpx.Response(200, json={"data": {"alerts": alerts}})


def watch(*answers: dict[str, str]) -> AlertWatch:
    client = httpx.AsyncClient(transport=httpx.MockTransport(FakePrometheus(*answers)))
    return AlertWatch(client, "http://prometheus")


async def test_an_alert_that_fires_and_clears_has_both_times() -> None:
    seen = watch({}, {"Slow": "pending"}, {"Slow": "firing"}, {})
    await seen.wait_fired(["Slow"], 30)
    assert seen.firing == {"Slow"}
    await seen.wait_clear(30)
    assert seen.began_at["Slow"] < seen.ended_at["Slow"]


async def test_one_that_stays_pending_has_not_fired() -> None:
    seen = watch({"Slow": "pending"})
    await seen.wait_fired(["Slow"], 0)
    await seen.look()
    assert seen.began_at == {}


async def test_one_that_goes_on_has_not_cleared() -> None:
    seen = watch({"Slow": "firing"})
    await seen.look()
    await seen.wait_clear(0)
    assert seen.ended_at == {}


async def test_a_prometheus_that_refuses_is_no_silence() -> None:
    client = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(500)))
    with pytest.raises(httpx.HTTPStatusError):
        await AlertWatch(client, "http://prometheus").look()
