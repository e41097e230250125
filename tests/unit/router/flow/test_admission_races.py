"""Slots of engines under concurrency: none is lost, none is assigned twice."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from router.core.resilience.breaker import BreakerState
from router.core.resilience.readiness import Readiness, engine_readiness
from router.flow.attempts.admission import Admission, NoSlotError, Slot
from router.upstream.catalog import Catalog, Model
from router.upstream.engine import Engine
from router.upstream.engine_config import EngineConfig
from tests.support.virtual_time import run_on_virtual_time
from tests.support.waiting import TEST_TIMEOUT


def engine(name: str, places: int | None = 1, model: str = "m") -> Engine:
    return Engine(
        EngineConfig(
            name=name, model=model, task="any", url="http://127.0.0.1:1", served_model="m", max_in_flight=places
        )
    )


class AdmissionHarness:
    """Engines of one model, and the requests that want a slot."""

    def __init__(self, *engines: Engine, timeout: float = 30.0) -> None:
        self.engines = engines
        self.waiting = 0
        self.breakers: dict[str, BreakerState] = {}
        self.admission = Admission(
            Catalog([Model("m", "")], engines),
            readiness=self._readiness,
            queue_timeout=timeout,
            set_queue_length=self._queued,
        )

    def _queued(self, _: str, waiting: int) -> None:
        self.waiting = waiting

    def _readiness(self, engine: Engine) -> Readiness:
        breaker = self.breakers.get(engine.name, BreakerState.CLOSED)
        return engine_readiness(up=engine.up, drained=engine.drained, breaker=breaker, in_flight=engine.in_flight)

    async def enter(self, tenant: str, engines: Sequence[Engine]) -> Slot:
        slot = await self.enter_or_not(tenant, engines)
        assert slot is not None
        return slot

    async def enter_or_not(self, tenant: str, engines: Sequence[Engine]) -> Slot | None:
        return self.admission.try_acquire(tenant, engines) or await self.admission.acquire(tenant, engines)

    def wait(self, *engines: Engine) -> "asyncio.Task[Slot | None]":
        """As `ask`, for a request that may leave the queue without a slot."""
        return asyncio.ensure_future(self.enter_or_not("t", engines or self.engines))

    def ask(self, tenant: str = "t", *engines: Engine) -> "asyncio.Task[Slot]":
        return asyncio.ensure_future(self.enter(tenant, engines or self.engines))

    async def run_loop(self) -> None:
        """Runs the event loop until no task can continue."""
        for _ in range(5):
            await asyncio.sleep(0)


async def test_a_request_cancelled_at_the_moment_of_its_turn_passes_the_slot_on() -> None:
    harness = AdmissionHarness(engine("a"))
    held = await harness.ask()
    first, second = harness.ask(), harness.ask()
    await harness.run_loop()
    held.release()
    first.cancel()
    await harness.run_loop()
    assert first.cancelled()
    assert harness.engines[0].in_flight == 1
    (await second).release()
    assert (harness.engines[0].in_flight, harness.waiting) == (0, 0)


@pytest.mark.parametrize("seed", range(8))
def test_a_request_that_times_out_at_the_moment_of_its_turn_has_the_slot_or_not_and_none_is_lost(seed: int) -> None:
    run_on_virtual_time(_time_out_at_the_turn(), seed)


async def _time_out_at_the_turn() -> None:
    harness = AdmissionHarness(engine("a"), timeout=0.02)
    held = await harness.ask()
    # In any order: the timeouts of the three, and the release.
    waiting = [harness.ask() for _ in range(3)]
    await harness.run_loop()
    asyncio.get_running_loop().call_later(0.02, held.release)
    for ended in await asyncio.gather(*waiting, return_exceptions=True):
        if isinstance(ended, Slot):
            ended.release()
        else:
            assert isinstance(ended, NoSlotError)
            assert ended.code == "queue_timeout"
    await asyncio.sleep(0.02)  # the release may be last
    assert (harness.engines[0].in_flight, harness.waiting) == (0, 0)
    (await harness.ask()).release()


async def test_releasing_a_slot_twice_releases_it_once() -> None:
    harness = AdmissionHarness(engine("a"))
    one = await harness.ask()
    one.release()
    another = await harness.ask()
    one.release()
    assert harness.engines[0].in_flight == 1
    another.release()


async def test_a_request_that_waits_for_a_recovering_engine_starts_when_it_is_back() -> None:
    a, b = engine("a"), engine("b")
    harness = AdmissionHarness(a, b)
    b.update_status(up=False)
    held = await harness.ask()
    assert held.engine is a
    waiting = harness.ask()
    await harness.run_loop()
    harness.admission.recheck()
    assert not waiting.done(), "an engine that is down has no room"
    b.update_status(up=True)
    harness.admission.recheck()
    assert (await waiting).engine is b
    held.release()


async def test_a_newcomer_does_not_overtake_a_request_that_waits_for_a_recovered_engine() -> None:
    a, b = engine("a"), engine("b")
    harness = AdmissionHarness(a, b)
    b.update_status(up=False)
    held = await harness.ask()
    first = harness.ask()
    await harness.run_loop()
    b.update_status(up=True)
    second = harness.ask()
    assert (await first).engine is b
    assert not second.done()
    held.release()
    assert (await second).engine is a


async def test_a_request_in_the_admission_of_another_configuration_is_notified_of_a_free_slot_too() -> None:
    a = engine("a")
    before = AdmissionHarness(a)
    held = await before.ask()
    after = AdmissionHarness(a)
    waiting = after.ask()
    await after.run_loop()
    assert not waiting.done()
    held.release()
    (await waiting).release()
    assert (a.in_flight, after.waiting) == (0, 0)


async def test_a_request_between_two_changes_of_the_configuration_is_notified_of_a_free_slot_too() -> None:
    a = engine("a")
    first = AdmissionHarness(a)
    held = await first.ask()
    second = AdmissionHarness(a)
    waiting = second.ask()
    await second.run_loop()
    third = AdmissionHarness(a)
    held.release()
    (await asyncio.wait_for(waiting, TEST_TIMEOUT)).release()
    for harness in (first, second, third):
        harness.admission.close()
    assert (a.in_flight, a.on_slot_freed) == (0, ())


async def test_where_all_engines_are_down_they_are_tried_nevertheless() -> None:
    a = engine("a")
    a.update_status(up=False)
    assert (await AdmissionHarness(a).ask()).engine is a


async def test_a_request_that_waits_for_an_engine_that_went_down_is_sent_as_a_new_one_would_be() -> None:
    a = engine("a")
    harness = AdmissionHarness(a)
    held = await harness.ask()
    waiting = harness.wait()
    await harness.run_loop()
    a.update_status(up=False)
    held.release()
    await harness.run_loop()
    assert waiting.done(), "a new request would be tried at this engine"
    assert await waiting is not None
    assert a.in_flight == 1


async def test_a_request_does_not_leave_for_an_engine_that_is_down_while_a_better_one_is_only_busy() -> None:
    a, b = engine("a"), engine("b")
    harness = AdmissionHarness(a, b)
    held = {slot.engine.name: slot for slot in [await harness.ask(), await harness.ask()]}
    waiting = harness.wait()
    await harness.run_loop()
    b.update_status(up=False)
    held["b"].release()
    await harness.run_loop()
    assert not waiting.done()
    a.update_status(up=False)
    harness.admission.recheck()
    slot = await waiting
    assert slot is not None
    assert slot.engine is b, "now none is better"


@pytest.mark.parametrize("how", ["drained", "open"])
async def test_a_request_leaves_the_queue_when_all_its_engines_are_blocked_though_none_has_room(how: str) -> None:
    a, b, c = engine("a"), engine("b"), engine("c")
    harness = AdmissionHarness(a, b, c)
    for _ in range(3):
        await harness.ask()
    waiting, elsewhere = harness.wait(a, b), harness.wait(b, c)
    await harness.run_loop()
    for blocked in (a, b):
        assert not waiting.done()
        if how == "drained":
            blocked.drained = True
        else:
            harness.breakers[blocked.name] = BreakerState.OPEN
        harness.admission.recheck()
        await harness.run_loop()
    assert waiting.done()
    assert await waiting is None
    assert not elsewhere.done(), "one of its engines may still get a slot"
    assert harness.waiting == 1
    elsewhere.cancel()


async def test_a_request_queued_between_two_times_at_which_its_engine_is_blocked_leaves_at_the_second() -> None:
    a, b = engine("a"), engine("b")
    harness = AdmissionHarness(a, b)
    for _ in range(2):
        await harness.ask()
    a.drained = True
    harness.admission.recheck()
    a.drained = False  # nothing calls `recheck` for it
    waiting = harness.wait(a)
    await harness.run_loop()
    a.drained = True
    harness.admission.recheck()
    assert await waiting is None


async def test_a_request_whose_engines_are_all_blocked_is_not_queued() -> None:
    a = engine("a")
    harness = AdmissionHarness(a)
    held = await harness.ask()
    a.drained = True
    assert await harness.wait() is None
    held.release()


async def test_requests_wait_for_what_the_one_request_of_a_half_open_engine_shows() -> None:
    a = engine("a")
    harness = AdmissionHarness(a)
    held = await harness.ask()
    first, second = harness.wait(), harness.wait()
    await harness.run_loop()
    harness.breakers["a"] = BreakerState.HALF_OPEN
    harness.admission.recheck()
    await harness.run_loop()
    assert not first.done()
    held.release()
    assert await first is not None
    harness.breakers["a"] = BreakerState.OPEN
    harness.admission.recheck()
    assert await second is None


async def test_a_request_that_is_cancelled_as_it_leaves_the_queue_holds_nothing() -> None:
    a = engine("a")
    harness = AdmissionHarness(a)
    held = await harness.ask()
    waiting = harness.wait()
    await harness.run_loop()
    a.drained = True
    harness.admission.recheck()
    waiting.cancel()
    await harness.run_loop()
    assert waiting.cancelled()
    held.release()
    assert (a.in_flight, harness.waiting) == (0, 0)


async def test_a_request_that_failed_at_an_engine_waits_only_for_the_others() -> None:
    a, b = engine("a"), engine("b")
    harness = AdmissionHarness(a, b)
    held = {place.engine.name: place for place in [await harness.ask(), await harness.ask()]}
    waiting = harness.ask("t", b)
    after = harness.ask()
    await harness.run_loop()
    held["a"].release()
    assert (await after).engine is a
    held["b"].release()
    assert (await waiting).engine is b


async def test_an_engine_without_a_limit_admits_every_request() -> None:
    harness = AdmissionHarness(engine("a", None))
    places = await asyncio.gather(*(harness.ask() for _ in range(500)))
    assert harness.engines[0].in_flight == 500
    for place in places:
        place.release()
    assert harness.engines[0].in_flight == 0


@pytest.mark.parametrize("seed", range(8))
def test_in_any_sequence_the_limits_hold_and_every_slot_is_released(seed: int) -> None:
    run_on_virtual_time(_any_sequence(random.Random(seed)), seed)


async def _any_sequence(rng: random.Random) -> None:
    harness = AdmissionHarness(engine("a", 2), engine("b", 3), timeout=0.05)
    most = [0, 0]

    async def work(tenant: str) -> None:
        place = await harness.enter(tenant, rng.sample(harness.engines, rng.randint(1, 2)))
        try:
            most[:] = [max(seen, engine.in_flight) for seen, engine in zip(most, harness.engines, strict=True)]
            for _ in range(rng.randint(0, 4)):
                await asyncio.sleep(0)
            if rng.random() < 0.2:
                await asyncio.sleep(rng.choice([0.01, 0.05, 0.1]))
        finally:
            place.release()
            if rng.random() < 0.2:
                cancel_one()  # perhaps the one that has just got the slot

    def cancel_one() -> None:
        if running := [task for task in tasks if not task.done()]:
            rng.choice(running).cancel()

    tasks: list[asyncio.Task[None]] = []
    for _ in range(400):
        tasks.append(asyncio.ensure_future(work(rng.choice("aaaaabc"))))
        if rng.random() < 0.6:
            await asyncio.sleep(rng.choice([0, 0.001]))
        if rng.random() < 0.1:
            cancel_one()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert most == [2, 3]
    assert [engine.in_flight for engine in harness.engines] == [0, 0]
    assert harness.waiting == 0
    assert {type(error) for error in ended if error is not None} <= {NoSlotError, asyncio.CancelledError}
    assert "queue_timeout" in {error.code for error in ended if isinstance(error, NoSlotError)}
    assert ended.count(None) > 50


def test_a_closed_admission_leaves_no_trace_at_the_engines_that_it_took_over() -> None:
    later, earlier = engine("later"), AdmissionHarness(engine("a"))
    earlier.admission.adopt([later])
    assert later.on_slot_freed
    earlier.admission.close()
    assert later.on_slot_freed == ()
