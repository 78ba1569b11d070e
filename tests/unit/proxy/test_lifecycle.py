from __future__ import annotations
from tests.unit.proxy.conftest import Cluster

async def test_tokens_stream(cluster: Cluster) -> None:
    lc = await cluster.proxy.service.submit(cluster.request("hi", max_tokens=5))
    p = await cluster.prefill.next_start()
    d = await cluster.decode.next_start()
    cluster.prefill.prefilled(p)
    cluster.decode.say(d, b"he", received_tokens=2)
    cluster.decode.say(d, b"llo", index=2, finish="length")
    events = [e async for e in lc.events]
    print(events)
    print(cluster.proxy.metrics.exposition().decode())
