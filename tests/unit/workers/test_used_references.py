"""References to KV that failed, was used or was replaced: the right text by another way, or a named failure, once."""

from __future__ import annotations

import pytest

from engine.fake_runner import FakeRunner
from rpc import worker_pb2
from tests.engine_config import engine_config
from tests.unit.workers.pair import ONE_BLOCK_A_SLOT, Pair, token_request

ENGINE = engine_config(block_size=4, num_blocks=256, prefill_chunk_size=16)
TICKET = worker_pb2.Ticket(session=b"s" * 16, attempt=1)


def num_failures(pair: Pair) -> int:
    family = next(f for f in pair.d.registry.collect() if f.name == "pdserve_kv_transfer_failures")
    return sum(int(sample.value) for sample in family.samples if sample.name.endswith("_total"))


async def check_refused(pair: Pair, request_id: str, prompt: list[int]) -> None:
    """The ticket buys nothing any more, and the decode worker answers without it."""
    before = num_failures(pair)
    pair.start_decode(token_request(request_id, prompt), TICKET)
    failed = await pair.to_d.wait_for(
        lambda: [e for name, e in pair.to_d.events if name == "handoff_failed" and e.request_id == request_id]
    )
    assert [(f.attempt, f.reason) for f in failed] == [(1, "gone")]
    assert num_failures(pair) == before + 1
    recompute = worker_pb2.StartDecode(request=token_request(request_id, prompt), attempt=2, role_epoch=1)
    pair.decode.start(recompute, pair.to_d)
    assert await pair.to_d.finished(request_id) == FakeRunner.expected(prompt, 6)
    assert num_failures(pair) == before + 1


@pytest.mark.parametrize("num_read", [0, 50, 99])
async def test_a_transfer_that_is_cut_after_some_of_100_blocks_is_computed_instead(num_read: int) -> None:
    """Field report D01."""
    prompt = [(7 * n) % 250 for n in range(400)]
    async with Pair(ENGINE, ONE_BLOCK_A_SLOT.model_copy(update={"layer_ranges": 1})) as pair:
        for _ in range(num_read):
            pair.d.transport.pass_next()
        pair.d.transport.fail_next()
        pair.start(token_request("r", prompt))
        assert (await pair.to_d.event("handoff_failed")).reason == "transfer_failed"
        assert pair.d.transport.num_reads >= num_read + 1
        recompute = worker_pb2.StartDecode(request=token_request("r", prompt), attempt=2, role_epoch=1)
        pair.decode.start(recompute, pair.to_d)
        assert await pair.to_d.finished("r") == FakeRunner.expected(prompt, 6)
        assert num_failures(pair) == 1
        await pair.check_idle()


async def test_a_ticket_is_good_once_for_any_prompt_and_whatever_was_served_since() -> None:
    """Field report D01."""
    prompt = list(range(30))
    async with Pair(ENGINE) as pair:
        pair.start_prefill(token_request("first", prompt), TICKET)
        pair.start_decode(token_request("first", prompt), TICKET)
        assert await pair.to_d.finished("first") == FakeRunner.expected(prompt, 6)
        assert num_failures(pair) == 0
        await check_refused(pair, "again", prompt)
        await check_refused(pair, "another prompt", prompt[::-1])
        for n in range(50):
            other = [100 + n] * 31
            pair.start(token_request(f"other-{n}", other))
            assert await pair.to_d.finished(f"other-{n}") == FakeRunner.expected(other, 6)
        await check_refused(pair, "much later", prompt)
        await pair.check_idle()
