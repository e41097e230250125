"""A change that takes a while is recorded in any case: when it is done, and when it ends half-way."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from router.shared.audit.changes import Change

ResultT = TypeVar("ResultT")


async def recorded(
    operation: Awaitable[ResultT],
    record: Callable[[Change], Awaitable[None]],
    changes: Callable[[ResultT], Sequence[Change]],
    stopped: Callable[[BaseException], Sequence[Change]],
) -> ResultT:
    """The result of `operation`, once its `changes` are recorded.

    - `stopped`: what to record if it raised something or its task was cancelled; it may have changed something.
    - Whoever cancels the task waits for the record.
    """
    try:
        result = await operation
    # A signal may end a command with one of the last two. GeneratorExit is left out: it must not be awaited in.
    except (Exception, asyncio.CancelledError, KeyboardInterrupt, SystemExit) as error:
        await uninterrupted(_record_all(record, stopped(error)))
        raise
    await uninterrupted(_record_all(record, changes(result)))
    return result


async def uninterrupted(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Completes `work`, also if the task is cancelled meanwhile; that is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])  # cancelling it does not cancel the task
        except asyncio.CancelledError as error:
            cancellation = error
    result = task.result()
    if cancellation is not None:
        raise cancellation
    return result


async def _record_all(record: Callable[[Change], Awaitable[None]], changes: Sequence[Change]) -> None:
    for change in changes:
        await record(change)
