"""What this process does when Redis tells it that something has changed.

Theory of operation. Changes are told over connections of their own (router.net.redis.listener); what has changed is
read over the line. Either may be away while the other is there. So what was told and could not be read is read once the
line is back, and only a process to which all is told, and which has read all that it missed, answers from its local
copy.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from router.core.cache.entry_filter import Scope
from router.core.cache.miss_reason import Hints
from router.core.cache.redis_keys import DRAINS, PURGES, is_breaker, is_entry, is_flight
from router.flow.coalescer import Flights
from router.net.redis.pipeline import Line, RedisDownError
from router.net.tasks import end
from router.shared.breakers import Breakers
from router.shared.drains import Drains
from router.shared.inflight_leases import SharedFlights
from router.shared.purges import Purges
from router.store.local_cache import LocalCopy

log = logging.getLogger("roundhouse.redis")

_READ_AGAIN: Final = 0.1  # seconds


class Hearing:
    """Hands on what the listener hears to those whom it concerns; see listener.Hears."""

    def __init__(
        self,
        *,
        line: Line,
        local: LocalCopy,
        flights: Flights,
        purges: Purges,
        shared: SharedFlights,
        hints: Hints,
        drains: Drains,
        breakers: Breakers,
    ) -> None:
        self._line = line
        self._local = local
        self._flights = flights
        self._purges = purges
        self._shared = shared
        self._hints = hints
        self._drains = drains
        self._breakers = breakers
        self._listening = False
        self._unread = False  # whether purges or drains may have changed since they were read
        self._reading: asyncio.Task[None] | None = None

    def listening(self) -> None:
        self._listening = True
        self._read()

    def deaf(self) -> None:
        self._listening = False
        self._suspend()

    async def aclose(self) -> None:
        """Reads nothing more."""
        await end(self._reading)

    def changed(self, keys: Sequence[bytes] | None) -> None:
        if keys is None:  # all of Redis was emptied
            self._local.drop()
            self._hints.clear()
            self._read()
            return
        entries = []
        for name in keys:
            key = name.decode("utf-8", "replace")
            if is_entry(key):
                entries.append(key)
                self._hints.note_key(key)
            else:
                self._other(key)
        self._local.changed(entries)

    def _other(self, key: str) -> None:
        if key == PURGES:
            # Until it is read, a flight could be joined that it covers.
            self._purges.told = False
            self._flights.deaf()
            self._read()
        elif key == DRAINS:
            self._read()
        elif is_flight(key):
            self._shared.changed(key)
        elif is_breaker(key):
            self._breakers.changed(key)

    def message(self, payload: bytes) -> None:
        self._shared.message(payload)

    # -- what has to be read ------------------------------------------------------------------------------------------

    def _read(self) -> None:
        self._unread = True
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._read_all())

    async def _read_all(self) -> None:
        while self._unread:
            self._unread = False
            try:
                await self._purges.catch_up()
                await self._drains.read()
                missed = not self._purges.learned  # a log that was lost, of a Redis that takes no writes
            except RedisDownError:
                missed = True
            if missed:
                log.debug("the purges and drains that were missed will be read when Redis answers again")
                self._unread = True
                self._suspend()
                await asyncio.sleep(_READ_AGAIN)  # of a cluster, one server may be away while the line is up
                await self._line.wait_until_up()
        if self._listening and not self._purges.told:
            self._purges.told = True
            self._breakers.listening()
            self._local.listening()
            self._flights.listening()

    def _suspend(self) -> None:
        """Until all that was missed is read, nothing comes from the local copy, and no flight of some age is joined."""
        self._purges.told = False
        self._local.deaf()
        self._flights.deaf()


def on_purge(flights: Flights, hints: Hints, local: LocalCopy, scope: Scope) -> None:
    """A purge has become known."""
    flights.purged(scope)
    local.purged()
    hints.clear()
