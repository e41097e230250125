"""The order in which the lines of a range ask for engines."""

import asyncio

from router.flow.batches.batch_range import LineOrder


async def test_lines_that_need_engines_take_their_turns_while_others_are_looked_up() -> None:
    order = LineOrder([1, 2, 3, 4])
    turns = []

    async def line(number: int) -> None:
        with order.undecided(number):
            await order.wait(number)
            turns.append(number)

    with order.undecided(2):  # a hit: it waits for none
        pass
    waiting = [asyncio.ensure_future(line(number)) for number in (4, 3)]
    with order.undecided(1):
        for _ in range(3):
            await asyncio.sleep(0)
        assert turns == []
    await asyncio.gather(*waiting)
    assert turns == [3, 4]
