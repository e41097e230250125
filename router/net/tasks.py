"""Cancelling tasks reliably."""

import asyncio
from typing import Any


async def cancel_and_wait(*tasks: "asyncio.Task[Any] | None") -> None:
    """Cancels tasks, and returns when all are done. Their exceptions are ignored.

    redis-py, and on Python 3.11 asyncio.wait_for below it, can swallow a cancellation that coincides with another
    event. So each task is cancelled repeatedly until it is done. If the caller is cancelled itself, that is raised only
    after the tasks have ended, since a task that lived on would keep its connection.
    """
    remaining = {task for task in tasks if task is not None and not task.done()}
    cancellation: asyncio.CancelledError | None = None
    while remaining:
        for unfinished in remaining:
            unfinished.cancel()
        try:
            await asyncio.wait(remaining, timeout=0.1)
        except asyncio.CancelledError as error:
            cancellation = error
        remaining = {task for task in remaining if not task.done()}
    for task in tasks:
        if task is not None and not task.cancelled():
            task.exception()  # marks it as retrieved, so that asyncio does not log it
    if cancellation is not None:
        raise cancellation
