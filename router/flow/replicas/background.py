"""The background tasks of a process, which keep it in sync with the other processes through Redis."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

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


class BackgroundServices:
    """Starts, runs and closes everything in this process that talks to Redis in the background."""

    def __init__(
        self, pipeline: RedisPipeline, *, reads: Sequence[Callable[[], Awaitable[None]]], tasks: Sequence[Task],
        closes: Sequence[Callable[[], Awaitable[None] | None]],
    ) -> None:  # fmt: skip
        """`reads`: what is read before the first request, if Redis answers. `closes` are called in their order."""
        self._pipeline = pipeline
        self._reads = reads
        self._tasks = tasks
        self._closes = closes

    async def start(self) -> None:
        """Connects to Redis and waits for that for a moment. Does not fail if Redis is down; `run` retries."""
        await self._pipeline.start()
        if self._pipeline.up:
            for read in self._reads:
                with contextlib.suppress(RedisDownError):  # it has gone down since; `run` waits for it
                    await read()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(keep_running(task)) for task in self._tasks]
        try:
            await asyncio.wait(tasks)
        finally:
            await cancel_and_wait(*tasks)

    async def aclose(self) -> None:
        for close in self._closes:
            closing = close()
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
