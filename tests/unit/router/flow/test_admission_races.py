"""Slots of engines under concurrency: none is lost, none is given twice."""

import asyncio
import random
from collections.abc import Sequence

import pytest

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
        self.admission = Admission(
            Catalog([Model("m", "")], engines),
            accepts_requests=lambda engine: engine.up is not False,
            queue_timeout=patience,
            set_queue_length=self._queued,
        )

    def _queued(self, _: str, waiting: int) -> None:
        self.waiting = waiting

    async def enter(self, tenant: str, engines: Sequence[Engine]) -> Slot:
        return self.admission.try_acquire(tenant, engines) or await self.admission.acquire(tenant, engines)

    def ask(self, tenant: str = "t", *engines: Engine) -> "asyncio.Task[Slot]":
        return asyncio.ensure_future(self.enter(tenant, engines or self.engines))

    async def turn(self) -> None:
        """Runs the event loop until nobody can continue."""
        for _ in range(5):
            await asyncio.sleep(0)


async def test_a_request_cancelled_at_the_moment_of_its_turn_passes_the_slot_on() -> None:
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


async def test_a_request_that_times_out_at_the_moment_of_its_turn_has_the_slot_or_not_and_none_is_lost() -> None:
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


async def test_releasing_a_slot_twice_releases_it_once() -> None:
    house = House(engine("a"))
    one = await house.ask()
    one.release()
    another = await house.ask()
    one.release()
    assert house.engines[0].in_flight == 1
    another.release()


async def test_a_request_that_waits_for_a_recovering_engine_starts_when_it_is_back() -> None:
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


async def test_a_newcomer_does_not_overtake_a_request_that_waits_for_a_recovered_engine() -> None:
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


async def test_a_request_in_the_admission_of_another_configuration_is_notified_of_a_free_slot_too() -> None:
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


async def test_where_all_engines_are_down_they_are_tried_nevertheless() -> None:
    a = engine("a")
    a.update_status(up=False)
    assert (await House(a).ask()).engine is a


async def test_a_request_that_failed_at_an_engine_waits_only_for_the_others() -> None:
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


async def test_an_engine_without_a_limit_admits_every_request() -> None:
    house = House(engine("a", None))
    places = await asyncio.gather(*(house.ask() for _ in range(500)))
    assert house.engines[0].in_flight == 500
    for place in places:
        place.release()
    assert house.engines[0].in_flight == 0


@pytest.mark.parametrize("seed", range(8))
async def test_in_any_sequence_the_limits_hold_and_every_slot_is_released(seed: int) -> None:
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
