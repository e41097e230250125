"""The wait for engines that start."""

import asyncio

import pytest

from router.discovery.ask import wait_for_engines
from tests.support.first_steps import engine_of
from tests.support.scripted_engine import served
from tests.support.virtual_time import on_virtual_time

PORT = 8000
URL = f"http://127.0.0.1:{PORT}"


@on_virtual_time
async def test_it_waits_for_an_engine_that_starts_and_says_so_every_ten_seconds() -> None:
    lines: list[str] = []
    waiting = asyncio.ensure_future(wait_for_engines([URL], {}, seconds=600, report=lines.append))
    await asyncio.sleep(25)
    elapsed = [line.partition(f"waiting for the engine at {URL}, ")[2].partition(": ")[0] for line in lines]
    assert elapsed == ["0 of 600 s", "10 of 600 s", "20 of 600 s"]
    async with served(engine_of("llama"), port=PORT):
        (answer,) = await asyncio.wait_for(waiting, 1.5)
    assert [model.name for model in answer.models] == ["llama"]


@on_virtual_time
async def test_it_waits_no_longer_than_it_is_told() -> None:
    (answer,) = await wait_for_engines([URL], {}, seconds=30, report=lambda _: None)
    assert (answer.models, answer.retry) == ((), True)
    assert asyncio.get_running_loop().time() == pytest.approx(30, abs=1.1)
