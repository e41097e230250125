"""What is written in a turn of the loop goes out at its end."""

import asyncio
from collections.abc import Callable

import pytest

from router.api.outbox import Outbox

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Writer:
    """Does something when it is to write."""

    def __init__(self, does: Callable[[], object]) -> None:
        self._does = does

    def flush(self) -> None:
        self._does()


async def test_writers_write_when_the_turn_ends_in_the_order_in_which_they_asked() -> None:
    outbox, written = Outbox(), list[str]()
    for name in "abc":
        outbox.add(Writer(lambda name=name: written.append(name)), asyncio.get_running_loop())  # type: ignore[misc]
    assert written == []
    await asyncio.sleep(0)
    assert written == ["a", "b", "c"]


async def test_who_asks_while_others_write_writes_too() -> None:
    outbox, written, loop = Outbox(), list[str](), asyncio.get_running_loop()
    outbox.add(Writer(lambda: outbox.add(Writer(lambda: written.append("late")), loop)), loop)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert written == ["late"]


async def test_a_writer_that_fails_stands_in_nobodys_way() -> None:
    loop = asyncio.get_running_loop()
    outbox, written, failed = Outbox(), list[str](), list[object]()

    def fail() -> None:
        raise RuntimeError("a defect")

    loop.set_exception_handler(lambda _, context: failed.append(context["exception"]))
    try:
        outbox.add(Writer(fail), loop)
        outbox.add(Writer(lambda: written.append("other")), loop)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    finally:
        loop.set_exception_handler(None)
    assert written == ["other"]
    assert [type(error) for error in failed] == [RuntimeError]
