"""How many requests of a tenant run, as its processes report it to Redis with leases.

On virtual time: a pause of the machine would end a lease.
"""

import asyncio
from random import Random

from router.core.cache.redis_keys import limit_key
from router.core.quota.rate_limit import Quota
from router.net.redis.pipeline import RedisPipeline
from router.shared.connection.redis import open_backend, open_pipeline
from router.shared.quota.rate_limit_script import RUNNING_LEASE_MS
from router.shared.quota.rate_limits import Reservation, TenantLimits
from tests.simulation.redis_model import RedisModel
from tests.support.waiting import eventually
from tests.world.scenario import World, scenario

KEY = limit_key("acme")
LEASE = RUNNING_LEASE_MS / 1000
TIMEOUT = 2.5
REFUSED = "concurrent requests"


class Process:
    """The limits of acme in one of several processes."""

    def __init__(self, world: World, **quota: int) -> None:
        self.pipeline = pipeline_to(world.redis.url)
        self.limits = TenantLimits()
        self.configure(**quota)

    def configure(self, **quota: int) -> None:
        self.limits.configure(self.pipeline, {"acme": Quota(**quota)})

    async def reserve(self) -> Reservation:
        return await self.limits.reserve("acme")

    async def ask(self) -> str | None:
        """Why a request is refused; None if it is admitted, and runs from now on."""
        return (await self.reserve()).status.exceeded

    async def is_admitted(self) -> bool:
        return await self.ask() is None


def pipeline_to(url: str) -> RedisPipeline:
    return open_pipeline(open_backend(url, timeout=TIMEOUT), timeout=TIMEOUT, retry=0.02)


async def start(world: World, **quota: int) -> tuple[Process, Process]:
    processes = Process(world, **quota), Process(world, **quota)
    for process in processes:
        await process.pipeline.start()
    return processes


@scenario
async def test_slots_are_counted_over_both_processes_and_released(world: World) -> None:
    one, other = await start(world, concurrent_requests=3)
    permits = [await one.reserve(), await other.reserve(), await one.reserve()]
    assert [permit.status.exceeded for permit in permits] == [None] * 3
    refused = await other.reserve()
    assert refused.status.exceeded == REFUSED
    refused.release()
    assert await one.ask() == REFUSED, "a refused request has no slot to release"
    permits[0].release()
    permits[0].release()
    await asyncio.sleep(0.1)
    assert [await other.ask() for _ in range(2)] == [None, REFUSED]


@scenario
async def test_a_cancelled_reservation_holds_no_slot(world: World) -> None:
    one, other = await start(world, concurrent_requests=1)
    reserving = asyncio.ensure_future(one.reserve())
    await asyncio.sleep(0)
    reserving.cancel()
    await asyncio.wait([reserving])
    await asyncio.sleep(0.2)
    assert await other.is_admitted()


@scenario
async def test_requests_of_a_router_without_the_limit_take_no_slots_of_one_that_has_it(world: World) -> None:
    without, limited = await start(world, requests_per_minute=1000)
    limited.configure(requests_per_minute=1000, concurrent_requests=2)
    running = [await without.reserve() for _ in range(5)]
    assert [await limited.ask() for _ in range(3)] == [None, None, REFUSED]
    for permit in running:
        permit.release()


@scenario
async def test_a_live_process_keeps_its_slots_and_a_dead_one_does_not(world: World) -> None:
    one, other = await start(world, concurrent_requests=1)
    reporting = asyncio.ensure_future(one.limits.run())
    assert await one.is_admitted()
    for _ in range(20):
        await asyncio.sleep(LEASE / 2)
        assert await other.ask() == REFUSED
    reporting.cancel()
    await asyncio.sleep(LEASE / 2)
    assert await other.ask() == REFUSED, "its last report is valid yet"
    await asyncio.sleep(LEASE / 2)
    assert await other.is_admitted()


@scenario
async def test_a_report_that_is_late_by_less_than_two_thirds_of_the_lease_loses_no_slot(world: World) -> None:
    one, other = await start(world, concurrent_requests=1)
    reporting = asyncio.ensure_future(one.limits.run())
    assert await one.is_admitted()
    await asyncio.sleep(LEASE)
    reporting.cancel()
    await asyncio.sleep(LEASE / 3)
    reporting = asyncio.ensure_future(one.limits.run())
    for _ in range(20):
        await asyncio.sleep(LEASE / 10)
        assert await other.ask() == REFUSED
    reporting.cancel()


@scenario
async def test_a_redis_that_was_emptied_gets_the_running_requests(world: World) -> None:
    one, other = await start(world, concurrent_requests=2)
    reporting = asyncio.ensure_future(one.limits.run())
    held = [await one.reserve(), await one.reserve()]
    world.redis.stop()
    assert await one.ask() == REFUSED
    held.pop().release()
    (await other.reserve()).release()  # so that it has detected it too
    world.redis.start()
    for process in (one, other):
        await process.pipeline.wait_until_up()
    await eventually(lambda: world.redis.client.exists(KEY))
    assert [await other.ask() for _ in range(2)] == [None, REFUSED]
    reporting.cancel()


@scenario
async def test_an_end_that_redis_missed_is_corrected(world: World) -> None:
    one, other = await start(world, concurrent_requests=2)
    reporting = asyncio.ensure_future(one.limits.run())
    held = [await one.reserve(), await one.reserve()]
    world.redis.freeze()
    held.pop().release()
    await eventually(lambda: not one.pipeline.up)
    world.redis.thaw()
    for process in (one, other):
        await process.pipeline.wait_until_up()
    await eventually(other.is_admitted)
    assert await other.ask() == REFUSED
    reporting.cancel()


# -- other limits, and another Redis ----------------------------------------------------------------------------------


@scenario
async def test_requests_that_began_before_a_limit_count_for_it(world: World) -> None:
    one, other = await start(world, requests_per_minute=50)
    ended, running = await one.reserve(), await one.reserve()
    ended.release()
    for process in (one, other):
        process.configure(concurrent_requests=2)
    assert await one.is_admitted()
    assert await other.ask() == REFUSED
    running.release()
    await asyncio.sleep(0.1)
    assert await other.is_admitted()


@scenario
async def test_running_requests_of_a_tenant_whose_limit_goes_and_returns_count_for_it(world: World) -> None:
    one, other = await start(world, concurrent_requests=2)
    reporting = asyncio.ensure_future(one.limits.run())
    held = [await one.reserve(), await one.reserve()]
    one.limits.configure(one.pipeline, {})
    assert not one.limits.has_limits("acme")
    await asyncio.sleep(10.5 * LEASE)
    assert await other.ask() == REFUSED
    held.pop().release()
    one.configure(concurrent_requests=2)
    assert [await one.ask() for _ in range(2)] == [None, REFUSED]
    reporting.cancel()


@scenario
async def test_another_redis_gets_the_running_requests(world: World) -> None:
    moving, late = await start(world, concurrent_requests=2)
    held = [await moving.reserve(), await moving.reserve()]
    world.network.servers["elsewhere", 6379] = RedisModel(world.loop, Random(1))
    for process in (moving, late):
        process.pipeline = pipeline_to("redis://elsewhere:6379")
        await process.pipeline.start()
        process.configure(concurrent_requests=2)
    assert await late.ask() == REFUSED
    held.pop().release()
    await asyncio.sleep(0.1)
    assert [await late.ask() for _ in range(2)] == [None, REFUSED]
