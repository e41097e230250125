"""The purge log: how every router process learns of purges.

Theory of operation. A purge first adds a record with its filter to a stream in Redis, the log, and then deletes the
entries. A response whose generation began before the purge may be stored after it. So every generation notes the last
record that its process knew when it began (its purge position), and its response is not stored if the log has a later
purge that covers it. An entry carries the position that its writer had checked. The writer reads the log again after
the write, and deletes the entry if a later purge covers it. The reply to that read may be lost, and the writer may die
before it arrives. So a reader, too, checks an entry's position against the purges that it knows.

This relies on record ids that only grow. Redis loses the log when it is emptied, and the end of the log in a failover.
If the server's clock is behind, new records then get ids below the lost ones. So each read of the log begins at the
last known record. If that record is gone, records were lost, and perhaps purges that no process knows of any more. From
then on everything whose generation began, or that was stored, before counts as purged. A log is never empty: a router
that finds none begins one. Therefore an entry whose position is below the first record, or above the last, belongs to a
log that is gone.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from router.core.cache.entry_filter import EntryFilter
from router.core.cache.purge_index import BEGINNING as BEGINNING
from router.core.cache.purge_index import PurgeIndex
from router.core.cache.purge_index import PurgePosition as PurgePosition
from router.core.cache.redis_keys import PURGE_LOG_KEY
from router.net.redis.commands import Command, EncodedAfterPrevious, EncodedCommand, encode_command
from router.net.redis.errors import RedisBackendError, UnexpectedReplyError
from router.net.redis.pipeline import RedisDownError, RedisPipeline
from router.net.redis.replies import stream_records

log = logging.getLogger("roundhouse.purges")

MAX_PURGES: Final = 10_000
"""Records that the log and each process keep."""

_ALL_ENTRIES: Final = EntryFilter(all=True)
_BEYOND_LAST: Final[PurgePosition] = (1 << 64, 0)  # Redis' ids have 64 bits, so every position is below this one
_PAGE: Final = 1000  # records in one reply

PurgeLogRecord = tuple[PurgePosition, Any]


def log_start_command() -> Command:
    """Adds the first record of a log, which is not a purge."""
    return ("XADD", PURGE_LOG_KEY, "*", "log", "begins", *nonce_field())


def nonce_field() -> tuple[str, str]:
    """A field with a random value, which distinguishes records of different logs that have the same id."""
    return "nonce", secrets.token_hex(6)


class PurgeFetch(NamedTuple):
    """A read of the log from `since` on. `epoch`: how often this process had lost the log when it was made."""

    command: EncodedCommand
    since: PurgePosition
    epoch: int


class Purges:
    """The purges that this process knows of.

    - `last_position`: the position of the last record. What begins now begins after it.
    - `loaded`: whether the log has been read. Until then, everything counts as purged.
    - `listening`: whether Redis pushes each change of the log. While it does not, a reader calls `catch_up` first.
    - `on_purge` is called once with each new purge, and with a filter for all entries when records were lost.
    """

    def __init__(
        self, pipeline: RedisPipeline, on_purge: Callable[[EntryFilter], None] = lambda _: None, *,
        alive: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        """`alive`: whether pushes arrive without delay; see Liveness."""
        self._alive = alive
        self._pipeline = pipeline
        self._on_purge = on_purge
        self._index = PurgeIndex(MAX_PURGES)
        self._first_position = _BEYOND_LAST
        self._last_fields: Any = None
        self._epoch = 0
        self._load_lock = asyncio.Lock()
        self._reload_task: asyncio.Task[bool] | None = None
        self.last_position = BEGINNING
        self.loaded = False
        self.listening = False
        self._next_fetch = PurgeFetch(b"", _BEYOND_LAST, 0)
        self._last_page: tuple[PurgeFetch, Any] = (self._next_fetch, None)  # the last fetch with a complete reply

    @property
    def up_to_date(self) -> bool:
        """Whether all purges are known, except those whose push may still be on its way."""
        return self.listening and self.loaded and self._alive()

    # -- the log ------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Reads the whole log, and begins one if there is none. Raises RedisDownError."""
        async with self._load_lock:
            if self.loaded:
                return
            records = await self._read_log()
            if records is None:  # a value of another type at our key, or no permission to read it
                # Without a readable log nothing counts as purged, and the cache works without it.
                self._first_position, self.loaded = BEGINNING, True
                return
            if self._needs_loss_record(records):
                await self._append_loss_record(records)
                records = await self._read_log() or []
            # Positions may not go back: entries and generations carry positions of the log as it was before.
            last = records[-1][0] if records else BEGINNING
            if last < self.last_position:
                log.debug("the purge log cannot be continued yet; nothing is stored until then")
                return
            self._rebuild_index(records)

    def _rebuild_index(self, records: list[PurgeLogRecord]) -> None:
        self._index = PurgeIndex(MAX_PURGES)
        self._first_position = records[0][0] if records else BEGINNING
        for position, fields in records:
            self.last_position, self._last_fields = position, fields
            entry_filter = decode_entry_filter(fields)
            if entry_filter is not None:
                self._index.add(position, entry_filter)
        self.loaded = True

    async def _read_log(self) -> list[PurgeLogRecord] | None:
        records: list[PurgeLogRecord] = []
        after: str = "-"
        while True:
            (page,) = await self._pipeline.execute(("XRANGE", PURGE_LOG_KEY, after, "+", "COUNT", _PAGE))
            _raise_if_down(page)
            if isinstance(page, Exception):
                log.warning("cannot read the purge log: %s", page)
                return None
            new = self._pipeline.decode(_decode_page, page)
            # Ids that do not grow would be read for ever.
            if records and new and new[0][0] <= records[-1][0]:
                raise UnexpectedReplyError.of(page)
            records += new
            if len(new) < _PAGE:
                return records
            milliseconds, number = records[-1][0]
            after = f"({milliseconds}-{number}"

    def _needs_loss_record(self, records: list[PurgeLogRecord]) -> bool:
        """Whether this process must add a record, beyond all known ids, that says that records were lost.

        That is not needed if the last known record is older than the first one of the log. It may have been trimmed,
        and entries stored before it are below the first record, which every reader checks.
        """
        if not records:
            return True
        known = self.last_position
        if known == BEGINNING or records[0][0] > known or (known, self._last_fields) in records:
            return False
        return not any(
            position > known and _is_loss_record(fields) for position, fields in records
        )  # another process has added the record already

    async def _append_loss_record(self, records: list[PurgeLogRecord]) -> None:
        known = self.last_position
        if known == BEGINNING:
            command = log_start_command()
        else:
            # Redis would give ids below the known ones as long as its clock is behind, so the id is chosen here.
            behind = not records or records[-1][0] <= known
            id_ = f"{known[0]}-{known[1] + 1}" if behind else "*"
            command = (
                "XADD",
                PURGE_LOG_KEY,
                id_,
                "scope",
                _ALL_ENTRIES.to_json(),
                "log",
                "lost records",
                *nonce_field(),
            )
        (reply,) = await self._pipeline.execute(command)
        _raise_if_down(reply)
        if isinstance(reply, Exception):  # another process was faster, or Redis accepts no writes
            log.debug("cannot append to the purge log: %s", reply)

    def _on_records_lost(self) -> None:
        log.warning("the purge log has lost records; all earlier entries and in-flight requests count as purged")
        self.loaded = False
        self._first_position = _BEYOND_LAST
        self._epoch += 1
        self._on_purge(_ALL_ENTRIES)
        self._reload_task = asyncio.get_running_loop().create_task(self.try_catch_up())

    # -- new records --------------------------------------------------------------------------------------------------

    async def catch_up(self) -> None:
        """Reads the records after the last known one. Raises RedisDownError."""
        while self.loaded:
            fetch = self.next_fetch()
            (reply,) = await self._pipeline.execute(fetch.command)
            _raise_if_down(reply)
            if self.apply(fetch, reply):
                break
        if not self.loaded:
            await self.load()

    async def try_catch_up(self) -> bool:
        """As `catch_up`, but returns False while Redis is down."""
        try:
            await self.catch_up()
        except RedisDownError:
            log.debug("Redis is down: the purge log will be read before anything is stored")
            return False
        return True

    def next_fetch(self) -> PurgeFetch:
        """The read for new records. It begins at the last known record, to check that it is still there."""
        fetch = self._next_fetch
        if fetch.since != self.last_position or fetch.epoch != self._epoch:
            command = encode_command(("XRANGE", PURGE_LOG_KEY, "%d-%d" % self.last_position, "+", "COUNT", _PAGE))  # noqa: UP031 - shorter than an f-string
            # After what was written before it; marked once, since each write fetches.
            command = EncodedAfterPrevious(command)
            fetch = self._next_fetch = PurgeFetch(command, self.last_position, self._epoch)
        return fetch

    def apply(self, fetch: PurgeFetch, reply: Any) -> bool:
        """Processes the reply to a fetch. False if the log has more records, and another fetch is needed.

        Raises UnexpectedReplyError.
        """
        if isinstance(reply, Exception):  # a value of another type at our key
            log.warning("cannot read the purge log: %s", reply)
            return True
        if fetch.epoch != self._epoch or not self.loaded:  # the log was lost after the fetch; `load` reads all of it
            return True
        if self._last_page == (fetch, reply):  # as for most writes: no purge since
            return True
        records = self._pipeline.decode(_decode_page, reply)
        if not self._is_continuation(fetch, records):
            self._on_records_lost()
            return True
        for position, fields in records:
            if position > self.last_position:
                self._apply_record(position, fields)
        is_complete = len(records) < _PAGE
        if is_complete:
            self._last_page = (fetch, reply)
        return is_complete

    def _is_continuation(self, fetch: PurgeFetch, records: list[PurgeLogRecord]) -> bool:
        """Whether the records begin with the record that was the last known one when the fetch was made."""
        if fetch.since == BEGINNING:
            return True
        if not records or records[0][0] != fetch.since:
            return False
        # The first record of another log may have the same id by chance; its nonce differs. The fields are known only
        # of the last record, so this is skipped if later ones have been processed since.
        return bool(fetch.since != self.last_position or records[0][1] == self._last_fields)

    def _apply_record(self, position: PurgePosition, fields: Any) -> None:
        self.last_position, self._last_fields = position, fields
        entry_filter = decode_entry_filter(fields)
        if entry_filter is not None:
            self._index.add(position, entry_filter)
            self._on_purge(entry_filter)

    # -- checks -------------------------------------------------------------------------------------------------------

    def covers(self, key: str, documents: tuple[str, ...], since: PurgePosition) -> bool:
        """Whether an entry with the position `since` was purged after it, or may have been."""
        if since < self._first_position:  # records after `since` may have been trimmed, or belong to a log that is gone
            return True
        return since < self.last_position and self._index.covers(key, documents, since)

    def last_covering(self, key: str, documents: tuple[str, ...]) -> PurgePosition:
        """The last known purge that covers such an entry, whenever it was stored; BEGINNING if there is none.

        The first number of a position is its time, in milliseconds since the epoch by Redis' clock.
        """
        return self._index.last_covering(key, documents)


def _raise_if_down(reply: Any) -> None:
    """Raises RedisDownError if the server of a cluster that holds the log is down."""
    if isinstance(reply, RedisBackendError):
        raise RedisDownError


def _decode_page(reply: Any) -> list[PurgeLogRecord]:
    """Raises ValueError for a reply of another form."""
    return [(parse_position(id_), fields) for id_, fields in stream_records(reply)]


def parse_position(id_: bytes) -> PurgePosition:
    """The position of a record's id. Raises ValueError."""
    milliseconds, _, number = id_.partition(b"-")
    return int(milliseconds), int(number)


def _to_dict(fields: Any) -> dict[bytes, bytes]:
    return dict(fields) if isinstance(fields, dict) else dict(zip(fields[::2], fields[1::2], strict=False))


def _is_loss_record(fields: Any) -> bool:
    return _to_dict(fields).get(b"log") == b"lost records"


def decode_entry_filter(fields: Any) -> EntryFilter | None:
    """The filter of a purge; None for a record that is not a purge or cannot be decoded."""
    field_values = _to_dict(fields)
    if b"scope" not in field_values and b"log" in field_values:
        return None
    try:
        return msgspec.json.decode(field_values[b"scope"], type=EntryFilter)
    except (KeyError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        log.warning("ignored a purge that cannot be decoded: %s", error)
        return None
