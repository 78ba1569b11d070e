"""A prefill worker that a decode worker cannot take KV from: known by name at once, and the prompt is computed here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.fake_runner import FakeRunner
from kv_transfer.messages import Compatibility, PeerInfo, TransportInfo
from rpc import worker_pb2
from tests.unit.workers.pair import Pair, PrefillEnd, token_request

WITHIN_S = 5.0
Change = Callable[[PeerInfo], PeerInfo]


def other(**fields: object) -> Change:
    def change(info: PeerInfo) -> PeerInfo:
        compatibility: Compatibility = replace(info.compatibility, **fields)  # type: ignore[arg-type]
        return replace(info, compatibility=compatibility)

    return change


def offering(*transports: TransportInfo) -> Change:
    return lambda info: replace(info, transports=transports)


@pytest.mark.parametrize(
    ("change", "reason", "named"),
    [
        (other(protocol_version=2), "incompatible", "protocol_version is 2"),
        (other(model_fingerprint="another"), "incompatible", "model_fingerprint is another"),
        (other(kv_dtype="bfloat16"), "incompatible", "kv_dtype is bfloat16"),
        (other(block_size=8), "incompatible", "block_size is 8"),
        (other(num_layers=3), "incompatible", "num_layers is 3"),
        (other(num_kv_heads=2), "incompatible", "num_kv_heads is 2"),
        (other(head_dim=8), "incompatible", "head_dim is 8"),
        (other(tensor_parallel_size=2), "incompatible", "tensor_parallel_size is 2"),
        (offering(), "incompatible", "no common transport"),
        (offering(TransportInfo("carrier pigeon", b"")), "incompatible", "carrier pigeon"),
        (lambda info: replace(info, incarnation="p-0"), "peer_unavailable", "this is p-0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_it_is_refused_by_name_and_the_prompt_is_computed_in_time(
    change: Change, reason: str, named: str
) -> None:
    """Field reports D39 and D40."""
    prompt = list(range(20))
    async with Pair() as pair, asyncio.timeout(WITHIN_S):
        side = pair._side("p-odd")
        side.info = change(side.info)
        odd = PrefillEnd("p-odd", side, pair.pools.client(side))
        await odd.start()
        pair.ends.append(odd)
        pair.use(odd)
        ticket = worker_pb2.Ticket(session=b"s" * 16, attempt=1)
        pair.start_prefill(token_request("r", prompt), ticket)
        source = worker_pb2.KVSource(ticket=ticket, address=odd.address, incarnation="p-odd")
        command = worker_pb2.StartDecode(request=token_request("r", prompt), attempt=1, role_epoch=1, source=source)
        pair.decode.start(command, pair.to_d)
        failed = await pair.to_d.event("handoff_failed")
        assert (failed.reason, named in failed.detail) == (reason, True), failed.detail
        pair.prefill.abort("r", 1, pair.to_p)
        pair.decode.start(
            worker_pb2.StartDecode(request=token_request("r", prompt), attempt=2, role_epoch=1), pair.to_d
        )
        assert await pair.to_d.finished("r") == FakeRunner.expected(prompt, 6)
        await pair.check_idle()
