"""An engine that breaks off many streams at once."""

import asyncio

import pytest

from router.net.loop_turns import LoopTurns
from tests.support.waiting import TEST_TIMEOUT


@pytest.mark.asyncio
async def test_one_stream_goes_on_in_each_iteration_of_the_event_loop_in_their_order() -> None:
    loop, turns = asyncio.get_running_loop(), LoopTurns()
    iteration, seams = 0, []

    def count() -> None:
        nonlocal iteration
        iteration += 1
        loop.call_soon(count)

    async def seam(number: int) -> None:
        await turns.take()
        seams.append((number, iteration))

    count()
    tasks = [asyncio.create_task(seam(number)) for number in range(100)]
    await asyncio.sleep(0)
    for number in (0, 7, 99):
        tasks[number].cancel()  # its clients have left
    await asyncio.gather(*tasks, return_exceptions=True)
    assert [number for number, _ in seams] == [number for number in range(100) if number not in (0, 7, 99)]
    assert len({at for _, at in seams}) == len(seams)
    await asyncio.wait_for(turns.take(), TEST_TIMEOUT)  # it starts again
