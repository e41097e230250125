"""What runs beside the requests of a process, so that it knows of the others."""

import asyncio
import contextlib
from typing import Final

from router.flow.coalescer import Flights
from router.flow.invalidation import Hearing
from router.net.redis.listener import Listener
from router.net.redis.pipeline import Line, RedisDownError
from router.net.tasks import end
from router.shared.drains import Drains
from router.shared.hit_counter import Popularity
from router.shared.inflight_leases import SharedFlights
from router.shared.purges import Purges
from router.shared.rate_limits import TenantLimits

_COUNTED_EVERY: Final = 2.0  # seconds
_LEARN_AGAIN: Final = 0.5  # seconds after which a Redis that took no writes, or was away, may be asked again
_AT_ONCE: Final = 500  # commands, so that lookups need not wait behind thousands


class Sharing:
    """The line to Redis, what is heard over it, and the claims that are held through it."""

    def __init__(
        self, *, line: Line, purges: Purges, shared: SharedFlights, listener: Listener, flights: Flights,
        popularity: Popularity, limits: TenantLimits, drains: Drains, hearing: Hearing,
    ) -> None:  # fmt: skip
        self._line = line
        self._purges = purges
        self._shared = shared
        self._listener = listener
        self._flights = flights
        self._popularity = popularity
        self._limits = limits
        self._drains = drains
        self._hearing = hearing

    async def start(self) -> None:
        """Looks for Redis; waits for it a moment."""
        await self._line.start()
        if self._line.up:
            with contextlib.suppress(RedisDownError):  # it was up, and is away again; `run` will wait for it
                await self._purges.learn()
            await self._drains.changed()

    async def run(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        works = (
            self._learn(), self._listener.run(), self._shared.run(), self._limits.run(), self._count_hits()
        )  # fmt: skip
        tasks = [loop.create_task(work) for work in works]
        try:
            await asyncio.wait(tasks)
        finally:
            await end(*tasks)

    async def _learn(self) -> None:
        while not self._purges.learned:
            await self._line.wait_until_up()
            with contextlib.suppress(RedisDownError):  # it was up, and is away again
                await self._purges.learn()
            if not self._purges.learned:
                await asyncio.sleep(_LEARN_AGAIN)

    async def _count_hits(self) -> None:
        while True:
            await asyncio.sleep(_COUNTED_EVERY)
            self._tell_hits()

    def _tell_hits(self) -> None:
        commands = self._popularity.take()
        with contextlib.suppress(RedisDownError):
            for at in range(0, len(commands), _AT_ONCE):
                self._line.tell(*commands[at : at + _AT_ONCE])

    async def aclose(self) -> None:
        """Ends the flights that are still in the air, and lets what is to be written be written."""
        await self._flights.aclose()
        self._tell_hits()
        await self._hearing.aclose()
        await self._line.aclose()
        self._shared.stop()
