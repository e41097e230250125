"""When a line of a batch may begin: while nobody waits, and an engine is far from full."""

import asyncio
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from router.core.resilience.readiness import Readiness
from router.errors import unknown_model
from router.flow.batches.begun_lines import BegunLine, BegunLines
from router.flow.batches.spare_capacity import SpareCapacity
from router.upstream.engine_gauges import EngineGauges
from tests.support.virtual_time import on_virtual_time


class Engine:
    def __init__(
        self, spare_slots: float = inf, *, up: bool | None = True, state: Readiness = Readiness.READY, **gauges: Any
    ):
        self.spare_slots = spare_slots
        self.up = up
        self.state = state
        self.gauges = EngineGauges(**gauges)


class Catalog:
    """The model `m`, and `other`, whose engines are full."""

    def __init__(self, engines: list[Engine], wake: float | None = None) -> None:
        self.models = [
            SimpleNamespace(configured_name="m", wake=wake),
            SimpleNamespace(configured_name="other", wake=None),
        ]
        self._engines = {"m": engines, "other": [Engine(0)]}

    def requested_name(self, name: str) -> str:
        return name or "m"

    def resolve(self, name: str, _: None) -> Any:
        for model in self.models:
            if model.configured_name == name:
                return model
        raise unknown_model(name)

    def engines_for(self, name: str) -> list[Engine]:
        return self._engines[name]


def capacity(
    *engines: Engine, waiting: int = 0, wake: float | None = None, max_in_flight: int = 2, is_open: bool = True
) -> SpareCapacity:
    catalog: Any = Catalog(list(engines), wake)
    admission: Any = SimpleNamespace(waiting=lambda _: waiting)
    readiness: Any = lambda engine: engine.state  # noqa: E731
    return SpareCapacity(
        catalog, admission, readiness, begun=BegunLines(), max_in_flight=max_in_flight, max_kv_usage=0.7,
        is_open=lambda: is_open,
    )  # fmt: skip


def test_a_line_begins_where_an_engine_has_room() -> None:
    assert capacity(Engine()).has_room("m")
    assert capacity(Engine(0), Engine(1)).has_room("m")
    assert capacity(Engine()).has_room("")
    assert capacity(Engine()).has_room("auto")
    assert capacity(Engine(kv_cache_usage=0.7)).has_room("m")


@pytest.mark.parametrize(
    "engine",
    [
        Engine(0),
        Engine(-3),
        Engine(up=None),
        Engine(kv_cache_usage=0.71),
        Engine(waiting=1.0),
        Engine(state=Readiness.DOWN, up=False),
        Engine(state=Readiness.BLOCKED),
        Engine(state=Readiness.PROBING),
    ],
)
def test_no_line_begins_at_an_engine_that_is_busy_or_down(engine: Engine) -> None:
    assert not capacity(engine).has_room("m")
    assert not capacity(engine).has_room("auto")
    assert not capacity().has_room("m")


def test_no_line_begins_while_requests_wait() -> None:
    assert not capacity(Engine(), waiting=1).has_room("m")
    assert not capacity(Engine(), waiting=1).has_room("auto")


def test_no_line_begins_outside_of_the_hours_of_batches() -> None:
    assert not capacity(Engine(), is_open=False).has_room("m")
    assert not capacity(Engine(), is_open=False).has_room("unknown")


def test_a_line_may_start_an_engine() -> None:
    down = Engine(state=Readiness.DOWN, up=False)
    assert capacity(down, wake=60.0).has_room("m")
    assert not capacity(down, Engine(0), wake=60.0).has_room("m"), "one is up, and busy"


def test_a_line_that_is_refused_needs_no_engine() -> None:
    assert capacity(Engine(0)).has_room("unknown")


@on_virtual_time
async def test_no_more_lines_run_than_may() -> None:
    spare = capacity(Engine())
    running = most = 0

    async def line() -> None:
        nonlocal running, most
        async with spare.one_more("m"):
            running += 1
            most = max(most, running)
            await asyncio.sleep(1)
            running -= 1

    began = asyncio.get_running_loop().time()
    await asyncio.gather(*[line() for _ in range(6)])
    assert most == 2
    assert asyncio.get_running_loop().time() - began == pytest.approx(3, abs=0.01)


@on_virtual_time
async def test_a_line_begins_soon_after_there_is_room() -> None:
    engine = Engine(0)
    spare = capacity(engine)

    async def free() -> None:
        await asyncio.sleep(10)
        engine.spare_slots = 1

    freeing = asyncio.create_task(free())
    async with spare.one_more("m"):
        assert 10 <= asyncio.get_running_loop().time() < 10.3
    await freeing


@on_virtual_time
async def test_lines_begin_in_their_order_and_one_that_leaves_holds_up_none() -> None:
    spare = capacity(Engine(), max_in_flight=1)
    begun = []

    async def line(number: int) -> None:
        async with spare.one_more("m"):
            begun.append(number)
            await asyncio.sleep(1)

    lines = [asyncio.create_task(line(number)) for number in range(5)]
    await asyncio.sleep(0.5)
    lines[1].cancel()
    lines[3].cancel()
    await asyncio.gather(*lines, return_exceptions=True)
    assert begun == [0, 2, 4]


@on_virtual_time
async def test_a_line_must_wait_behind_others_and_without_room() -> None:
    engine = Engine()
    spare = capacity(engine, max_in_flight=1)
    assert not spare.must_wait("m")
    assert spare.must_wait("other")
    async with spare.one_more("m"):
        assert spare.must_wait("m")
        behind = asyncio.ensure_future(spare.one_more("m").__aenter__())
        await asyncio.sleep(1)
    assert spare.must_wait("m"), "the one that waits is before it"
    await behind


@on_virtual_time
async def test_no_more_lines_are_looked_up_at_once_than_may_run() -> None:
    spare = capacity(Engine(0), max_in_flight=2)
    running = most = 0

    async def look() -> None:
        nonlocal running, most
        async with spare.one_lookup():
            running += 1
            most = max(most, running)
            await asyncio.sleep(1)
            running -= 1

    await asyncio.gather(*[look() for _ in range(6)])
    assert most == 2


@on_virtual_time
async def test_lines_that_begin_together_need_room_each_until_an_engine_has_them() -> None:
    first, second = Engine(1), Engine(1)
    spare = capacity(first, second, max_in_flight=9)
    lines: list[BegunLine] = []
    ending = asyncio.Event()

    async def run() -> None:
        async with spare.one_more("m") as line:
            lines.append(line)
            await ending.wait()

    running = [asyncio.create_task(run()) for _ in range(5)]
    await asyncio.sleep(1)
    assert len(lines) == 2, "no engine has one yet"
    for line in lines:
        line.exchange = SimpleNamespace(generation=SimpleNamespace(attempts=["sent"], leader=None))  # type: ignore[assignment]
    first.spare_slots, second.spare_slots = 1, 0
    await asyncio.sleep(1)
    assert len(lines) == 3
    ending.set()
    await asyncio.gather(*running)
    assert len(lines) == 5


@pytest.mark.parametrize(
    ("generation", "is_placed"),
    [(None, False), (([], None), False), ((["sent"], None), True), (([], "another process"), True)],
)
def test_a_line_is_placed_once_an_engine_works_for_it(generation: Any, is_placed: bool) -> None:
    line = BegunLine()
    assert not line.is_placed
    found = generation and SimpleNamespace(attempts=generation[0], leader=generation[1])
    line.exchange = SimpleNamespace(generation=found)  # type: ignore[assignment]
    assert line.is_placed is is_placed


@on_virtual_time
async def test_a_line_is_looked_up_once_batches_are_open() -> None:
    is_open = False
    spare = capacity(Engine(0))
    spare._is_open = lambda: is_open
    waiting = asyncio.create_task(spare.wait_until_open())
    await asyncio.sleep(60)
    assert not waiting.done()
    is_open = True
    await asyncio.sleep(0.3)
    assert waiting.done()
