"""How workers wait for each other's slots. Both are in this process, where locks do not conflict, but contents do."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from router.core.resilience.readiness import Readiness
from router.flow.attempts.admission import Admission, Slot
from router.settings import parse
from router.shared.engines.announcements import AnnouncedEngine
from router.upstream.catalog import Catalog, Model
from router.upstream.configured_catalog import build_catalog
from router.upstream.engine import UNBOUNDED_IN_FLIGHT, Engine
from router.upstream.engine_config import EngineConfig
from router.upstream.shared_slots import SharedSlots, WorkerPlace, create_directory, release_worker
from router.upstream.slot_file import SlotFile
from tests.support.waiting import TEST_TIMEOUT, eventually

ANNOUNCED = AnnouncedEngine(
    name="a", model="m", task="any", url="http://127.0.0.1:1", served_model="m", restarts={}, capacity=1
)  # fmt: skip


class Worker:
    """The slots and the queue of one worker; `start` makes it react to the others."""

    def __init__(self, place: WorkerPlace, limit: int | None) -> None:
        self.slots = SharedSlots(place)
        self.engine = Engine(
            EngineConfig(
                name="a", model="m", task="any", url="http://127.0.0.1:1", served_model="m", max_in_flight=limit
            ),
            slots=self.slots,
        )
        self.readiness = Readiness.READY
        self.queued = 0
        self.admission = Admission(
            Catalog([Model("m", "")], [self.engine]),
            readiness=lambda _: self.readiness,
            queue_timeout=30.0,
            set_queue_length=self._set_queued,
        )

    def _set_queued(self, _: str, queued: int) -> None:
        self.queued = queued

    def ask(self) -> "asyncio.Task[Slot | None]":
        async def enter() -> Slot | None:
            slot = self.admission.try_acquire("t", [self.engine])
            return slot if slot is not None else await self.admission.acquire("t", [self.engine])

        return asyncio.ensure_future(enter())

    async def has(self) -> Slot:
        slot = await asyncio.wait_for(self.ask(), TEST_TIMEOUT)
        assert slot is not None
        return slot


class Pair(list[Worker]):
    def __init__(self, directory: Path, limit: int | None) -> None:
        create_directory(directory, 2)
        super().__init__(Worker(WorkerPlace(directory, number, 2), limit) for number in range(2))

    def start(self) -> None:
        for worker in self:
            worker.slots.start()


MakePair = Callable[[int | None], Pair]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "slots"


@pytest.fixture
async def make_pair(directory: Path) -> AsyncIterator[MakePair]:
    made: list[Worker] = []

    def make(limit: int | None) -> Pair:
        pair = Pair(directory, limit)
        made.extend(pair)
        return pair

    yield make
    for worker in made:
        worker.slots.stop()
        worker.slots.close()


async def until_queued(worker: Worker, number: int) -> None:
    await eventually(lambda: worker.queued == number)


async def test_a_request_gets_the_slot_that_another_worker_frees(make_pair: MakePair) -> None:
    one, other = pair = make_pair(1)
    pair.start()
    held = await one.has()
    waiting = other.ask()
    await until_queued(other, 1)
    held.release()
    slot = await asyncio.wait_for(waiting, TEST_TIMEOUT)
    assert slot is not None
    slot.release()
    assert one.engine.load == other.engine.load == 0


async def test_a_freed_slot_goes_to_the_worker_whose_last_one_is_older_and_not_to_the_one_that_frees_it(
    make_pair: MakePair,
) -> None:
    one, other = pair = make_pair(1)
    pair.start()
    held = await one.has()
    own, foreign = one.ask(), other.ask()
    await until_queued(one, 1)
    await until_queued(other, 1)
    held.release()
    slot = await asyncio.wait_for(foreign, TEST_TIMEOUT)
    assert not own.done()
    assert slot is not None
    slot.release()
    assert await asyncio.wait_for(own, TEST_TIMEOUT) is not None


async def test_a_worker_that_does_not_react_delays_the_others_but_does_not_stop_them(make_pair: MakePair) -> None:
    one, frozen = make_pair(1)
    one.slots.start()
    held = await one.has()
    own, foreign = one.ask(), frozen.ask()
    await until_queued(one, 1)
    await until_queued(frozen, 1)
    held.release()
    assert await asyncio.wait_for(own, TEST_TIMEOUT) is not None
    foreign.cancel()


async def test_a_worker_that_has_no_use_for_a_slot_any_more_leaves_it_to_the_others(make_pair: MakePair) -> None:
    one, other = pair = make_pair(1)
    pair.start()
    held = await one.has()
    own, foreign = one.ask(), other.ask()
    await until_queued(one, 1)
    await until_queued(other, 1)
    foreign.cancel()
    held.release()
    assert await asyncio.wait_for(own, TEST_TIMEOUT) is not None


async def test_workers_that_wait_for_an_engine_that_takes_no_requests_do_not_wake_each_other_for_ever(
    make_pair: MakePair,
) -> None:
    one, other = pair = make_pair(1)
    pair.start()
    held = await one.has()
    waiting = [one.ask(), other.ask()]
    await until_queued(one, 1)
    await until_queued(other, 1)
    for worker in pair:
        worker.readiness = Readiness.PROBING
    woken = 0
    offer = other.slots._offer_slots

    def count() -> None:
        nonlocal woken
        woken += 1
        offer()

    other.slots._offer_slots = count  # type: ignore[method-assign]
    held.release()
    for _ in range(200):
        await asyncio.sleep(0)
    assert woken <= 2
    for request in waiting:
        request.cancel()


async def test_requests_that_were_sent_before_there_was_a_limit_count_when_the_engine_is_throttled(
    make_pair: MakePair,
    directory: Path,
) -> None:
    one, other = make_pair(None)
    held = [await one.has() for _ in range(3)]
    for worker in (one, other):
        worker.engine.set_announced(replace(ANNOUNCED, capacity=3 / UNBOUNDED_IN_FLIGHT))
    assert (one.engine.max_in_flight, other.engine.load) == (3, 3)
    assert other.admission.try_acquire("t", [other.engine]) is None
    held.pop().release()
    assert other.admission.try_acquire("t", [other.engine]) is not None
    for worker in (one, other):
        worker.engine.set_announced(ANNOUNCED)
    assert (one.engine.max_in_flight, one.engine.load, other.engine.load) == (None, 2, 1)
    assert not list(directory.glob("slots-*")), "without a limit, nothing is shared"


async def test_an_engine_is_throttled_although_the_disk_has_no_room_for_its_slots(
    make_pair: MakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    (worker, _) = make_pair(None)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("router.upstream.shared_slots.SlotFile", fail)
    catalog, throttled = (
        Catalog([Model("m", "")], [worker.engine]),
        replace(ANNOUNCED, capacity=1 / UNBOUNDED_IN_FLIGHT),
    )
    assert not catalog.set_announced({"a": throttled})
    held = await worker.has()
    assert worker.admission.try_acquire("t", [worker.engine]) is None
    shared_before = worker.engine.shares_with_workers
    monkeypatch.undo()
    assert catalog.set_announced({"a": throttled}), "there is room again"
    assert (shared_before, worker.engine.shares_with_workers) == (False, True)
    held.release()


async def test_the_slots_of_a_configuration_that_cannot_be_built_are_closed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = parse("""
        [[model]]
        name = "m"
        [[engine]]
        name = "a"
        model = "m"
        urls = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
        max_in_flight = 1
    """, {})  # fmt: skip
    create_directory(directory, 1)
    slots = SharedSlots(WorkerPlace(directory, 0, 1))
    opened: list[Path] = []

    def open_one(*place: Any) -> SlotFile:
        if opened:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        opened.append(place[0])
        return SlotFile(*place)

    monkeypatch.setattr("router.upstream.shared_slots.SlotFile", open_one)
    with pytest.raises(OSError, match="space"):
        build_catalog(settings, slots=slots)
    assert opened
    assert not list(directory.glob("slots-*"))
    slots.close()


async def test_the_newest_configuration_sets_the_limit_for_requests_of_earlier_ones(make_pair: MakePair) -> None:
    (worker, _) = make_pair(2)
    assert worker.admission.try_acquire("t", [worker.engine]) is not None
    newer = Engine(
        EngineConfig(name="a", model="m", task="any", url="http://127.0.0.1:1", served_model="m", max_in_flight=1),
        slots=worker.slots,
    )
    assert not newer.take_slot()
    assert worker.admission.try_acquire("t", [worker.engine]) is None
    newer.close()
    assert worker.admission.try_acquire("t", [worker.engine]) is not None


async def test_the_supervisor_wakes_the_workers_that_wait_when_one_has_ended(
    make_pair: MakePair, directory: Path
) -> None:
    one, other = make_pair(1)
    one.slots.start()
    await other.has()
    waiting = one.ask()
    await until_queued(one, 1)
    other.slots.close()  # it frees what it holds, but wakes nobody
    assert not waiting.done()
    release_worker(WorkerPlace(directory, 1, 2))
    assert await asyncio.wait_for(waiting, TEST_TIMEOUT) is not None
