"""The background tasks of a process, which keep it in sync with the other processes through Redis."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from router.net.redis.commands import Command
from router.net.redis.pipeline import RedisDownError, RedisPipeline
from router.net.tasks import cancel_and_wait
from router.shared.cache.hit_counter import HitCounter
from router.shared.cache.purges import Purges

log = logging.getLogger("roundhouse.redis")

_LOAD_RETRY_INTERVAL: Final = 0.5  # seconds until the next attempt, after Redis accepted no writes or was down
_RESTART_DELAY: Final = 1.0  # seconds, after a task has failed
_MAX_COMMANDS: Final = 500  # in one turn; see `execute_in_turns`

Task = Callable[[], Coroutine[Any, Any, None]]
"""Runs until it is cancelled, or until it has no more to do."""


class Service(NamedTuple):
    """One thing that lives as long as the connections to a Redis.

    `read`: before the first request, if Redis answers. `run`: from then on; it is started again if it fails. `close`:
    when nothing runs any more.
    """

    read: Callable[[], Awaitable[None]] | None = None
    run: Task | None = None
    close: Callable[[], Awaitable[None] | None] | None = None


class BackgroundServices:
    """They are started in their order, and closed in the reverse one."""

    def __init__(self, pipeline: RedisPipeline, services: Sequence[Service]) -> None:
        self._pipeline = pipeline
        self._services = services
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Connects to Redis and waits for that for a moment. Does not fail if Redis is down; what runs tries again."""
        await self._pipeline.start()
        for service in self._services:
            if service.read is not None and self._pipeline.up:
                with contextlib.suppress(RedisDownError):  # it has gone down since
                    await service.read()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(keep_running(each.run)) for each in self._services if each.run is not None]

    async def aclose(self) -> None:
        await cancel_and_wait(*self._tasks)
        for service in reversed(self._services):
            closing = service.close() if service.close is not None else None
            if closing is not None:
                await closing


async def load_purges(pipeline: RedisPipeline, purges: Purges) -> None:
    """A Task."""
    while not purges.loaded:
        await pipeline.wait_until_up()
        with contextlib.suppress(RedisDownError):  # it has gone down since
            await purges.load()
        if not purges.loaded:  # also without an error, if the log was lost and Redis accepts no writes
            await asyncio.sleep(_LOAD_RETRY_INTERVAL)


async def flush_hits(pipeline: RedisPipeline, hit_counter: HitCounter) -> None:
    with contextlib.suppress(RedisDownError):
        await execute_in_turns(pipeline, hit_counter.take_commands())


def every(seconds: float, action: Callable[[], Awaitable[None] | None], *, at_once: bool = False) -> Task:
    """A Task that repeats the action. `at_once`: the first time before the first wait."""
    return partial(_repeat, seconds, action, at_once=at_once)


async def _repeat(seconds: float, action: Callable[[], Awaitable[None] | None], *, at_once: bool) -> None:
    waits = not at_once
    while True:
        if waits:
            await asyncio.sleep(seconds)
        waits = True
        acting = action()
        if acting is not None:
            await acting


async def keep_running(task: Task) -> None:
    """Runs it until it returns. One that fails is logged and started again."""
    while True:
        try:
            return await task()
        except Exception:
            # The last line of defence: a defect must not end this process' claims, limits or purges for good.
            log.exception("a task in the background failed; it starts again")
        await asyncio.sleep(_RESTART_DELAY)


async def execute_in_turns(pipeline: RedisPipeline, commands: Sequence[Command]) -> None:
    """Executes thousands of commands so that cache lookups, which share the connection, do not wait behind all of them.

    Raises RedisDownError.
    """
    for start in range(0, len(commands), _MAX_COMMANDS):
        await pipeline.execute(*commands[start : start + _MAX_COMMANDS])
