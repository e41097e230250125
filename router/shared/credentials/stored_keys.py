"""The API keys in Redis, as this process knows them; see key_records for what Redis has.

Theory of operation. All keys are in memory, so a request costs no command, and known keys work while Redis is down.
Redis reports a change of the records to every process, which reads them and then publishes the version that it applies.
So whoever revokes a key can wait until every process refuses it. A notification can be lost with its connection;
therefore the version is also compared when the listener connects, and every PRESENCE_INTERVAL.

Records that Redis has lost (it was emptied, has evicted the key, or a failover went back) are written again. Revoked
ones too, so that no process that has missed a revocation can bring the key back.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

from router.core.api_keys import KeyRecord, merge_records
from router.net.redis.errors import RedisBackendError
from router.net.redis.pipeline import RedisDownError, RedisPipeline, Replies
from router.shared.credentials.key_records import (
    PRESENCE_INTERVAL,
    Presence,
    decode_records,
    decode_version,
    merge_commands,
    presence_commands,
    read_records_command,
    read_version_command,
    used_commands,
    withdraw_command,
)

log = logging.getLogger("roundhouse.keys")

MAX_USED: Final = 20_000
"""Keys whose last use is remembered until Redis has it."""

_UNKNOWN_VERSION: Final = -1  # makes the next refresh read the records


class StoredKeys:
    """The records of the keys in Redis, and the times of last use of all keys.

    - `on_change` is called with all records whenever they have changed, revoked and expired ones included; for the
      first time once Redis was read, with none if it has none.
    - What is known stays known while Redis is down or was emptied; see merge_records.
    - While it is not `enabled`, nothing is read or known. While it does not publish, no revocation waits for it.
    - `record_use` never waits; Redis has the time PRESENCE_INTERVAL later at the latest, or once it is up again.
    """

    def __init__(
        self,
        pipeline: RedisPipeline,
        on_change: Callable[[Collection[KeyRecord]], None],
        *,
        clock: Callable[[], float],
        take_used: Callable[[], list[str]] = list,
        enabled: bool = True,
        publishes: bool = True,
    ) -> None:
        """`clock`: Redis' clock. `take_used` returns the ids of the tenants' keys used since its last call."""
        self._pipeline = pipeline
        self._on_change = on_change
        self._clock = clock
        self._take_used = take_used
        self._enabled = enabled
        self._publishes = publishes
        self._process = secrets.token_hex(8)
        self._version = _UNKNOWN_VERSION
        self._records: dict[str, KeyRecord] = {}
        self._used: dict[str, int] = {}
        self._unreadable = False
        self._withdrawn = False
        self.loaded = False

    @property
    def records(self) -> Collection[KeyRecord]:
        """Those that `on_change` was called with last."""
        return self._records.values()

    async def configure(self, *, enabled: bool, publishes: bool) -> None:
        """Returns once the keys are read again, if Redis answers."""
        if not (enabled and publishes):
            self._withdraw()
        if not (enabled and self._enabled):  # what was not read for a while is not known: a key may have been revoked
            self._records, self.loaded = {}, False
        self._enabled, self._publishes, self._version = enabled, publishes, _UNKNOWN_VERSION
        await self.try_refresh()

    # -- the records --------------------------------------------------------------------------------------------------

    async def try_refresh(self) -> None:
        try:
            await self.refresh()
        except RedisDownError:
            log.debug("Redis is down: the API keys stay as last read")

    async def refresh(self) -> None:
        """Reads the records if their version has changed. Raises RedisDownError."""
        if not self._enabled:
            return
        (version,) = await self._pipeline.execute(read_version_command())
        if self._is_readable(version) and not (self.loaded and decode_version(version) == self._version):
            await self._read()

    async def _read(self) -> None:
        (reply,) = await self._pipeline.execute(read_records_command())
        if not self._is_readable(reply):
            return
        stored = self._pipeline.decode(decode_records, reply)
        merged, lost = merge_records(self._records, stored.by_id, self._clock())
        self._apply(merged, _UNKNOWN_VERSION if lost else stored.version)
        if lost:
            log.warning("Redis has lost the records of %d API keys; writing them again", len(lost))
            # The records get a later version, which every process, this one too, is notified of.
            self._pipeline.send(*merge_commands(lost, stored.version))
        self._publish_presence()

    def _is_readable(self, reply: Any) -> bool:
        """False for a value of another type at our key, or without the permission to read it."""
        if isinstance(reply, RedisBackendError):  # the server of a cluster that holds the key is down
            raise RedisDownError
        was_unreadable, self._unreadable = self._unreadable, isinstance(reply, Exception)
        if self._unreadable and not was_unreadable:
            log.warning("cannot read the API keys in Redis: %s", reply)
        return not self._unreadable

    def _apply(self, records: dict[str, KeyRecord], version: int) -> None:
        has_changed = records != self._records or not self.loaded
        self._records, self._version, self.loaded = records, version, True
        if has_changed:
            self._on_change(records.values())

    # -- presence and use ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            await self.try_refresh()
            with contextlib.suppress(RedisDownError):
                self._publish_presence()
            self.flush_used()
            await asyncio.sleep(PRESENCE_INTERVAL)

    def _publish_presence(self) -> None:
        if self._enabled and self._publishes and self._version >= 0 and self.loaded and not self._withdrawn:
            presence = Presence(host=socket.gethostname(), pid=os.getpid(), version=self._version, at=self._clock())
            self._pipeline.send(*presence_commands(self._process, presence))

    def withdraw(self) -> None:
        """The process ends: no revocation waits for it any more."""
        self._withdrawn = True
        self._withdraw()

    def _withdraw(self) -> None:
        with contextlib.suppress(RedisDownError):
            if self._enabled and self._publishes:
                self._pipeline.send(withdraw_command(self._process))

    def record_use(self, key_id: str) -> None:
        if key_id in self._used or len(self._used) < MAX_USED:
            self._used[key_id] = int(self._clock())

    def flush_used(self) -> None:
        for key_id in self._take_used():
            self.record_use(key_id)
        used, self._used = self._used, {}
        if not used:
            return
        try:
            self._pipeline.send(*used_commands(used), on_reply=partial(self._on_used_reply, used))
        except RedisDownError:
            self._used = used

    def _on_used_reply(self, used: dict[str, int], replies: Replies | None) -> None:
        if replies is None:  # Redis went down; a time that it has already does no harm
            self._used = used | self._used
