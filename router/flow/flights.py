"""All flights of this process: who leads one, who joins one, and what becomes of one that nobody waits for.

Each flight has one task, which is either at an engine or, where another process has the claim, reads what that process
writes. So whoever waits need not know where the answer comes from, and the flight outlives the client that began it.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal

import msgspec

from router.core.answers import NotKept, Recording
from router.core.key import Key
from router.core.request import Request
from router.core.scope import Scope
from router.errors import UPSTREAM, ApiError, internal_error
from router.flow.dispatch import Dispatcher
from router.flow.exchange import Work
from router.flow.flight import Flight
from router.flow.landing import Landing, lost
from router.flow.landings import read_end, write_end
from router.shared.broadcast import Source
from router.shared.flights import WANTED, Asked, Claim, LostError, SharedFlights
from router.shared.line import RedisDownError
from router.shared.purges import Mark
from router.upstream.catalog import Engine
from router.upstream.failure import EngineError

log = logging.getLogger("roundhouse.flights")

OnAbandon = Literal["cancel", "finish"]
Keep = Callable[[Recording, Work], None]
"""Stores an answer: what Redis is asked from then on is asked after that."""

_ABSENT: Final = 2.5 * WANTED  # seconds after which a follower elsewhere that has said nothing is taken to have left


class Flights:
    """Leads flights, and finds those that can be joined.

    - Of one request, one flight at most can be joined in this process, and one is led among all.
    - A flight that its last reader leaves is cancelled at the engine, or finished and stored, as `on_abandon` says; one
      that could not be stored is cancelled in any case.
    - What was purged can no longer be joined.
    """

    def __init__(
        self, dispatcher: Dispatcher, *, on_abandon: OnAbandon, limit: int, landed: Callable[[Work], None]
    ) -> None:
        """`limit`: the bytes beyond which a flight takes no more readers; `landed` is told of each that is over."""
        self._dispatcher = dispatcher
        self._on_abandon = on_abandon
        self._limit = limit
        self._landed = landed
        self._shared: SharedFlights | None = None
        self._open: dict[str, Flight] = {}
        self._all: dict[str, Flight] = {}
        self._wanted: dict[str, float] = {}
        self._number = 0

    def share(self, shared: SharedFlights) -> None:
        """From now on, flights are shared with other processes."""
        self._shared = shared

    def find(self, key: Key) -> Flight | None:
        """The flight that is to answer a request, if there is one that can be joined."""
        return self._open.get(key.digest)

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
            f"{self._number}", request, key, work,
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
            if claim is None:
                landing = await self._lead(flight, engines(), keep)
            elif isinstance(claim, Claim):
                flight.led_here = False
                landing = await self._follow(flight, claim)
            else:
                landing = Landing(whole=False)
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
            return self._shared.ask(flight.key.text, flight.key.digest, flight.id)
        except RedisDownError:
            return None

    async def _claim(self, flight: Flight, asked: Asked | None, seen: float | None) -> Claim | Literal["stored"] | None:
        if self._shared is None or flight.key is None or asked is None:
            return None
        try:
            found = await self._shared.claim(asked, seen)
        except RedisDownError:
            return None
        # The hash in the key may be another request's as well; that one's answer is none to this one.
        return None if isinstance(found, Claim) and found.digest != flight.key.digest else found

    async def _lead(self, flight: Flight, engines: Sequence[Engine], keep: Keep | None) -> Landing:
        try:
            lead = self._stream if flight.request.stream else self._whole
            landing, recording = await lead(flight, engines)
        except ApiError as error:
            return Landing(whole=False, error=error, reason=error.code or error.kind)
        if flight.work.fallback is not None and isinstance(recording, Recording):
            recording = NotKept.FALLBACK  # it is not what the key stands for
        if isinstance(recording, NotKept):
            flight.work.not_kept = recording
        elif recording is not None and keep is not None:
            keep(recording, flight.work)
        return landing

    async def _stream(self, flight: Flight, engines: Sequence[Engine]) -> tuple[Landing, Recording | NotKept | None]:
        generation = await self._dispatcher.stream(flight.work, flight.request, engines, flight.say)
        recorder = generation.recorder
        try:
            await generation.run()
        except EngineError as error:
            flight.work.attempts.append((generation.engine.name, error.reason))
            broken = ApiError(502, f"The answer broke off: {error}.", kind=UPSTREAM, code="engine_failed")
            not_kept = NotKept.ERROR if error.reason == "error-frame" else NotKept.INCOMPLETE
            return Landing(whole=False, error=broken, reason=error.reason, begun=True), not_kept
        finally:
            generation.close()
        recording = recorder.recording(flight.request)
        return Landing(
            whole=True,
            recording=recording if isinstance(recording, Recording) else None,
            endings=(recorder.ending(include_usage=False), recorder.ending(include_usage=True)),
            prompt_tokens=recorder.usage.prompt_tokens if recorder.usage is not None else 0,
            completion_tokens=recorder.usage.completion_tokens if recorder.usage is not None else 0,
        ), recording

    async def _whole(self, flight: Flight, engines: Sequence[Engine]) -> tuple[Landing, Recording | NotKept | None]:
        body, recording = await self._dispatcher.whole(flight.work, flight.request, engines)
        flight.work.first_token = time.perf_counter()
        known = recording if isinstance(recording, Recording) else None
        return Landing(
            whole=True,
            body=body,
            recording=known,
            prompt_tokens=known.prompt_tokens if known is not None else 0,
            completion_tokens=known.completion_tokens if known is not None else 0,
        ), recording

    async def _follow(self, flight: Flight, claim: Claim) -> Landing:
        """Takes what another process generates."""
        assert self._shared is not None
        assert flight.key is not None
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
        return lost()

    def _flown(self, flight: Flight, _: "asyncio.Task[None]") -> None:
        self._end(flight, None)  # a task that is cancelled before its first step never comes to its own end
        flight.task = None

    def _end(self, flight: Flight, landing: Landing | None) -> None:
        if self._all.pop(flight.id, None) is None:
            return
        landing = landing or lost()
        self._wanted.pop(flight.id, None)
        if flight.told is not None:
            assert self._shared is not None
            assert flight.key is not None
            self._shared.end(flight.key.text, flight.id, _source(flight.work), write_end(flight, landing))
        flight.land(landing)
        self._forget(flight)
        if flight.led_here:
            self._release(flight)  # after the answer was stored: whoever comes next must find the one or the other
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
        begun = flight.work.dispatched is not None  # what still waits for an engine is nothing to finish
        if flight.led_here and begun and keep is not None and self._on_abandon == "finish":
            return
        heard = self._wanted.get(flight.id)
        now = asyncio.get_running_loop().time()
        if heard is not None and now - heard < _ABSENT:
            asyncio.get_running_loop().call_later(heard + _ABSENT - now, self._still_abandoned, keep, flight)
            return
        flight.close()
        flight.task.cancel()

    def _still_abandoned(self, keep: Keep | None, flight: Flight) -> None:
        if flight.landing is None and not flight.readers:
            self._abandon(keep, flight)

    def wanted(self, id_: str) -> None:
        """Another process follows this flight."""
        flight = self._all.get(id_)
        if flight is None or self._shared is None or flight.key is None or not flight.led_here:
            return
        self._wanted[id_] = asyncio.get_running_loop().time()
        if flight.told is None and flight.open:
            shared, key, work = self._shared, flight.key.text, flight.work
            flight.told = lambda frames: shared.say(key, id_, _source(work), frames)
            if flight.begun:
                flight.told(flight.so_far())

    def purged(self, scope: Scope) -> None:
        """Something has been purged: what was begun before can no longer be joined."""
        for flight in list(self._open.values()):
            if flight.key is not None and scope.matches(flight.key.text, flight.documents):
                flight.close()


def _source(work: Work) -> Source:
    return Source(work.engine, work.fallback)
