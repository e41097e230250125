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

from router.core.cache.entry_filter import EntryFilter
from router.core.cache.key import CacheKey
from router.core.endpoints.request import InferenceRequest
from router.errors import internal_error
from router.flow.dispatch import Dispatcher
from router.flow.exchange import GenerationRecord
from router.flow.generation import StoreResponse, run_generation
from router.flow.inflight import InFlightRequest
from router.flow.outcome_codec import decode_result, encode_result
from router.flow.result import GenerationResult, lost_result
from router.net.redis.pipeline import RedisDownError
from router.shared.claim import LEASE_DURATION, Claim
from router.shared.inflight_leases import InFlightLeases, PendingClaim
from router.shared.purges import PurgePosition, Purges
from router.shared.stream_reader import FOLLOW_INTERVAL, LeaderLostError
from router.shared.stream_writer import Producer
from router.upstream.catalog import Engine

log = logging.getLogger("roundhouse.flights")

OnAbandon = Literal["cancel", "finish"]

UNSYNCED_JOIN_WINDOW: Final = 1.0
"""Seconds for which a flight can be joined while purges may pass unnoticed: a request that joins one begun before a
purge came within so many seconds after the purge."""

_FOLLOWER_TIMEOUT: Final = FOLLOW_INTERVAL + LEASE_DURATION + 0.5
"""Seconds without a message after which followers elsewhere are taken to have left: they wait a lease for a Redis that
does not answer them, and can say nothing meanwhile."""

_MAX_TAKEOVERS: Final = 3  # of one flight; each is of a leader that was lost within seconds of its claim


class Coalescer:
    """Leads flights, and finds those that can be joined.

    - Of one request, one flight at most can be joined in this process, and one is led among all.
    - A flight that its last reader leaves is cancelled at the engine after `abandon` seconds, or finished and stored,
      as `on_abandon` says. One that nobody else can join is cancelled at once.
    - What was purged can no longer be joined. While purges may pass unnoticed, only what has just begun can be.
    - What another process generates is taken over from it when it is lost and nobody has had anything of it.
    """

    def __init__(
        self, dispatcher: Dispatcher, *, on_abandon: OnAbandon, abandon_timeout: float, join_limit: int,
        record_generation: Callable[[GenerationRecord], None], max_abandoned: Mapping[str, int] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """`limit`: the bytes beyond which a flight takes no more readers; `landed` is told of each that is over.

        `most_abandoned`: by tenant, how many flights go on that nobody reads, where that is bounded.
        """
        self._max_abandoned = max_abandoned
        self._dispatcher = dispatcher
        self._on_abandon = on_abandon
        self._abandon_timeout = abandon_timeout
        self._join_limit = join_limit
        self._record_generation = record_generation
        self._leases: InFlightLeases | None = None
        self._purges: Purges | None = None
        self._joinable_by_digest: dict[str, InFlightRequest] = {}
        self._active_by_id: dict[str, InFlightRequest] = {}
        self._followed_at: dict[str, float] = {}
        self._cancel_timers: dict[str, asyncio.TimerHandle] = {}
        # No other process, restart or reload has the same, so no id is given twice.
        self._id_prefix = secrets.token_hex(8)
        self._last_number = 0
        self._synced = True
        self._alive: Callable[[], bool] = lambda: True
        self._synced_since = -inf

    def enable_sharing(self, leases: InFlightLeases, purges: Purges, alive: Callable[[], bool]) -> None:
        """From now on, flights are shared with other processes, which may purge what they are to give.

        `alive`: whether Redis has shown of late that it tells of purges; see Liveness.
        """
        self._leases, self._purges, self._alive = leases, purges, alive
        self._synced = False

    def find(self, key: CacheKey) -> InFlightRequest | None:
        """The flight that is to answer a request, if there is one that can be joined."""
        flight = self._joinable_by_digest.get(key.digest)
        if flight is None or (self._synced and self._alive()):
            return flight
        return flight if asyncio.get_running_loop().time() - flight.started_at < UNSYNCED_JOIN_WINDOW else None

    @property
    def has_followers(self) -> bool:
        """Whether other processes follow any flight, as far as is known."""
        return bool(self._followed_at)

    @property
    def active(self) -> bool:
        """Whether any flight is under way."""
        return bool(self._active_by_id)

    def start(
        self,
        request: InferenceRequest,
        key: CacheKey | None,
        record: GenerationRecord,
        order_engines: Callable[[], Sequence[Engine]],
        *,
        store_response: StoreResponse | None,
        documents: tuple[str, ...],
        purge_position: PurgePosition,
        replaced_entry_created: float | None = None,
    ) -> InFlightRequest:
        """Begins a flight; others can join it if it has a key, and it is stored if there is a `keep`.

        `engines`: gives those that are to be tried, once it is known that this process leads the flight.
        `seen`: when the entry was created that is stored already and is of no use, if there is one.
        """
        self._last_number += 1
        flight = InFlightRequest(
            f"{self._id_prefix}.{self._last_number}", request, key, record,
            documents=documents, purge_position=purge_position, join_limit=self._join_limit,
            on_no_subscribers=partial(self._on_no_subscribers, store_response), on_not_joinable=self._on_not_joinable,
        )  # fmt: skip
        self._active_by_id[flight.id] = flight
        if key is not None:
            self._joinable_by_digest[key.digest] = flight
        flight.task = asyncio.get_running_loop().create_task(
            self._run(flight, order_engines, store_response, self._request_claim(flight), replaced_entry_created)
        )
        flight.task.add_done_callback(partial(self._on_task_done, flight))
        return flight

    async def aclose(self) -> None:
        """Cancels what is still in the air."""
        tasks = [flight.task for flight in self._active_by_id.values() if flight.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- one flight -------------------------------------------------------------------------------------------------

    async def _run(
        self,
        inflight: InFlightRequest,
        order_engines: Callable[[], Sequence[Engine]],
        store_response: StoreResponse | None,
        pending_claim: PendingClaim | None,
        replaced_entry_created: float | None,
    ) -> None:
        landing = None
        try:
            claim = await self._await_claim(inflight, pending_claim, replaced_entry_created)
            for _ in range(_MAX_TAKEOVERS):
                if not isinstance(claim, Claim):
                    break
                landing = await self._follow(inflight, claim)
                if landing is not None:
                    break
                claim = await self._take_over(inflight, claim, replaced_entry_created)
            if claim == "stored":
                landing = GenerationResult(complete=False)
            elif landing is None:
                inflight.is_leader = True
                landing = await run_generation(self._dispatcher, inflight, order_engines(), store_response)
        except Exception:
            # The last line of defence: whoever waits must hear that nothing will come.
            log.exception("a flight failed")
            landing = GenerationResult(
                complete=False, error=internal_error(), error_reason="internal_error", had_data=inflight.has_data
            )
        finally:
            self._finish(inflight, landing)

    def _request_claim(self, inflight: InFlightRequest) -> PendingClaim | None:
        """Asks for the claim, at once: the question goes out with what others ask in this turn."""
        if self._leases is None or inflight.key is None:
            return None
        try:
            return self._leases.begin_claim(
                inflight.key.text, inflight.key.digest, inflight.id, inflight.purge_position
            )
        except RedisDownError:
            return None

    async def _await_claim(
        self, inflight: InFlightRequest, pending_claim: PendingClaim | None, replaced_entry_created: float | None
    ) -> Claim | Literal["stored"] | None:
        if self._leases is None or inflight.key is None or pending_claim is None:
            return None
        try:
            found = await self._leases.finish_claim(pending_claim, replaced_entry_created)
        except RedisDownError:
            return None
        return _without_collision(found, inflight.key)

    async def _follow(self, inflight: InFlightRequest, claim: Claim) -> GenerationResult | None:
        """Takes what another process generates. None where it is lost, or purged, and nobody has had anything of it."""
        assert self._leases is not None
        assert inflight.key is not None
        if await self._is_purged(inflight, claim.purge_position):
            return None
        inflight.is_leader = False
        try:
            async with contextlib.aclosing(self._leases.follow(inflight.key.text, claim)) as records:
                async for record in records:
                    if record.producer.engine is not None:
                        inflight.record.engine, inflight.record.fallback_model = (
                            record.producer.engine,
                            record.producer.fallback,
                        )
                    if record.frames:
                        inflight.publish(record.frames)
                    if record.outcome is not None:
                        return decode_result(inflight, record.outcome)
        except (LeaderLostError, RedisDownError, msgspec.DecodeError) as error:
            log.debug("a flight of another process is lost: %r", error)
        return lost_result() if inflight.has_data else None

    async def _is_purged(self, inflight: InFlightRequest, purge_position: PurgePosition) -> bool:
        """Whether a purge covers what began when the purges were known up to `since`."""
        assert self._purges is not None
        assert inflight.key is not None
        if not (self._synced and self._alive()):
            await self._purges.try_catch_up()
        return self._purges.covers(inflight.key.text, inflight.documents, purge_position)

    async def _take_over(
        self, inflight: InFlightRequest, claim: Claim, replaced_entry_created: float | None
    ) -> Claim | Literal["stored"] | None:
        """Claims what another process has claimed; see `_claim`."""
        assert self._leases is not None
        assert inflight.key is not None
        inflight.record.engine = inflight.record.fallback_model = None
        try:
            found = await self._leases.take_over(
                inflight.key.text, claim, inflight.id, inflight.purge_position, replaced_entry_created
            )
        except RedisDownError:
            return None
        return _without_collision(found, inflight.key)

    def _on_task_done(self, inflight: InFlightRequest, _: "asyncio.Task[None]") -> None:
        self._finish(inflight, None)  # a task that is cancelled before its first step never comes to its own end
        inflight.task = None
        if inflight.record.body_allocation is not None:
            inflight.record.body_allocation.release()

    def _finish(self, inflight: InFlightRequest, result: GenerationResult | None) -> None:
        if self._active_by_id.pop(inflight.id, None) is None:
            return
        result = result or lost_result()
        self._followed_at.pop(inflight.id, None)
        abandoned = self._cancel_timers.pop(inflight.id, None)
        if abandoned is not None:
            abandoned.cancel()
        if inflight.on_publish is not None:
            assert self._leases is not None
            assert inflight.key is not None
            self._leases.finish(
                inflight.key.text, inflight.id, _producer(inflight.record), encode_result(inflight, result)
            )
        inflight.finish(result)
        self._remove_joinable(inflight)
        # After the answer was stored: whoever comes next must find the one or the other. One that is not led here may
        # have a claim as well, if it was cancelled while it took that over.
        self._release_lease(inflight)
        if inflight.is_leader:
            self._record_generation(inflight.record)

    def _on_not_joinable(self, inflight: InFlightRequest) -> None:
        """It takes no more readers, here or elsewhere."""
        self._remove_joinable(inflight)
        self._release_lease(inflight)

    def _remove_joinable(self, inflight: InFlightRequest) -> None:
        if inflight.key is not None and self._joinable_by_digest.get(inflight.key.digest) is inflight:
            del self._joinable_by_digest[inflight.key.digest]

    def _release_lease(self, inflight: InFlightRequest) -> None:
        if self._leases is not None:
            self._leases.release(inflight.id)

    # -- who waits --------------------------------------------------------------------------------------------------

    def _on_no_subscribers(self, store_response: StoreResponse | None, inflight: InFlightRequest) -> None:
        """The last reader here has left."""
        assert inflight.task is not None
        begun = inflight.record.dispatched_at is not None  # what still waits for an engine has cost nothing
        if inflight.is_leader and begun and store_response is not None and self._on_abandon == "finish":
            return
        now = asyncio.get_running_loop().time()
        until = now + self._abandon_timeout if inflight.joinable and begun else now
        self._cancel_at(inflight, max(until, self._followed_until(inflight, now)), now)
        self._cancel_excess_abandoned(inflight.record.tenant, now)

    def _cancel_excess_abandoned(self, tenant: str, now: float) -> None:
        """Else a client that asks and leaves, again and again, would have more at the engines than its tenant may."""
        most = self._max_abandoned.get(tenant)
        if most is None:
            return
        abandoned = [
            flight
            for flight in map(self._active_by_id.__getitem__, self._cancel_timers)
            if flight.record.tenant == tenant
        ]
        unread = [flight for flight in abandoned if not flight.subscribers and flight.id not in self._followed_at]
        for flight in unread[: max(0, len(unread) - most)]:
            self._cancel_at(flight, now, now)

    def _followed_until(self, inflight: InFlightRequest, now: float) -> float:
        """When nobody elsewhere follows a flight any more, as far as this process can know."""
        wanted = self._followed_at.get(inflight.id)
        if wanted is None:
            return -inf
        # What followers say while this process does not listen is lost.
        last = max(wanted, self._synced_since) if self._synced else now
        return last + max(_FOLLOWER_TIMEOUT, self._abandon_timeout if inflight.joinable else 0.0)

    def _cancel_at(self, inflight: InFlightRequest, deadline: float, now: float) -> None:
        waiting = self._cancel_timers.pop(inflight.id, None)
        if waiting is not None:
            waiting.cancel()
        if deadline <= now:
            self._cancel(inflight)
        else:
            loop = asyncio.get_running_loop()
            self._cancel_timers[inflight.id] = loop.call_at(deadline, self._cancel_if_unused, inflight)

    def _cancel_if_unused(self, inflight: InFlightRequest) -> None:
        """Cancels a flight that nobody has come back for."""
        del self._cancel_timers[inflight.id]
        if not inflight.subscribers:
            now = asyncio.get_running_loop().time()
            self._cancel_at(inflight, self._followed_until(inflight, now), now)

    def _cancel(self, inflight: InFlightRequest) -> None:
        assert inflight.task is not None
        inflight.stop_joining()
        inflight.task.cancel()

    # -- what becomes known -----------------------------------------------------------------------------------------

    def on_remote_subscriber(self, id_: str) -> None:
        """Another process follows this flight."""
        flight = self._active_by_id.get(id_)
        if flight is None or self._leases is None or flight.key is None or not flight.is_leader:
            return
        self._followed_at[id_] = asyncio.get_running_loop().time()
        if flight.on_publish is None and flight.joinable:
            shared, key, work = self._leases, flight.key.text, flight.record
            flight.on_publish = lambda frames: shared.publish(key, id_, _producer(work), frames)
            flight.on_publish(flight.buffered_data())  # of one that has said nothing, that it lives

    def on_synced(self) -> None:
        """The purges are known, and each that follows will be."""
        self._synced, self._synced_since = True, asyncio.get_running_loop().time()

    def on_sync_lost(self) -> None:
        """From now on, purges may pass unnoticed, and followers unheard."""
        self._synced = False

    def on_purge(self, entry_filter: EntryFilter) -> None:
        """Something has been purged: what was begun before can no longer be joined."""
        for flight in list(self._joinable_by_digest.values()):
            if flight.key is not None and entry_filter.matches(flight.key.text, flight.documents):
                flight.stop_joining()


def _producer(record: GenerationRecord) -> Producer:
    return Producer(record.engine, record.fallback_model)


def _without_collision(claim: Claim | Literal["stored"] | None, key: CacheKey) -> Claim | Literal["stored"] | None:
    """What stands at a claim's place, unless it is the claim of another request whose key has the same hashes."""
    return None if isinstance(claim, Claim) and claim.digest != key.digest else claim
