"""Commands that go over a link without a pause, while something is done to Redis."""

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
TIMEOUT = 0.3
"""Seconds that each batch may take."""


class RedisTraffic:
    """Writes and reads all of KEYS again and again; every value says which key it belongs to and when it was written.

    - `wrong`: replies that were not those to their commands. `refused`: what Redis said instead of replies.
    - `batches`, `failed`: how many there were, and in how many not all went well.
    - `slowest`: seconds that the slowest batch took.
    """

    def __init__(self, backend: RedisBackend) -> None:
        self._backend = backend
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
        """Whether all has gone well in the last batches, which began after a moment of the loop's clock."""
        return len(self._successes) == self._successes.maxlen and self._successes[0] > moment

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            self.batches += 1
            began = clock()
            well = await self._run_batch(self.batches)
            self.slowest = max(self.slowest, clock() - began)
            if well:
                self._successes.append(began)
            else:
                self.failed += 1
                self._successes.clear()
            await asyncio.sleep(0.002)

    async def _run_batch(self, number: int) -> bool:
        keys = KEYS[number % 3 :: 3]
        commands: list[Command] = []
        for key in keys:
            commands += [("SET", key, f"{key}={number}"), ("GET", key)]
            commands.append(("EVAL", "return redis.call('GET', KEYS[1])", 1, key))
        try:
            replies = await self._backend.execute(commands, TIMEOUT)
        except RedisBackendError:
            return False
        well = True
        for at, key in enumerate(keys):
            written, *read = replies[3 * at : 3 * at + 3]
            faults = [reply for reply in (written, *read) if isinstance(reply, RedisBackendError | ResponseError)]
            self.error_codes.update(str(fault).split()[0] for fault in faults if isinstance(fault, ResponseError))
            well = well and not faults
            if not isinstance(written, RedisBackendError | ResponseError):
                right = f"{key}={number}".encode()
                self.mismatches += [reply for reply in read if reply not in (right, *faults)]
        return well
