"""Continuous commands over a Redis backend, while a test injects faults into Redis."""

import asyncio
from collections import deque
from types import TracebackType
from typing import Any

from redis.exceptions import ResponseError

from router.net.redis.backend import RedisBackend
from router.net.redis.commands import Command
from router.net.redis.errors import RedisBackendError
from router.net.tasks import cancel_and_wait

KEYS = [f"rh:1:traffic:{number}" for number in range(60)]


class RedisTraffic:
    """Writes and reads all of KEYS repeatedly; each value names its key and the batch that wrote it.

    - `mismatches`: replies that belong to other commands. `error_codes`: of Redis' error replies.
    - `batches`, `failed`: number of batches, and of those in which not all commands succeeded.
    - `slowest`: seconds of the slowest batch.
    """

    def __init__(self, backend: RedisBackend, timeout: float = 0.3) -> None:
        """`timeout`: of a batch, in seconds."""
        self._backend = backend
        self._timeout = timeout
        self._task: asyncio.Task[None] | None = None
        self._successes: deque[float] = deque(maxlen=20)
        self.mismatches: list[Any] = []
        self.error_codes: set[str] = set()
        self.failed = 0
        self.slowest = 0.0
        self.batches = 0

    async def __aenter__(self) -> "RedisTraffic":
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await cancel_and_wait(self._task)
        if self._task is not None and not self._task.cancelled() and error is None:
            self._task.result()

    def healthy_since(self, moment: float) -> bool:
        """Whether the last batches have all succeeded and started after this time of the loop's clock."""
        return len(self._successes) == self._successes.maxlen and self._successes[0] > moment

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            self.batches += 1
            started = clock()
            succeeded = await self._run_batch(self.batches)
            self.slowest = max(self.slowest, clock() - started)
            if succeeded:
                self._successes.append(started)
            else:
                self.failed += 1
                self._successes.clear()
            await asyncio.sleep(0.002)

    async def _run_batch(self, number: int) -> bool:
        keys = KEYS[number % 3 :: 3]
        commands: list[Command] = []
        for key in keys:
            commands += [("SET", key, f"{key}={number}"), ("GET", key)]
            # Three commands per key, of which two read: a shifted reply would show the value of another key.
            commands.append(("EVAL", "return redis.call('GET', KEYS[1])", 1, key))
        try:
            replies = await self._backend.execute(commands, self._timeout)
        except RedisBackendError:
            return False
        succeeded = True
        for at, key in enumerate(keys):
            write_reply, *read_replies = replies[3 * at : 3 * at + 3]
            errors = [
                reply for reply in (write_reply, *read_replies) if isinstance(reply, RedisBackendError | ResponseError)
            ]
            self.error_codes.update(str(error).split()[0] for error in errors if isinstance(error, ResponseError))
            succeeded = succeeded and not errors
            # If the write failed, the reads may correctly return the value before.
            if not isinstance(write_reply, RedisBackendError | ResponseError):
                expected = f"{key}={number}".encode()
                self.mismatches += [reply for reply in read_replies if reply not in (expected, *errors)]
        return succeeded
