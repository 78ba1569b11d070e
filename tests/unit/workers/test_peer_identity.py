"""Peers that restart, move, or are cut off from one partner only."""

from __future__ import annotations

from bench.chaos.relay import Relay
from engine.fake_runner import FakeRunner
from tests.unit.workers.pair import SHORT, Pair, token_request


async def answer(pair: Pair, request_id: str, prompt: list[int]) -> None:
    pair.start(token_request(request_id, prompt))
    assert await pair.to_d.finished(request_id) == FakeRunner.expected(prompt, 6)
    assert pair.to_d.tokens(request_id)[0].origin.computed_tokens == 0


async def test_a_prefill_worker_that_restarts_on_the_same_port_is_a_new_peer() -> None:
    async with Pair() as pair:
        await answer(pair, "before", [1, 2, 3, 4, 5])
        port = pair.ends[0].port
        await pair.ends.pop().stop()
        await pair.start_prefill_end("p-2", port)
        await answer(pair, "after", [6, 7, 8, 9])
        await pair.check_idle()


async def test_a_prefill_worker_that_restarts_on_another_port_is_a_new_peer() -> None:
    async with Pair() as pair:
        await answer(pair, "before", [1, 2, 3, 4, 5])
        await pair.ends.pop().stop()
        await pair.start_prefill_end("p-2")
        await answer(pair, "after", [6, 7, 8, 9])
        await pair.check_idle()


async def test_a_cut_between_one_pair_touches_no_other_and_heals() -> None:
    patient = {"open_timeout_s": 10.0, "lease_s": 10.0, "silent_peer_s": 3.0, "renew_every_s": 2.0}
    patient["handshake_timeout_s"] = 3.0
    config = SHORT.model_copy(update=patient)  # a channel that was cut takes a second to connect again
    async with Pair(config=config) as pair:
        first = pair.ends[0]
        relay = Relay("127.0.0.1", first.port)
        await relay.start()
        second = await pair.start_prefill_end("p-2")
        through_relay = f"127.0.0.1:{relay.port}"
        pair.use(first, through_relay)
        await answer(pair, "first", [1, 2, 3])
        await relay.cut()
        pair.start(token_request("cut", [4, 5, 6]))
        assert (await pair.to_d.event("handoff_failed")).request_id == "cut"
        pair.use(second)
        await answer(pair, "second", [7, 8, 9])
        await relay.mend()
        pair.use(first, through_relay)
        await answer(pair, "mended", [10, 11, 12])
        await relay.cut()
