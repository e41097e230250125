"""The slots that the configurations of one process share: of a router with one process, and of a worker."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.core.resilience.readiness import Readiness
from router.flow.attempts.admission import Admission, Slot
from router.upstream.catalog import Catalog, Model
from router.upstream.engine import Engine
from router.upstream.engine_config import EngineConfig
from router.upstream.process_slots import ProcessSlots
from router.upstream.shared_slots import SharedSlots, WorkerPlace, create_directory
from tests.support.waiting import TEST_TIMEOUT

Slots = ProcessSlots | SharedSlots


@pytest.fixture(params=["process", "worker"])
def slots(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Slots]:
    if request.param == "process":
        yield ProcessSlots()
        return
    create_directory(tmp_path / "slots", 1)
    shared = SharedSlots(WorkerPlace(tmp_path / "slots", 0, 1))
    yield shared
    shared.close()


class Configuration:
    """An engine as one configuration knows it, and the requests that want a slot of it."""

    def __init__(self, slots: Slots, limit: int) -> None:
        self.engine = Engine(
            EngineConfig(
                name="a", model="m", task="any", url="http://127.0.0.1:1", served_model="m", max_in_flight=limit
            ),
            slots=slots,
        )
        self.admission = Admission(
            Catalog([Model("m", "")], [self.engine]),
            readiness=lambda _: Readiness.READY,
            queue_timeout=30.0,
            set_queue_length=lambda model, queued: None,
        )

    def take(self) -> Slot | None:
        return self.admission.try_acquire("t", [self.engine])

    def wait(self) -> "asyncio.Task[Slot | None]":
        return asyncio.ensure_future(self.admission.acquire("t", [self.engine]))


async def test_requests_of_all_configurations_count_for_the_limit_of_the_newest(slots: Slots) -> None:
    old = Configuration(slots, 3)
    held = [old.take(), old.take()]
    new = Configuration(slots, 2)
    assert new.take() is None
    assert old.take() is None
    assert new.engine.load == 2
    assert held[0] is not None
    held[0].release()
    assert new.take() is not None
    new.admission.close()
    assert old.take() is not None
    assert old.engine.load == 2


async def test_a_slot_that_the_newer_configuration_frees_goes_to_a_request_that_waits_in_the_older(
    slots: Slots,
) -> None:
    old, new = Configuration(slots, 1), Configuration(slots, 1)
    held = new.take()
    assert held is not None
    later, earlier = new.wait(), old.wait()
    await asyncio.sleep(0)
    held.release()
    slot = await asyncio.wait_for(earlier, TEST_TIMEOUT)
    assert not later.done()
    assert slot is not None
    slot.release()
    assert await asyncio.wait_for(later, TEST_TIMEOUT) is not None
