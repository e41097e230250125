"""Ending tasks for certain."""

import asyncio
from typing import Any


async def cancel_and_wait(*tasks: "asyncio.Task[Any] | None") -> None:
    """Cancels tasks, and returns once all are done; what they failed with does not matter any more.

    redis-py, and on Python 3.11 asyncio.wait_for below it, can lose a cancellation that comes just as something else
    happens. So it is said again until it has been heard. Whoever waits here may be ended in the same way: then, too,
    the tasks come first, since one that lived on would keep its connection.
    """
    left = {task for task in tasks if task is not None and not task.done()}
    ended: asyncio.CancelledError | None = None
    while left:
        for going in left:
            going.cancel()
        try:
            await asyncio.wait(left, timeout=0.1)
        except asyncio.CancelledError as error:
            ended = error
        left = {task for task in left if not task.done()}
    for task in tasks:
        if task is not None and not task.cancelled():
            task.exception()
    if ended is not None:
        raise ended
