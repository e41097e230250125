"""All in-flight requests of this process: starting, joining, following, and cancelling those without subscribers.

Each in-flight request (singleflight) has one task. The task generates at an engine, or, if another process holds the
lease, reads what that process writes to Redis. So subscribers need not know where the response comes from, and an
in-flight request outlives the client that started it.
"""

import asyncio
import logging
import secrets
from functools import partial
from typing import Final

from router.core.cache.cache_key import CacheKey
from router.core.cache.entry_filter import EntryFilter
from router.errors import internal_error
from router.flow.result import GenerationResult, lost_result
from router.flow.sharing.abandonment import Abandonment
from router.flow.sharing.generation_rules import GenerationRules
from router.flow.sharing.inflight import InFlightRequest
from router.flow.sharing.leadership import Leadership
from router.flow.sharing.new_generation import NewGeneration
from router.shared.cache.purges import BEGINNING, Purges
from router.shared.inflight.claims import PendingClaim
from router.shared.inflight.inflight_leases import InFlightLeases

log = logging.getLogger("roundhouse.flights")

UNSYNCED_JOIN_WINDOW: Final = 1.0
"""Seconds after its start in which an in-flight request can be joined while this process may miss purges. A request
that gets a response generated before a purge then arrived at most this many seconds after the purge."""


class Coalescer:
    """Starts in-flight requests and finds the ones that can be joined.

    - For each key, this process has at most one joinable in-flight request. For its leader in all processes together,
      see Leadership.
    - An in-flight request that nobody uses is cancelled, or finished and stored; see Abandonment.
    - A purged in-flight request cannot be joined. While this process may miss purges, only new ones can be joined.
    """

    def __init__(self) -> None:
        self._abandonment = Abandonment()
        self._leadership: Leadership | None = None
        self._purges: Purges | None = None
        self._joinable_by_digest: dict[str, InFlightRequest] = {}
        self._active_by_id: dict[str, InFlightRequest] = {}
        # Unique to this process and this Redis. With numbers alone, two processes wrote to the same stream (streams
        # live for 30 seconds), and a follower could read another generation's records.
        self._id_prefix = secrets.token_hex(8)
        self._last_number = 0

    def enable_sharing(self, leases: InFlightLeases, purges: Purges) -> None:
        """Shares in-flight requests with other processes from now on. They may also purge."""
        self._leadership, self._purges = Leadership(leases, purges), purges

    def find(self, key: CacheKey) -> InFlightRequest | None:
        inflight = self._joinable_by_digest.get(key.digest)
        if inflight is None or self._purges is None or self._purges.up_to_date:
            return inflight
        # It may have been purged without notice. Concurrent equal requests still share one generation for a moment.
        return inflight if asyncio.get_running_loop().time() - inflight.started_at < UNSYNCED_JOIN_WINDOW else None

    @property
    def has_followers(self) -> bool:
        return self._abandonment.has_followers

    def start(self, new: NewGeneration, rules: GenerationRules, key: CacheKey | None) -> InFlightRequest:
        """Starts an in-flight request, which is joinable if it has a key."""
        rules.running += 1
        self._last_number += 1
        inflight = InFlightRequest(
            f"{self._id_prefix}.{self._last_number}", key, new,
            purge_position=self._purges.last_position if self._purges is not None else BEGINNING,
            join_limit=rules.join_limit,
            on_not_joinable=self._on_not_joinable,
            on_no_subscribers=partial(
                self._abandonment.on_no_subscribers,
                rules=rules.abandon,
                stores_response=new.store_response is not None,
            ),
        )  # fmt: skip
        self._active_by_id[inflight.id] = inflight
        if key is not None:
            self._joinable_by_digest[key.digest] = inflight
        # The claim goes out here rather than in the task's first step: it then shares the Redis batch of this event
        # loop iteration, and the first token comes two iterations earlier.
        pending_claim = self._leadership.request_claim(inflight) if self._leadership is not None else None
        inflight.task = asyncio.get_running_loop().create_task(self._run(inflight, new, rules, pending_claim))
        inflight.task.add_done_callback(partial(self._on_task_done, inflight, new, rules))
        return inflight

    async def aclose(self) -> None:
        tasks = [inflight.task for inflight in self._active_by_id.values() if inflight.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- the task of an in-flight request -----------------------------------------------------------------------------

    async def _run(
        self, inflight: InFlightRequest, new: NewGeneration, rules: GenerationRules, pending_claim: PendingClaim | None
    ) -> None:
        result = None
        try:
            if self._leadership is not None and pending_claim is not None:
                result = await self._leadership.wait_for_other_leader(
                    inflight, pending_claim, new.replaced_entry_created
                )
            if result is None:
                inflight.is_leader = True
                result = await rules.generations.run(inflight, new)
        except Exception:
            # The last line of defence: without a result, the subscribers would wait forever.
            log.exception("an in-flight request failed")
            result = GenerationResult(
                complete=False, error=internal_error(), error_reason="internal_error", had_data=inflight.has_data
            )
        finally:
            self._finish(inflight, rules, result)

    def _on_task_done(
        self, inflight: InFlightRequest, new: NewGeneration, rules: GenerationRules, _: "asyncio.Task[None]"
    ) -> None:
        # A task that is cancelled before its first step never reaches its `finally`. Otherwise this does nothing.
        self._finish(inflight, rules, None)
        inflight.task = None
        if new.body_allocation is not None:
            new.body_allocation.release()

    def _finish(self, inflight: InFlightRequest, rules: GenerationRules, result: GenerationResult | None) -> None:
        if self._active_by_id.pop(inflight.id, None) is None:  # `_on_task_done` calls it again
            return
        rules.running -= 1
        result = result or lost_result()
        self._abandonment.forget(inflight)
        if self._leadership is not None:
            self._leadership.publish_result(inflight, result)
        inflight.finish(result)
        self._remove_joinable(inflight)
        # After the response was stored: a new request must find either the entry or the claim. A follower can hold a
        # claim as well, if it was cancelled during a takeover.
        self._release_lease(inflight)
        if inflight.is_leader:  # else the leader's process records it
            rules.record_generation(inflight)

    def _on_not_joinable(self, inflight: InFlightRequest) -> None:
        self._remove_joinable(inflight)
        self._release_lease(inflight)  # so that no other process starts to follow it

    def _remove_joinable(self, inflight: InFlightRequest) -> None:
        if inflight.key is None:
            return
        digest = inflight.key.digest
        # Its key may already stand for a later in-flight request.
        if self._joinable_by_digest.get(digest) is inflight:
            del self._joinable_by_digest[digest]

    def _release_lease(self, inflight: InFlightRequest) -> None:
        if self._leadership is not None:
            self._leadership.release(inflight)

    # -- notifications ------------------------------------------------------------------------------------------------

    def on_remote_subscriber(self, id_: str) -> None:
        """Another process follows the in-flight request `id_`. Its stream in Redis begins with the first such call."""
        inflight = self._active_by_id.get(id_)
        if inflight is None or inflight.key is None or self._leadership is None or not inflight.is_leader:
            return
        self._abandonment.on_follower(inflight)
        # One that is not joinable is too large or purged, and may not have its first frames any more.
        if inflight.on_publish is None and inflight.joinable:
            self._leadership.publish_to_followers(inflight)

    def on_synced(self) -> None:
        """All purges so far are known, and this process gets notified of later ones, and by followers."""
        self._abandonment.on_synced()

    def on_sync_lost(self) -> None:
        """From now on, this process may miss purges and followers' messages."""
        self._abandonment.on_sync_lost()

    def on_purge(self, entry_filter: EntryFilter) -> None:
        """Makes the matching in-flight requests not joinable; their subscribers still get them to the end."""
        for inflight in list(self._joinable_by_digest.values()):
            if inflight.key is not None and entry_filter.matches(inflight.key.text, inflight.documents):
                inflight.stop_joining()
