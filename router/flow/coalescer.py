"""All flights of this process: who leads one, who joins one, and what becomes of one that nobody waits for.

Each flight has one task, which is either at an engine or, where another process has the claim, reads what that process
writes. So whoever waits need not know where the answer comes from, and the flight outlives the client that began it.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from router.core.cache.entry_filter import Scope
from router.core.cache.key import Key
from router.core.endpoints.request import Request
from router.errors import internal_error
from router.flow.dispatch import Dispatcher
from router.flow.exchange import Work
from router.flow.generation import Keep, lead
from router.flow.inflight import Flight
from router.flow.outcome_codec import read_end, write_end
from router.flow.result import Landing, lost
from router.net.redis.pipeline import RedisDownError
from router.shared.claim import LEASE, Claim
from router.shared.inflight_leases import Asked, SharedFlights
from router.shared.purges import Mark, Purges
from router.shared.stream_reader import WANTED, LostError
from router.shared.stream_writer import Source
from router.upstream.catalog import Engine

log = logging.getLogger("roundhouse.flights")

OnAbandon = Literal["cancel", "finish"]

UNHEARD: Final = 1.0
"""Seconds for which a flight can be joined while purges may pass unnoticed: a request that joins one begun before a
purge came within so many seconds after the purge."""

_ABSENT: Final = WANTED + LEASE + 0.5
"""Seconds without a message after which followers elsewhere are taken to have left: they wait a lease for a Redis that
does not answer them, and can say nothing meanwhile."""

_TAKE_OVERS: Final = 3  # of one flight; each is of a leader that was lost within seconds of its claim


class Flights:
    """Leads flights, and finds those that can be joined.

    - Of one request, one flight at most can be joined in this process, and one is led among all.
    - A flight that its last reader leaves is cancelled at the engine after `abandon` seconds, or finished and stored,
      as `on_abandon` says. One that nobody else can join is cancelled at once.
    - What was purged can no longer be joined. While purges may pass unnoticed, only what has just begun can be.
    - What another process generates is taken over from it when it is lost and nobody has had anything of it.
    """

    def __init__(
        self, dispatcher: Dispatcher, *, on_abandon: OnAbandon, abandon: float, limit: int,
        landed: Callable[[Work], None], most_abandoned: Mapping[str, int] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """`limit`: the bytes beyond which a flight takes no more readers; `landed` is told of each that is over.

        `most_abandoned`: by tenant, how many flights go on that nobody reads, where that is bounded.
        """
        self._most_abandoned = most_abandoned
        self._dispatcher = dispatcher
        self._on_abandon = on_abandon
        self._abandon_after = abandon
        self._limit = limit
        self._landed = landed
        self._shared: SharedFlights | None = None
        self._purges: Purges | None = None
        self._open: dict[str, Flight] = {}
        self._all: dict[str, Flight] = {}
        self._wanted: dict[str, float] = {}
        self._abandoned: dict[str, asyncio.TimerHandle] = {}
        # No other process, restart or reload has the same, so no id is given twice.
        self._prefix = secrets.token_hex(8)
        self._number = 0
        self._hears_purges = True
        self._alive: Callable[[], bool] = lambda: True
        self._hears_since = -inf

    def share(self, shared: SharedFlights, purges: Purges, alive: Callable[[], bool]) -> None:
        """From now on, flights are shared with other processes, which may purge what they are to give.

        `alive`: whether Redis has shown of late that it tells of purges; see Liveness.
        """
        self._shared, self._purges, self._alive = shared, purges, alive
        self._hears_purges = False

    def find(self, key: Key) -> Flight | None:
        """The flight that is to answer a request, if there is one that can be joined."""
        flight = self._open.get(key.digest)
        if flight is None or (self._hears_purges and self._alive()):
            return flight
        return flight if asyncio.get_running_loop().time() - flight.launched < UNHEARD else None

    @property
    def followed(self) -> bool:
        """Whether other processes follow any flight, as far as is known."""
        return bool(self._wanted)

    @property
    def airborne(self) -> bool:
        """Whether any flight is under way."""
        return bool(self._all)

    def launch(
        self, request: Request, key: Key | None, work: Work, engines: Callable[[], Sequence[Engine]], *,
        keep: Keep | None, documents: tuple[str, ...], since: Mark, seen: float | None = None,
    ) -> Flight:  # fmt: skip
        """Begins a flight; others can join it if it has a key, and it is stored if there is a `keep`.

        `engines`: gives those that are to be tried, once it is known that this process leads the flight.
        `seen`: when the entry was created that is stored already and is of no use, if there is one.
        """
        self._number += 1
        flight = Flight(
            f"{self._prefix}.{self._number}", request, key, work,
            documents=documents, since=since, limit=self._limit,
            on_empty=partial(self._abandon, keep), on_close=self._close,
        )  # fmt: skip
        self._all[flight.id] = flight
        if key is not None:
            self._open[key.digest] = flight
        flight.task = asyncio.get_running_loop().create_task(self._fly(flight, engines, keep, self._ask(flight), seen))
        flight.task.add_done_callback(partial(self._flown, flight))
        return flight

    async def aclose(self) -> None:
        """Cancels what is still in the air."""
        tasks = [flight.task for flight in self._all.values() if flight.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- one flight -------------------------------------------------------------------------------------------------

    async def _fly(
        self, flight: Flight, engines: Callable[[], Sequence[Engine]], keep: Keep | None, asked: Asked | None,
        seen: float | None,
    ) -> None:  # fmt: skip
        landing = None
        try:
            claim = await self._claim(flight, asked, seen)
            for _ in range(_TAKE_OVERS):
                if not isinstance(claim, Claim):
                    break
                landing = await self._follow(flight, claim)
                if landing is not None:
                    break
                claim = await self._take_over(flight, claim, seen)
            if claim == "stored":
                landing = Landing(whole=False)
            elif landing is None:
                flight.led_here = True
                landing = await lead(self._dispatcher, flight, engines(), keep)
        except Exception:
            # The last line of defence: whoever waits must hear that nothing will come.
            log.exception("a flight failed")
            landing = Landing(whole=False, error=internal_error(), reason="internal_error", begun=flight.begun)
        finally:
            self._end(flight, landing)

    def _ask(self, flight: Flight) -> Asked | None:
        """Asks for the claim, at once: the question goes out with what others ask in this turn."""
        if self._shared is None or flight.key is None:
            return None
        try:
            return self._shared.ask(flight.key.text, flight.key.digest, flight.id, flight.since)
        except RedisDownError:
            return None

    async def _claim(self, flight: Flight, asked: Asked | None, seen: float | None) -> Claim | Literal["stored"] | None:
        if self._shared is None or flight.key is None or asked is None:
            return None
        try:
            found = await self._shared.claim(asked, seen)
        except RedisDownError:
            return None
        return _own(found, flight.key)

    async def _follow(self, flight: Flight, claim: Claim) -> Landing | None:
        """Takes what another process generates. None where it is lost, or purged, and nobody has had anything of it."""
        assert self._shared is not None
        assert flight.key is not None
        if await self._is_purged(flight, claim.since):
            return None
        flight.led_here = False
        try:
            async with contextlib.aclosing(self._shared.follow(flight.key.text, claim)) as records:
                async for record in records:
                    if record.source.engine is not None:
                        flight.work.engine, flight.work.fallback = record.source.engine, record.source.fallback
                    if record.frames:
                        flight.say(record.frames)
                    if record.end is not None:
                        return read_end(flight, record.end)
        except (LostError, RedisDownError, msgspec.DecodeError) as error:
            log.debug("a flight of another process is lost: %r", error)
        return lost() if flight.begun else None

    async def _is_purged(self, flight: Flight, since: Mark) -> bool:
        """Whether a purge covers what began when the purges were known up to `since`."""
        assert self._purges is not None
        assert flight.key is not None
        if not (self._hears_purges and self._alive()):
            await self._purges.changed()
        return self._purges.cover(flight.key.text, flight.documents, since)

    async def _take_over(self, flight: Flight, claim: Claim, seen: float | None) -> Claim | Literal["stored"] | None:
        """Claims what another process has claimed; see `_claim`."""
        assert self._shared is not None
        assert flight.key is not None
        flight.work.engine = flight.work.fallback = None
        try:
            found = await self._shared.take_over(flight.key.text, claim, flight.id, flight.since, seen)
        except RedisDownError:
            return None
        return _own(found, flight.key)

    def _flown(self, flight: Flight, _: "asyncio.Task[None]") -> None:
        self._end(flight, None)  # a task that is cancelled before its first step never comes to its own end
        flight.task = None
        if flight.work.body is not None:
            flight.work.body.release()

    def _end(self, flight: Flight, landing: Landing | None) -> None:
        if self._all.pop(flight.id, None) is None:
            return
        landing = landing or lost()
        self._wanted.pop(flight.id, None)
        abandoned = self._abandoned.pop(flight.id, None)
        if abandoned is not None:
            abandoned.cancel()
        if flight.told is not None:
            assert self._shared is not None
            assert flight.key is not None
            self._shared.end(flight.key.text, flight.id, _source(flight.work), write_end(flight, landing))
        flight.land(landing)
        self._forget(flight)
        # After the answer was stored: whoever comes next must find the one or the other. One that is not led here may
        # have a claim as well, if it was cancelled while it took that over.
        self._release(flight)
        if flight.led_here:
            self._landed(flight.work)

    def _close(self, flight: Flight) -> None:
        """It takes no more readers, here or elsewhere."""
        self._forget(flight)
        self._release(flight)

    def _forget(self, flight: Flight) -> None:
        if flight.key is not None and self._open.get(flight.key.digest) is flight:
            del self._open[flight.key.digest]

    def _release(self, flight: Flight) -> None:
        if self._shared is not None:
            self._shared.release(flight.id)

    # -- who waits --------------------------------------------------------------------------------------------------

    def _abandon(self, keep: Keep | None, flight: Flight) -> None:
        """The last reader here has left."""
        assert flight.task is not None
        begun = flight.work.dispatched is not None  # what still waits for an engine has cost nothing
        if flight.led_here and begun and keep is not None and self._on_abandon == "finish":
            return
        now = asyncio.get_running_loop().time()
        until = now + self._abandon_after if flight.open and begun else now
        self._cancel_at(flight, max(until, self._wanted_until(flight, now)), now)
        self._cancel_oldest(flight.work.tenant, now)

    def _cancel_oldest(self, tenant: str, now: float) -> None:
        """Else a client that asks and leaves, again and again, would have more at the engines than its tenant may."""
        most = self._most_abandoned.get(tenant)
        if most is None:
            return
        abandoned = [flight for flight in map(self._all.__getitem__, self._abandoned) if flight.work.tenant == tenant]
        unread = [flight for flight in abandoned if not flight.readers and flight.id not in self._wanted]
        for flight in unread[: max(0, len(unread) - most)]:
            self._cancel_at(flight, now, now)

    def _wanted_until(self, flight: Flight, now: float) -> float:
        """When nobody elsewhere follows a flight any more, as far as this process can know."""
        wanted = self._wanted.get(flight.id)
        if wanted is None:
            return -inf
        # What followers say while this process does not listen is lost.
        last = max(wanted, self._hears_since) if self._hears_purges else now
        return last + max(_ABSENT, self._abandon_after if flight.open else 0.0)

    def _cancel_at(self, flight: Flight, until: float, now: float) -> None:
        waiting = self._abandoned.pop(flight.id, None)
        if waiting is not None:
            waiting.cancel()
        if until <= now:
            self._cancel(flight)
        else:
            loop = asyncio.get_running_loop()
            self._abandoned[flight.id] = loop.call_at(until, self._look_for_readers, flight)

    def _look_for_readers(self, flight: Flight) -> None:
        """Cancels a flight that nobody has come back for."""
        del self._abandoned[flight.id]
        if not flight.readers:
            now = asyncio.get_running_loop().time()
            self._cancel_at(flight, self._wanted_until(flight, now), now)

    def _cancel(self, flight: Flight) -> None:
        assert flight.task is not None
        flight.close()
        flight.task.cancel()

    # -- what becomes known -----------------------------------------------------------------------------------------

    def wanted(self, id_: str) -> None:
        """Another process follows this flight."""
        flight = self._all.get(id_)
        if flight is None or self._shared is None or flight.key is None or not flight.led_here:
            return
        self._wanted[id_] = asyncio.get_running_loop().time()
        if flight.told is None and flight.open:
            shared, key, work = self._shared, flight.key.text, flight.work
            flight.told = lambda frames: shared.say(key, id_, _source(work), frames)
            flight.told(flight.so_far())  # of one that has said nothing, that it lives

    def listening(self) -> None:
        """The purges are known, and each that follows will be."""
        self._hears_purges, self._hears_since = True, asyncio.get_running_loop().time()

    def deaf(self) -> None:
        """From now on, purges may pass unnoticed, and followers unheard."""
        self._hears_purges = False

    def purged(self, scope: Scope) -> None:
        """Something has been purged: what was begun before can no longer be joined."""
        for flight in list(self._open.values()):
            if flight.key is not None and scope.matches(flight.key.text, flight.documents):
                flight.close()


def _source(work: Work) -> Source:
    return Source(work.engine, work.fallback)


def _own(found: Claim | Literal["stored"] | None, key: Key) -> Claim | Literal["stored"] | None:
    """What stands at a claim's place, unless it is the claim of another request whose key has the same hashes."""
    return None if isinstance(found, Claim) and found.digest != key.digest else found
