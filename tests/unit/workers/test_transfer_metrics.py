"""The hand-off's metrics, as a scrape of each worker shows them: names, labels, and each kind of failure for itself."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from engine.fake_runner import FakeRunner
from kv_transfer.messages import BlockRef, FailureReason, Ticket, Verdict
from kv_transfer.metrics import TransferGauges
from rpc import worker_pb2
from tests.unit.workers.pair import LABELS, SHORT, Pair, token_request
from tests.unit.workers.side import Side

SESSION = b"s" * 16
TICKET = worker_pb2.Ticket(session=SESSION, attempt=1)


class Scraped:
    """One side's registry, as its worker has it."""

    def __init__(self, side: Side) -> None:
        self._registry = side.registry
        self._registry.register(TransferGauges(side.leases, side.ring, LABELS))

    def names(self) -> set[tuple[str, ...]]:
        """Of each sample, with the labels besides a worker's own."""
        samples = [sample for family in self._registry.collect() for sample in family.samples]
        return {(s.name, *sorted(s.labels.keys() - LABELS.keys() - {"le"})) for s in samples}

    def apart(self) -> tuple[float, float, float]:
        """Failures of whatever reason, leases that ran out, commits called stale."""
        failures = _total(self._registry, "pdserve_kv_transfer_failures_total")
        expired = _total(self._registry, "pdserve_kv_lease_expired_total")
        return failures, expired, _total(self._registry, "pdserve_kv_stale_rejected_total")


def _total(registry: CollectorRegistry, name: str) -> float:
    return sum(s.value for family in registry.collect() for s in family.samples if s.name == name)


async def test_a_hand_off_shows_under_the_names_that_dashboards_know() -> None:
    async with Pair() as pair:
        p, d = Scraped(pair.p), Scraped(pair.d)
        pair.start_node()
        prompt = list(range(40))
        pair.start(token_request("p2p", prompt))
        assert await pair.to_d.finished("p2p") == FakeRunner.expected(prompt, 6)
        pooled = token_request("pooled", prompt[::-1])
        await pair.prefill_into_pool(pooled)
        pair.decode_from_pool(pooled)
        assert await pair.to_d.finished("pooled") == FakeRunner.expected(prompt[::-1], 6)
        path = {"transport": "local", "direction": "in"}
        block_bytes = pair.d.ring.block_bytes
        assert pair.sample("pdserve_kv_transfer_bytes_total", **path, mode="p2p") == 10 * block_bytes
        assert pair.sample("pdserve_kv_transfer_bytes_total", **path, mode="pooled") == 9 * block_bytes
        for stage in ("reserve", "handshake", "wait_ready", "transfer", "validate"):
            assert pair.sample("pdserve_handoff_stage_seconds_count", stage=stage) == 1, stage
        assert d.names() >= {
            ("pdserve_handoff_stage_seconds_bucket", "stage"),
            ("pdserve_kv_transfer_seconds_bucket", "mode", "transport"),
            ("pdserve_kv_transfer_bytes_total", "direction", "mode", "transport"),
            ("pdserve_kv_transfer_tokens_total", "mode"),
            ("pdserve_handoff_overlap_ratio_bucket",),
            ("pdserve_staging_slots", "state"),
        }
        assert p.names() >= {
            ("pdserve_kv_transfer_bytes_total", "direction", "mode", "transport"),
            ("pdserve_kv_leases_active",),
            ("pdserve_kv_lease_expired_total",),
            ("pdserve_kv_stale_rejected_total",),
        }
        assert p.apart() == d.apart() == (0, 0, 0)


async def test_a_failed_transfer_is_a_failure_and_nothing_else() -> None:
    async with Pair() as pair:
        p, d = Scraped(pair.p), Scraped(pair.d)
        pair.d.transport.fail_next()
        pair.start(token_request("r", list(range(20))), session=SESSION)
        assert (await pair.to_d.event("handoff_failed")).reason == FailureReason.TRANSFER_FAILED
        await pair.check_idle()
        assert (p.apart(), d.apart()) == ((0, 0, 0), (1, 0, 0))
        assert ("pdserve_kv_transfer_failures_total", "mode", "reason") in d.names()


async def test_a_lease_that_runs_out_is_no_failure_of_a_transfer_where_it_was_given() -> None:
    async with Pair(config=SHORT) as pair:
        p = Scraped(pair.p)
        pair.start_prefill(token_request("r", list(range(40))), TICKET)
        await pair.to_p.event("done")
        await pair.p.check_idle()
        assert p.apart() == (0, 1, 0)


async def test_a_commit_of_what_is_no_longer_there_is_stale_and_nothing_else() -> None:
    async with Pair() as pair:
        p = Scraped(pair.p)
        pair.start_prefill(token_request("r", list(range(40))), TICKET)
        await pair.to_p.event("done")
        commit = pair.p.engine.call(lambda _: pair.p.leases.commit(Ticket(SESSION, 1), [BlockRef(0, 99)], 0.0))
        assert commit.result(10) is Verdict.STALE
        assert p.apart() == (0, 0, 1)
