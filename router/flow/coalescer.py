"""All in-flight requests of this process: starting, joining, following, and cancelling those without subscribers.

Each in-flight request (singleflight) has one task. The task generates at an engine, or, if another process holds the
lease, reads what that process writes to Redis. So subscribers need not know where the response comes from, and an
in-flight request outlives the client that started it.
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
from router.core.endpoints.endpoint import InferenceRequest
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
"""Seconds after its start in which an in-flight request can be joined while this process may miss purges. A request
that gets a response generated before a purge then arrived at most this many seconds after the purge."""

_FOLLOWER_TIMEOUT: Final = FOLLOW_INTERVAL + LEASE_DURATION + 0.5
"""Seconds without a message after which a follower counts as gone. A follower sends one message per interval, but while
Redis does not answer it, it waits up to a lease and can send nothing. The half second is slack."""

# Each takeover replaces a leader that was lost within seconds of its claim. After the last one, this process generates
# without a lease instead of waiting for yet another leader.
_MAX_TAKEOVERS: Final = 3


class Coalescer:
    """Starts in-flight requests and finds the ones that can be joined.

    - For each key, this process has at most one joinable in-flight request, and all processes together have one leader.
    - An in-flight request without subscribers is cancelled after `abandon_timeout` seconds, or finished and stored, as
      `on_abandon` says. One that no other request can join is cancelled at once.
    - A purged in-flight request cannot be joined. While this process may miss purges, only new ones can be joined.
    - A lost leader's generation is taken over if no subscriber here has received any of it.
    """

    def __init__(
        self, dispatcher: Dispatcher, *, on_abandon: OnAbandon, abandon_timeout: float, join_limit: int,
        record_generation: Callable[[GenerationRecord], None], max_abandoned: Mapping[str, int] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """`join_limit`: bytes beyond which an in-flight request accepts no more subscribers.

        `record_generation` is called when a generation that this process led ends. `max_abandoned`: by tenant, how many
        in-flight requests continue without subscribers; a tenant that is not in it has no bound.
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
        self._followed_at: dict[str, float] = {}  # when a follower's last message came, by id
        self._cancel_timers: dict[str, asyncio.TimerHandle] = {}
        # Unique to this process and this reload. With numbers alone, two processes wrote to the same stream (streams
        # live for 30 seconds), and a follower could read another generation's records.
        self._id_prefix = secrets.token_hex(8)
        self._last_number = 0
        self._synced = True
        self._alive: Callable[[], bool] = lambda: True
        self._synced_since = -inf

    def enable_sharing(self, leases: InFlightLeases, purges: Purges, alive: Callable[[], bool]) -> None:
        """Shares in-flight requests with other processes from now on.

        `alive`: whether Redis has recently shown that its notifications arrive; see Liveness.
        """
        self._leases, self._purges, self._alive = leases, purges, alive
        self._synced = False  # until the first `on_synced`: other processes may purge from now on

    def find(self, key: CacheKey) -> InFlightRequest | None:
        inflight = self._joinable_by_digest.get(key.digest)
        if inflight is None or (self._synced and self._alive()):
            return inflight
        # It may have been purged without notice. Concurrent equal requests still share one generation for a moment.
        return inflight if asyncio.get_running_loop().time() - inflight.started_at < UNSYNCED_JOIN_WINDOW else None

    @property
    def has_followers(self) -> bool:
        return bool(self._followed_at)

    @property
    def active(self) -> bool:
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
        """Starts an in-flight request. It is joinable if it has a key, and stored if there is a `store_response`.

        `order_engines` is called once this process is known to be the leader, and returns the engines to try.
        `replaced_entry_created`: creation time of the stored entry that cannot be served and may be replaced, if any.
        """
        self._last_number += 1
        inflight = InFlightRequest(
            f"{self._id_prefix}.{self._last_number}", request, key, record,
            documents=documents, purge_position=purge_position, join_limit=self._join_limit,
            on_no_subscribers=partial(self._on_no_subscribers, store_response), on_not_joinable=self._on_not_joinable,
        )  # fmt: skip
        self._active_by_id[inflight.id] = inflight
        if key is not None:
            self._joinable_by_digest[key.digest] = inflight
        # The claim goes out here rather than in the task's first step: it then shares the Redis batch of this event
        # loop iteration, and the first token comes two iterations earlier.
        inflight.task = asyncio.get_running_loop().create_task(
            self._run(inflight, order_engines, store_response, self._request_claim(inflight), replaced_entry_created)
        )
        inflight.task.add_done_callback(partial(self._on_task_done, inflight))
        return inflight

    async def aclose(self) -> None:
        tasks = [inflight.task for inflight in self._active_by_id.values() if inflight.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- the task of an in-flight request -----------------------------------------------------------------------------

    async def _run(
        self,
        inflight: InFlightRequest,
        order_engines: Callable[[], Sequence[Engine]],
        store_response: StoreResponse | None,
        pending_claim: PendingClaim | None,
        replaced_entry_created: float | None,
    ) -> None:
        result = None
        try:
            claim = await self._await_claim(inflight, pending_claim, replaced_entry_created)
            for _ in range(_MAX_TAKEOVERS):
                if not isinstance(claim, Claim):  # it is ours, stored already, or there is no lease
                    break
                result = await self._follow(inflight, claim)
                if result is not None:
                    break
                claim = await self._take_over(inflight, claim, replaced_entry_created)
            if claim == "stored":
                result = GenerationResult(complete=False)  # without an error: subscribers retry and find the entry
            elif result is None:
                inflight.is_leader = True
                result = await run_generation(self._dispatcher, inflight, order_engines(), store_response)
        except Exception:
            # The last line of defence: without a result, the subscribers would wait forever.
            log.exception("an in-flight request failed")
            result = GenerationResult(
                complete=False, error=internal_error(), error_reason="internal_error", had_data=inflight.has_data
            )
        finally:
            self._finish(inflight, result)

    def _request_claim(self, inflight: InFlightRequest) -> PendingClaim | None:
        """Sends the claim now, in the batch of this event loop iteration. None: no lease is used."""
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
            claim = await self._leases.finish_claim(pending_claim, replaced_entry_created)
        except RedisDownError:
            return None
        return _without_collision(claim, inflight.key)

    async def _follow(self, inflight: InFlightRequest, claim: Claim) -> GenerationResult | None:
        """Receives what another process generates.

        None if that is lost or purged and no subscriber here has received any of it, so that another leader can start.
        """
        assert self._leases is not None
        assert inflight.key is not None
        # The claim says which purges its leader knew at the start; this process may know a later one.
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
                        return decode_result(record.outcome)
        except (LeaderLostError, RedisDownError, msgspec.DecodeError) as error:
            log.debug("lost the leader of an in-flight request: %r", error)
        # A stream that has begun cannot continue with another generation's text.
        return lost_result() if inflight.has_data else None

    async def _is_purged(self, inflight: InFlightRequest, purge_position: PurgePosition) -> bool:
        assert self._purges is not None
        assert inflight.key is not None
        if not (self._synced and self._alive()):  # purges may have been missed, so read the log first
            await self._purges.try_catch_up()
        return self._purges.covers(inflight.key.text, inflight.documents, purge_position)

    async def _take_over(
        self, inflight: InFlightRequest, claim: Claim, replaced_entry_created: float | None
    ) -> Claim | Literal["stored"] | None:
        """Takes over another process' claim. Returns as `_await_claim`: None if this process now leads."""
        assert self._leases is not None
        assert inflight.key is not None
        inflight.record.engine = inflight.record.fallback_model = None  # they were the lost leader's
        try:
            new_claim = await self._leases.take_over(
                inflight.key.text, claim, inflight.id, inflight.purge_position, replaced_entry_created
            )
        except RedisDownError:
            return None
        return _without_collision(new_claim, inflight.key)

    def _on_task_done(self, inflight: InFlightRequest, _: "asyncio.Task[None]") -> None:
        # A task that is cancelled before its first step never reaches its `finally`. Otherwise this does nothing.
        self._finish(inflight, None)
        inflight.task = None
        if inflight.record.body_allocation is not None:
            inflight.record.body_allocation.release()

    def _finish(self, inflight: InFlightRequest, result: GenerationResult | None) -> None:
        if self._active_by_id.pop(inflight.id, None) is None:  # `_on_task_done` calls it again
            return
        result = result or lost_result()
        self._followed_at.pop(inflight.id, None)
        cancel_timer = self._cancel_timers.pop(inflight.id, None)
        if cancel_timer is not None:
            cancel_timer.cancel()
        if inflight.on_publish is not None:
            assert self._leases is not None
            assert inflight.key is not None
            outcome = encode_result(result, engine=inflight.record.engine)
            self._leases.finish(inflight.key.text, inflight.id, _producer(inflight.record), outcome)
        inflight.finish(result)
        self._remove_joinable(inflight)
        # After the response was stored: a new request must find either the entry or the claim. A follower can hold a
        # claim as well, if it was cancelled during a takeover.
        self._release_lease(inflight)
        if inflight.is_leader:  # else the leader's process records it
            self._record_generation(inflight.record)

    def _on_not_joinable(self, inflight: InFlightRequest) -> None:
        self._remove_joinable(inflight)
        self._release_lease(inflight)  # so that no other process starts to follow it

    def _remove_joinable(self, inflight: InFlightRequest) -> None:
        # Its key may already stand for a later in-flight request.
        if inflight.key is not None and self._joinable_by_digest.get(inflight.key.digest) is inflight:
            del self._joinable_by_digest[inflight.key.digest]

    def _release_lease(self, inflight: InFlightRequest) -> None:
        if self._leases is not None:
            self._leases.release(inflight.id)

    # -- in-flight requests without subscribers -----------------------------------------------------------------------

    def _on_no_subscribers(self, store_response: StoreResponse | None, inflight: InFlightRequest) -> None:
        assert inflight.task is not None
        dispatched = inflight.record.dispatched_at is not None  # before the dispatch, a generation has cost nothing
        if inflight.is_leader and dispatched and store_response is not None and self._on_abandon == "finish":
            return
        now = asyncio.get_running_loop().time()
        # The timeout gives a client whose connection broke time to come back; it has to join, so only if joinable.
        deadline = now + self._abandon_timeout if inflight.joinable and dispatched else now
        self._cancel_at(inflight, max(deadline, self._followed_until(inflight, now)), now)
        self._cancel_excess_abandoned(inflight.record.tenant, now)

    def _cancel_excess_abandoned(self, tenant: str, now: float) -> None:
        """Cancels the tenant's oldest abandoned generations beyond its bound.

        Otherwise a client that sends requests and disconnects in a loop would exceed its tenant's concurrency limit.
        """
        limit = self._max_abandoned.get(tenant)
        if limit is None:
            return
        # `_cancel_timers` has them in the order in which they were abandoned.
        abandoned = [
            inflight
            for inflight in map(self._active_by_id.__getitem__, self._cancel_timers)
            if inflight.record.tenant == tenant
        ]
        unused = [
            inflight for inflight in abandoned if not inflight.subscribers and inflight.id not in self._followed_at
        ]
        for inflight in unused[: max(0, len(unused) - limit)]:
            self._cancel_at(inflight, now, now)

    def _followed_until(self, inflight: InFlightRequest, now: float) -> float:
        """The loop time until which other processes may follow it, as far as this process knows; -inf if none does."""
        followed_at = self._followed_at.get(inflight.id)
        if followed_at is None:
            return -inf
        # Followers' messages that come while this process does not listen are lost. So silence counts from the moment
        # at which it listens again, and not at all until then.
        last = max(followed_at, self._synced_since) if self._synced else now
        return last + max(_FOLLOWER_TIMEOUT, self._abandon_timeout if inflight.joinable else 0.0)

    def _cancel_at(self, inflight: InFlightRequest, deadline: float, now: float) -> None:
        timer = self._cancel_timers.pop(inflight.id, None)
        if timer is not None:
            timer.cancel()
        if deadline <= now:
            self._cancel(inflight)
        else:
            loop = asyncio.get_running_loop()
            self._cancel_timers[inflight.id] = loop.call_at(deadline, self._cancel_if_unused, inflight)

    def _cancel_if_unused(self, inflight: InFlightRequest) -> None:
        del self._cancel_timers[inflight.id]
        if not inflight.subscribers:  # followers may have sent messages meanwhile, which extend the deadline
            now = asyncio.get_running_loop().time()
            self._cancel_at(inflight, self._followed_until(inflight, now), now)

    def _cancel(self, inflight: InFlightRequest) -> None:
        assert inflight.task is not None
        inflight.stop_joining()  # first: the task ends only later, and a new request must not join it meanwhile
        inflight.task.cancel()

    # -- notifications ------------------------------------------------------------------------------------------------

    def on_remote_subscriber(self, id_: str) -> None:
        """Another process follows the in-flight request `id_`. Its stream in Redis begins with the first such call."""
        inflight = self._active_by_id.get(id_)
        if inflight is None or self._leases is None or inflight.key is None or not inflight.is_leader:
            return
        self._followed_at[id_] = asyncio.get_running_loop().time()
        # One that is not joinable is too large or purged, and may not have its first frames any more.
        if inflight.on_publish is None and inflight.joinable:
            leases, key, record = self._leases, inflight.key.text, inflight.record
            inflight.on_publish = lambda frames: leases.publish(key, id_, _producer(record), frames)
            # Even if that is empty: the first record tells the follower that the leader is alive.
            inflight.on_publish(inflight.buffered_data())

    def on_synced(self) -> None:
        """All purges so far are known, and this process gets notified of later ones."""
        self._synced, self._synced_since = True, asyncio.get_running_loop().time()

    def on_sync_lost(self) -> None:
        """From now on, this process may miss purges and followers' messages."""
        self._synced = False

    def on_purge(self, entry_filter: EntryFilter) -> None:
        """Makes the matching in-flight requests not joinable; their subscribers still get them to the end."""
        for inflight in list(self._joinable_by_digest.values()):
            if inflight.key is not None and entry_filter.matches(inflight.key.text, inflight.documents):
                inflight.stop_joining()


def _producer(record: GenerationRecord) -> Producer:
    return Producer(record.engine, record.fallback_model)


def _without_collision(claim: Claim | Literal["stored"] | None, key: CacheKey) -> Claim | Literal["stored"] | None:
    """The claim, or None if it belongs to another request whose key has the same hashes: do not follow that one."""
    return None if isinstance(claim, Claim) and claim.digest != key.digest else claim
