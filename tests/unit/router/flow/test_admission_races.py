"""Slots of engines under concurrency: none is lost, none is given twice."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from router.core.resilience.breaker import BreakerState
from router.core.resilience.readiness import Readiness, engine_readiness
from router.flow.admission import Admission, NoSlotError, Slot
from router.upstream.catalog import Catalog, Engine, Model


def engine(name: str, places: int | None = 1, model: str = "m") -> Engine:
    return Engine(
        name=name, model=model, task="any", url="http://127.0.0.1:1", served_model="m", max_in_flight=places
    )  # fmt: skip


class House:
    """Engines of one model, and the requests that want a slot."""

    def __init__(self, *engines: Engine, patience: float = 30.0) -> None:
        self.engines = engines
        self.waiting = 0
        self.breakers: dict[str, BreakerState] = {}
        self.admission = Admission(
            Catalog([Model("m", "")], engines),
            readiness=self._readiness,
            queue_timeout=patience,
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

    async def turn(self) -> None:
        """Runs the event loop until nobody can continue."""
        for _ in range(5):
            await asyncio.sleep(0)


async def test_who_is_cancelled_in_the_moment_of_its_turn_passes_the_place_on() -> None:
    house = House(engine("a"))
    held = await house.ask()
    first, second = house.ask(), house.ask()
    await house.turn()
    held.release()
    first.cancel()
    await house.turn()
    assert first.cancelled()
    assert house.engines[0].in_flight == 1
    (await second).release()
    assert (house.engines[0].in_flight, house.waiting) == (0, 0)


async def test_who_is_too_late_in_the_moment_of_its_turn_has_the_place_or_not_and_none_is_lost() -> None:
    house = House(engine("a"), patience=0.02)
    held = await house.ask()
    waiting = [house.ask() for _ in range(3)]
    await house.turn()
    asyncio.get_running_loop().call_later(0.02, held.release)
    for ended in await asyncio.gather(*waiting, return_exceptions=True):
        if isinstance(ended, Slot):
            ended.release()
        else:
            assert isinstance(ended, NoSlotError)
            assert ended.code == "queue_timeout"
    held.release()  # again, in case all three timed out before the timer fired
    assert (house.engines[0].in_flight, house.waiting) == (0, 0)
    (await house.ask()).release()


async def test_closing_a_place_twice_gives_it_back_once() -> None:
    house = House(engine("a"))
    one = await house.ask()
    one.release()
    another = await house.ask()
    one.release()
    assert house.engines[0].in_flight == 1
    another.release()


async def test_who_waits_for_an_engine_that_comes_back_begins_when_it_has() -> None:
    a, b = engine("a"), engine("b")
    house = House(a, b)
    b.update_status(up=False)
    held = await house.ask()
    assert held.engine is a
    waiting = house.ask()
    await house.turn()
    house.admission.recheck()
    assert not waiting.done(), "an engine that is down has no room"
    b.update_status(up=True)
    house.admission.recheck()
    assert (await waiting).engine is b
    held.release()


async def test_a_newcomer_does_not_get_ahead_of_who_waits_for_an_engine_that_came_back() -> None:
    a, b = engine("a"), engine("b")
    house = House(a, b)
    b.update_status(up=False)
    held = await house.ask()
    first = house.ask()
    await house.turn()
    b.update_status(up=True)
    second = house.ask()
    assert (await first).engine is b
    assert not second.done()
    held.release()
    assert (await second).engine is a


async def test_who_waits_in_another_configurations_admission_is_told_of_a_place_too() -> None:
    a = engine("a")
    before = House(a)
    held = await before.ask()
    after = House(a)
    waiting = after.ask()
    await after.turn()
    assert not waiting.done()
    held.release()
    (await waiting).release()
    assert (a.in_flight, after.waiting) == (0, 0)


async def test_where_all_engines_are_down_they_are_asked_nevertheless() -> None:
    a = engine("a")
    a.update_status(up=False)
    assert (await House(a).ask()).engine is a


async def test_a_request_that_waits_for_an_engine_that_went_down_is_sent_as_a_new_one_would_be() -> None:
    a = engine("a")
    house = House(a)
    held = await house.ask()
    waiting = house.wait()
    await house.turn()
    a.update_status(up=False)
    held.release()
    await house.turn()
    assert waiting.done(), "a new request would be tried at this engine"
    assert await waiting is not None
    assert a.in_flight == 1


async def test_a_request_does_not_leave_for_an_engine_that_is_down_while_a_better_one_is_only_busy() -> None:
    a, b = engine("a"), engine("b")
    house = House(a, b)
    held = {slot.engine.name: slot for slot in [await house.ask(), await house.ask()]}
    waiting = house.wait()
    await house.turn()
    b.update_status(up=False)
    held["b"].release()
    await house.turn()
    assert not waiting.done()
    a.update_status(up=False)
    house.admission.recheck()
    slot = await waiting
    assert slot is not None
    assert slot.engine is b, "now none is better"


@pytest.mark.parametrize("how", ["drained", "open"])
async def test_a_request_leaves_the_queue_when_all_its_engines_are_blocked_though_none_has_room(how: str) -> None:
    a, b, c = engine("a"), engine("b"), engine("c")
    house = House(a, b, c)
    for _ in range(3):
        await house.ask()
    waiting, elsewhere = house.wait(a, b), house.wait(b, c)
    await house.turn()
    for blocked in (a, b):
        assert not waiting.done()
        if how == "drained":
            blocked.drained = True
        else:
            house.breakers[blocked.name] = BreakerState.OPEN
        house.admission.recheck()
        await house.turn()
    assert waiting.done()
    assert await waiting is None
    assert not elsewhere.done(), "one of its engines may still get a slot"
    assert house.waiting == 1
    elsewhere.cancel()


async def test_a_request_whose_engines_are_all_blocked_is_not_queued() -> None:
    a = engine("a")
    house = House(a)
    held = await house.ask()
    a.drained = True
    assert await house.wait() is None
    held.release()


async def test_requests_wait_for_what_the_one_request_of_a_half_open_engine_shows() -> None:
    a = engine("a")
    house = House(a)
    held = await house.ask()
    first, second = house.wait(), house.wait()
    await house.turn()
    house.breakers["a"] = BreakerState.HALF_OPEN
    house.admission.recheck()
    await house.turn()
    assert not first.done()
    held.release()
    assert await first is not None
    house.breakers["a"] = BreakerState.OPEN
    house.admission.recheck()
    assert await second is None


async def test_who_is_cancelled_in_the_moment_in_which_it_leaves_the_queue_holds_nothing() -> None:
    a = engine("a")
    house = House(a)
    held = await house.ask()
    waiting = house.wait()
    await house.turn()
    a.drained = True
    house.admission.recheck()
    waiting.cancel()
    await house.turn()
    assert waiting.cancelled()
    held.release()
    assert (a.in_flight, house.waiting) == (0, 0)


async def test_who_has_failed_at_an_engine_waits_for_the_others_alone() -> None:
    a, b = engine("a"), engine("b")
    house = House(a, b)
    held = {place.engine.name: place for place in [await house.ask(), await house.ask()]}
    waiting = house.ask("t", b)
    after = house.ask()
    await house.turn()
    held["a"].release()
    assert (await after).engine is a
    held["b"].release()
    assert (await waiting).engine is b


async def test_an_engine_without_a_bound_lets_everybody_begin() -> None:
    house = House(engine("a", None))
    places = await asyncio.gather(*(house.ask() for _ in range(500)))
    assert house.engines[0].in_flight == 500
    for place in places:
        place.release()
    assert house.engines[0].in_flight == 0


@pytest.mark.parametrize("seed", range(8))
async def test_however_they_come_and_go_the_bounds_hold_and_everything_is_given_back(seed: int) -> None:
    dice = random.Random(seed)
    house = House(engine("a", 2), engine("b", 3), patience=0.05)
    most = [0, 0]

    async def work(tenant: str) -> None:
        place = await house.enter(tenant, dice.sample(house.engines, dice.randint(1, 2)))
        try:
            most[:] = [max(seen, engine.in_flight) for seen, engine in zip(most, house.engines, strict=True)]
            for _ in range(dice.randint(0, 4)):
                await asyncio.sleep(0)
            if dice.random() < 0.01:
                await asyncio.sleep(0.06)
        finally:
            place.release()

    tasks = []
    for _ in range(400):
        tasks.append(asyncio.ensure_future(work(dice.choice("aaaaabc"))))
        if dice.random() < 0.6:
            await asyncio.sleep(0)
        if dice.random() < 0.2:
            dice.choice(tasks).cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert most == [2, 3]
    assert [engine.in_flight for engine in house.engines] == [0, 0]
    assert house.waiting == 0
    assert {type(error) for error in ended if error is not None} <= {NoSlotError, asyncio.CancelledError}
    assert ended.count(None) > 100
