"""What every way of KV blocks must do, between workers and with the pool. A test class inherits it.

Its file says in `make_route` which way it is. Nothing is ever taken that is not the source's, and nothing stays held.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from kv_transfer.config import TransferConfig
from tests.contract.route import HASTY, PATIENT, WAIT_S, Route, Taken
from tests.contract.wire import Moment

MakeRoute = Callable[[TransferConfig, dict[str, object]], Awaitable[Route]]  # with fields in which the source differs
NewRoute = Callable[..., Awaitable[Route]]
at_each_moment = pytest.mark.parametrize("moment", list(Moment))
COMPATIBILITY = {
    "protocol_version": 7,
    "model_fingerprint": "other",
    "kv_dtype": "bfloat16",
    "block_size": 8,
    "num_layers": 3,
    "num_kv_heads": 5,
    "head_dim": 128,
    "tensor_parallel_size": 2,
}


class Routes:
    @pytest.fixture
    async def new_route(self, make_route: MakeRoute) -> AsyncIterator[NewRoute]:
        routes: list[Route] = []

        async def new(config: TransferConfig = PATIENT, **differs: object) -> Route:
            routes.append(await make_route(config, differs))
            return routes[-1]

        yield new
        for route in routes:
            await route.close()

    @pytest.fixture
    async def route(self, new_route: NewRoute) -> Route:
        return await new_route()


class RouteContract(Routes):
    @pytest.fixture
    async def hasty(self, new_route: NewRoute) -> Route:
        """One that gives up soon."""
        return await new_route(HASTY)

    async def test_the_bytes_are_the_sources(self, route: Route) -> None:
        assert (await route.take()).blocks == route.expected
        await route.check_nothing_is_held()

    async def test_a_take_that_is_cancelled_before_it_began_leaves_nothing(self, route: Route) -> None:
        taking = asyncio.ensure_future(route.take())
        taking.cancel()
        await asyncio.wait([taking])
        await check_is_whole_again(route)

    @at_each_moment
    async def test_a_take_that_is_cancelled_leaves_nothing(self, route: Route, moment: Moment) -> None:
        await take_and_cancel(route, moment)
        await check_is_whole_again(route)

    async def test_a_take_that_is_dropped_when_it_is_over_leaves_nothing(self, route: Route) -> None:
        for _ in range(2):
            assert (await route.take()).blocks == route.expected
            await route.check_nothing_is_held()

    @at_each_moment
    async def test_bytes_of_a_cancelled_take_that_come_late_change_nothing(self, route: Route, moment: Moment) -> None:
        await take_and_cancel(route, moment, route.stop_source)
        before = route.memory().clone()
        await route.resume_source()
        await route.give_up()
        await route.check_nothing_is_held()
        assert route.memory().equal(before)
        await check_is_whole_again(route)

    @at_each_moment
    async def test_a_source_that_dies_ends_the_take_and_its_successor_is_usable(
        self, hasty: Route, moment: Moment
    ) -> None:
        await check_ends_short(hasty, moment, hasty.kill_source)
        await hasty.replace_source()
        await check_is_whole_again(hasty)

    @at_each_moment
    async def test_a_source_that_stops_ends_the_take_in_time_and_late_bytes_change_nothing(
        self, hasty: Route, moment: Moment
    ) -> None:
        await check_ends_short(hasty, moment, hasty.stop_source)
        before = hasty.memory().clone()
        await hasty.resume_source()
        await hasty.give_up()
        await hasty.check_nothing_is_held()
        assert hasty.memory().equal(before)
        await check_is_whole_again(hasty)

    @at_each_moment
    async def test_blocks_that_were_reused_are_not_believed(self, route: Route, moment: Moment) -> None:
        route.wire.at(moment, route.reuse_blocks)
        assert (await take(route)).blocks == ()
        assert moment in route.wire.reached
        await check_is_whole_again(route)

    @pytest.mark.parametrize("moment", [Moment.OPEN, Moment.COMMIT])
    async def test_a_call_that_arrives_twice_makes_nothing_wrong(self, route: Route, moment: Moment) -> None:
        """At worst a second verdict is No."""
        route.wire.repeats.add(moment)
        taken = await take(route)
        assert taken.blocks == route.expected or (moment is Moment.COMMIT and taken.blocks == ())
        route.wire.repeats.clear()
        await check_is_whole_again(route)

    @pytest.mark.parametrize("moment", [*Moment, None])
    async def test_calls_that_arrive_after_the_end_and_in_the_wrong_order_hold_nothing(
        self, route: Route, moment: Moment | None
    ) -> None:
        """`moment`: of the cancel; that call, and all that it came before, then arrives for the first time."""
        if moment is None:
            await take(route)
        else:
            await take_and_cancel(route, moment)
        await route.check_nothing_is_held()
        before = route.memory().clone()
        async with asyncio.timeout(WAIT_S):
            await route.wire.replay()
        await route.let_leases_end()
        await route.check_nothing_is_held()
        assert route.memory().equal(before)
        await check_is_whole_again(route)


class CompatibilityContract(Routes):
    """Apart, because it is decided before any transport is touched."""

    @pytest.mark.parametrize("field", COMPATIBILITY)
    async def test_a_source_of_another_kind_is_refused_by_the_name_of_the_field(
        self, new_route: NewRoute, field: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The pool costs no request, so there it is the log that says so."""
        caplog.set_level(logging.INFO)
        route = await new_route(**{field: COMPATIBILITY[field]})
        taken = await take(route)
        assert taken.blocks == ()
        assert field in taken.why + caplog.text
        assert route.wire.num_reads == 0
        await route.give_up()
        await route.check_nothing_is_held()


async def take(route: Route) -> Taken:
    async with asyncio.timeout(WAIT_S):
        return await route.take()


async def take_and_cancel(route: Route, moment: Moment, first: Callable[[], Awaitable[None]] | None = None) -> None:
    taking = asyncio.ensure_future(route.take())

    async def cancel() -> None:
        if first is not None:
            await first()
        taking.cancel()

    route.wire.at(moment, cancel)
    await asyncio.wait([taking], timeout=WAIT_S)
    assert taking.cancelled()


async def check_ends_short(route: Route, moment: Moment, fault: Callable[[], Awaitable[None]]) -> None:
    """The take that the moment comes in, which on a busy machine need not be the first of a hasty route."""
    route.wire.at(moment, fault)
    async with asyncio.timeout(WAIT_S):
        while moment not in route.wire.reached:
            taken = await route.take()
    assert len(taken.blocks) < len(route.expected)
    assert taken.blocks == route.expected[: len(taken.blocks)]


async def check_is_whole_again(route: Route) -> None:
    """After as many attempts as its deadlines make necessary."""
    await route.check_nothing_is_held()
    async with asyncio.timeout(WAIT_S):
        while (taken := await route.take()).blocks != route.expected:
            assert taken.blocks == route.expected[: len(taken.blocks)], taken.why
            await asyncio.sleep(0.02)  # as long as a node is avoided
    await route.check_nothing_is_held()
