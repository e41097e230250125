"""Handles Redis' notifications of changed keys.

Theory of operation. Notifications come over connections of their own (router.net.redis.listener); the changed data is
read through the pipeline. Either can fail without the other. So a change that was notified but could not be read is
read again once the pipeline is up. This process is in sync while it gets notifications and has read every change that
it missed. Only then it serves from the local cache and lets older in-flight requests be joined.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from router.core.cache.entry_filter import EntryFilter
from router.core.cache.miss_reason import SeenKeys
from router.core.cache.redis_keys import (
    ADAPTERS_KEY,
    ANNOUNCEMENTS_KEY,
    DRAINS_KEY,
    KEYS_RECORDS_KEY,
    PURGE_LOG_KEY,
    is_breaker_key,
    is_entry_key,
    is_flight_key,
)
from router.flow.attempts.admission import Admission
from router.flow.sharing.coalescer import Coalescer
from router.net.redis.pipeline import RedisDownError, RedisPipeline
from router.net.tasks import cancel_and_wait
from router.shared.cache.purges import PurgePosition, Purges
from router.shared.cache.retention import WorthRetention
from router.shared.credentials.stored_keys import StoredKeys
from router.shared.engines.announcements import Announcements
from router.shared.engines.breakers import Breakers
from router.shared.engines.drains import Drains
from router.shared.inflight.inflight_leases import InFlightLeases
from router.shared.prompts.prompt_link import RedisRecordLink
from router.shared.prompts.prompt_records import PROMPTS_CHANNEL, PromptRecords
from router.store.local_cache import LocalCache
from router.upstream.catalog import Catalog

log = logging.getLogger("roundhouse.redis")

_READ_RETRY_INTERVAL: Final = 0.1  # seconds


class KnownEntries(NamedTuple):
    """What this process knows of entries and of requests in flight; it holds only while notifications come."""

    local_cache: LocalCache
    seen_keys: SeenKeys
    coalescer: Coalescer
    purges: Purges
    leases: InFlightLeases
    retention: WorthRetention


class KnownRecords(NamedTuple):
    """What this process has read of the records that all routers apply."""

    stored_keys: StoredKeys
    drains: Drains
    announcements: Announcements
    breakers: Breakers


class PromptMessages(NamedTuple):
    """Messages between routers about the prompts in the engines' prefix caches."""

    records: PromptRecords
    link: RedisRecordLink


class InvalidationHandler:
    """Passes the listener's notifications to the objects that they concern; see listener.ListenerCallbacks."""

    def __init__(
        self, pipeline: RedisPipeline, entries: KnownEntries, records: KnownRecords, prompts: PromptMessages, *,
        on_adapters_changed: Callable[[], None],
    ) -> None:  # fmt: skip
        """`on_adapters_changed`: an administrator has loaded or unloaded an adapter, at any router."""
        self._pipeline = pipeline
        self._local_cache, self._seen_keys, self._coalescer, self._purges, self._leases, self._retention = entries
        self._stored_keys, self._drains, self._announcements, self._breakers = records
        self._prompt_records, self._record_link = prompts
        self._on_adapters_changed = on_adapters_changed
        self._connected = False
        self._needs_read = False  # something may have changed since it was last read
        self._read_task: asyncio.Task[None] | None = None
        self._announced = False  # an announcement has changed, and this process has not looked yet
        self._announcements_task: asyncio.Task[None] | None = None

    def on_connected(self) -> None:
        self._connected = True
        self._record_link.listening = True
        self._prompt_records.say_hello()
        self._schedule_read()  # changes may have been missed until now; the end of the read restores the sync

    def on_disconnected(self) -> None:
        self._connected = self._record_link.listening = False
        self._lose_sync()

    async def aclose(self) -> None:
        await cancel_and_wait(self._read_task, self._announcements_task)

    def on_keys_changed(self, keys: Sequence[bytes] | None) -> None:
        if keys is None:  # FLUSHALL or FLUSHDB
            self._local_cache.invalidate_all()
            self._seen_keys.clear()
            self._schedule_read()
            return
        entries = []
        for raw_key in keys:
            key = raw_key.decode("utf-8", "replace")
            if is_entry_key(key):
                entries.append(key)
                self._seen_keys.add_key(key)
                self._retention.record_change(key)
            else:
                self._on_control_key(key)
        self._local_cache.invalidate(entries)

    def _on_control_key(self, key: str) -> None:
        if key == PURGE_LOG_KEY:
            # Until the new record is read, an in-flight request that it purges could be joined.
            self._purges.listening = False
            self._coalescer.on_sync_lost()
            self._schedule_read()
        elif key in (DRAINS_KEY, KEYS_RECORDS_KEY):
            self._schedule_read()
        elif key == ANNOUNCEMENTS_KEY:
            self._schedule_announcements_read()
        elif key == ADAPTERS_KEY:
            self._on_adapters_changed()
        elif is_flight_key(key):
            self._leases.on_stream_changed(key)
        elif is_breaker_key(key):
            self._breakers.on_key_changed(key)

    def on_message(self, channel: bytes, payload: bytes) -> None:
        if channel == PROMPTS_CHANNEL.encode():
            self._prompt_records.on_message(payload)
        else:
            self._leases.on_message(payload)

    # -- reading keys, purges, drains and announcements ---------------------------------------------------------------

    def _schedule_read(self) -> None:
        self._needs_read = True
        if self._read_task is None or self._read_task.done():
            self._read_task = asyncio.get_running_loop().create_task(self._read_until_synced())

    async def _read_until_synced(self) -> None:
        while self._needs_read:
            self._needs_read = False  # before the read: a notification during the read causes another one
            try:
                await self._stored_keys.refresh()
                await self._purges.catch_up()
                await self._drains.refresh()
                await self._announcements.refresh()
                missed = not self._purges.loaded  # the log was lost, and Redis accepts no writes to start a new one
            except RedisDownError:
                missed = True
            if missed:
                log.debug("missed changes will be read when Redis is up again")
                self._needs_read = True
                self._lose_sync()
                # The wait for the pipeline is not enough: in a cluster it can be up while one server is down.
                await asyncio.sleep(_READ_RETRY_INTERVAL)
                await self._pipeline.wait_until_up()
        if self._connected and not self._purges.listening:
            self._purges.listening = True
            self._breakers.refresh()  # their notifications may have been missed as well
            self._local_cache.enable()
            self._coalescer.on_synced()

    def _schedule_announcements_read(self) -> None:
        # Apart from the others: launchers renew their announcements every few seconds, and that changes nothing else.
        self._announced = True
        if self._announcements_task is None or self._announcements_task.done():
            self._announcements_task = asyncio.get_running_loop().create_task(self._read_announcements())

    async def _read_announcements(self) -> None:
        while self._announced:
            self._announced = False  # before the read, as above
            # A failure needs no retry: they are read every two seconds, and when a connection is back.
            await self._announcements.try_apply_change()

    def _lose_sync(self) -> None:
        """Turns off, until everything missed is read, the local cache and joining in-flight requests of some age."""
        self._purges.listening = False
        self._local_cache.disable()
        self._coalescer.on_sync_lost()


def on_purge(
    coalescer: Coalescer, seen_keys: SeenKeys, local_cache: LocalCache, entry_filter: EntryFilter,
    position: PurgePosition,
) -> None:  # fmt: skip
    """`position`: that of the purge."""
    coalescer.on_purge(entry_filter)
    local_cache.on_purge()
    seen_keys.on_purge(position)


def on_drains(catalog: Catalog, admission: Admission, names: Collection[str]) -> None:
    """`names`: the engines that are drained from now on."""
    catalog.set_drained(names)
    admission.recheck()  # requests that wait for a drained engine leave the queue, those for a resumed one may start
