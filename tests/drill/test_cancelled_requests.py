"""Clients that leave at random moments, in whatever phase their request is, leave nothing behind on either worker."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests import plain_http
from tests.integration.processes import Processes
from tests.integration.test_handoff import expected, prompt_of

pytestmark = pytest.mark.drill


def test_after_200_requests_of_which_a_third_is_cancelled_nothing_is_left(fake_cluster: Processes) -> None:
    rng = random.Random(20)
    prompts = [prompt_of(rng.choice([1, 5, 16, 40, 200, 700]), seed=n) for n in range(200)]
    patience = [rng.uniform(0.001, 0.3) if n % 3 == 0 else None for n in range(200)]

    def ask(n: int) -> str | None:
        body = {"model": "test", "prompt": prompts[n], "max_tokens": 20, "temperature": 0, "stream": n % 2 == 0}
        try:
            response = plain_http.post(f"{fake_cluster.http}/v1/completions", json=body, timeout=patience[n] or 60)
        except httpx.TimeoutException:
            return None
        assert response.status_code == 200, response.text
        return None if n % 2 == 0 else str(response.json()["choices"][0]["text"])

    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(ask, range(200)))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer is None or answer == expected(prompt, 20)
    assert sum(1 for answer in answers if answer is not None) > 60
    fake_cluster.wait_idle()
    for worker in fake_cluster.workers:
        assert worker.metric("pdserve_staging_slots", state="quarantined") == 0
