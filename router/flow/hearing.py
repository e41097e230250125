"""What this process does when Redis tells it that something has changed."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from router.core.names import DRAINS, PURGES, is_breaker, is_entry, is_flight
from router.core.reason import Hints
from router.core.scope import Scope
from router.flow.flights import Flights
from router.shared.breakers import Breakers
from router.shared.flights import SharedFlights
from router.shared.purges import Purges
from router.shared.registry import Drains
from router.store.local import LocalCopy


class Hearing:
    """Hands on what the listener hears to those whom it concerns; see listener.Hears."""

    def __init__(
        self,
        *,
        local: LocalCopy,
        flights: Flights,
        purges: Purges,
        shared: SharedFlights,
        hints: Hints,
        drains: Drains,
        breakers: Breakers,
    ) -> None:
        self._local = local
        self._flights = flights
        self._purges = purges
        self._shared = shared
        self._hints = hints
        self._drains = drains
        self._listens = False
        self._breakers = breakers
        self._tasks: set[asyncio.Task[object]] = set()

    def listening(self) -> None:
        self._listens = True
        self._local.listening()
        self._begin(self._catch_up())
        self._begin(self._drains.changed())
        self._breakers.listening()

    async def _catch_up(self) -> None:
        """Flights can be joined again once the purges are known that passed unnoticed."""
        if await self._purges.changed() and self._listens:
            self._flights.listening()

    def deaf(self) -> None:
        self._listens = False
        self._local.deaf()
        self._flights.deaf()

    def changed(self, keys: Sequence[bytes] | None) -> None:
        if keys is None:  # all of Redis was emptied
            self._local.drop()
            self._hints.clear()
            self._begin(self._drains.changed())
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
            self._begin(self._purges.changed())
        elif key == DRAINS:
            self._begin(self._drains.changed())
        elif is_flight(key):
            self._shared.changed(key)
        elif is_breaker(key):
            self._breakers.changed(key)

    def message(self, payload: bytes) -> None:
        self._shared.message(payload)

    def _begin(self, work: Coroutine[Any, Any, object]) -> None:
        task: asyncio.Task[object] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def on_purge(flights: Flights, hints: Hints, scope: Scope) -> None:
    """A purge has become known; of entries, Redis tells by itself."""
    flights.purged(scope)
    hints.clear()
