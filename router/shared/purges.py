"""What has been purged, as every router process comes to know it.

Theory of operation. Whoever purges first adds the purge's scope to a stream in Redis, the log, and then deletes what is
stored. An answer that was begun before a purge may be stored after it. So every generation notes the last record that
its process knew when it began, and its answer is not stored once the log has a later purge that covers it. An entry
carries a mark, the last record that its writer had checked. Whoever writes reads the log again after the write, and
deletes the entry if a later purge covers it. The reply to that may be lost, and the writer may die before it comes; so
whoever reads an entry checks its mark against the purges that it knows.

All that rests on a log whose ids only grow. Redis loses a log when it is emptied, and the end of one in a failover;
with a clock that is behind, new records then get ids below those that were lost. So each read of the log begins at the
last record that is known. Where that is gone, records have been lost, and with them purges that nobody can know of:
from then on everything that was begun or stored before counts as purged. A log is never empty: a router that finds none
begins one. Therefore an entry whose mark is below the first record, or above the last, belongs to a log that is gone.
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
from router.net.redis.commands import Command, EncodedCommand, encode_command
from router.net.redis.errors import RedisBackendError
from router.net.redis.pipeline import RedisDownError, RedisPipeline

log = logging.getLogger("roundhouse.purges")

MAX_PURGES: Final = 10_000
"""Purges that the log and each process remember."""

_ALL_ENTRIES: Final = EntryFilter(all=True)
_BEYOND_LAST: Final[PurgePosition] = (1 << 64, 0)  # beyond all ids
_PAGE: Final = 1000

PurgeLogRecord = tuple[PurgePosition, Any]


def log_start_command() -> Command:
    """Adds the record that a log begins with. It is no purge."""
    return ("XADD", PURGE_LOG_KEY, "*", "log", "begins", *nonce_field())


def nonce_field() -> tuple[str, str]:
    """A field that no other record has, so that a record of another log is told apart although it has the same id."""
    return "nonce", secrets.token_hex(6)


class PurgeFetch(NamedTuple):
    """A question for the purges after `since`, as `command`; `epoch`: of which log, as this process counts them."""

    command: EncodedCommand
    since: PurgePosition
    epoch: int


class Purges:
    """The purges that this process knows of.

    - `last`: the last of them; what begins now was begun after it.
    - `learned`: whether the log was read. While it is not, everything counts as purged.
    - `told`: whether each change of the log becomes known by itself; whoever reads an entry meanwhile catches up first.
    - `purged` is called with each purge that becomes known, once; with one of everything where records were lost.
    """

    def __init__(
        self, pipeline: RedisPipeline, on_purge: Callable[[EntryFilter], None] = lambda _: None, *,
        alive: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        """`alive`: whether Redis has shown of late that it tells of changes; see Liveness."""
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

    @property
    def up_to_date(self) -> bool:
        """Whether all purges are known, but for those of the last moments."""
        return self.listening and self.loaded and self._alive()

    # -- the log ------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Reads the log from its first record on; begins one where there is none. Raises RedisDownError."""
        async with self._load_lock:
            if self.loaded:
                return
            records = await self._read_log()
            if records is None:  # a wrong type at our key, or no right to read it
                self._first_position, self.loaded = BEGINNING, True
                return
            if self._needs_loss_record(records):
                await self._append_loss_record(records)
                records = await self._read_log() or []
            last = records[-1][0] if records else BEGINNING
            if last < self.last_position:
                log.debug("the log of purges cannot be continued; nothing is stored until it can")
                return
            self._rebuild_index(records)

    def _rebuild_index(self, records: list[PurgeLogRecord]) -> None:
        self._index = PurgeIndex(MAX_PURGES)
        self._first_position = records[0][0] if records else BEGINNING
        for mark, fields in records:
            self.last_position, self._last_fields = mark, fields
            scope = decode_entry_filter(fields)
            if scope is not None:
                self._index.add(mark, scope)
        self.loaded = True

    async def _read_log(self) -> list[PurgeLogRecord] | None:
        records: list[PurgeLogRecord] = []
        after: str = "-"
        while True:
            (found,) = await self._pipeline.execute(("XRANGE", PURGE_LOG_KEY, after, "+", "COUNT", _PAGE))
            _raise_if_down(found)
            if isinstance(found, Exception):
                log.warning("the purges cannot be read: %s", found)
                return None
            records += [(parse_position(id_), fields) for id_, fields in found]
            if len(found) < _PAGE:
                return records
            after = "(" + found[-1][0].decode()

    def _needs_loss_record(self, records: list[PurgeLogRecord]) -> bool:
        """Whether the log needs a record that is beyond all that were known, and says that some were lost.

        Not where the last record that was known is older than all that there are. It may have been trimmed away; and
        what was stored before is below the first record, wherever it is read.
        """
        if not records:
            return True
        known = self.last_position
        if known == BEGINNING or records[0][0] > known or (known, self._last_fields) in records:
            return False
        return not any(
            mark > known and _is_loss_record(fields) for mark, fields in records
        )  # else another process has done it

    async def _append_loss_record(self, records: list[PurgeLogRecord]) -> None:
        known = self.last_position
        if known == BEGINNING:
            command = log_start_command()
        else:
            back = not records or records[-1][0] <= known
            id_ = f"{known[0]}-{known[1] + 1}" if back else "*"
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
        if isinstance(reply, Exception):  # another process was quicker, or Redis takes no writes
            log.debug("the log of purges was not continued: %s", reply)

    def _on_records_lost(self) -> None:
        """Records of the log have been lost, and perhaps purges with them."""
        log.warning("the log of purges has lost records; everything that was begun or stored before counts as purged")
        self.loaded = False
        self._first_position = _BEYOND_LAST
        self._epoch += 1
        self._on_purge(_ALL_ENTRIES)
        self._reload_task = asyncio.get_running_loop().create_task(self.try_catch_up())

    # -- what becomes known -------------------------------------------------------------------------------------------

    async def catch_up(self) -> None:
        """Learns of the purges since the last. Raises RedisDownError."""
        while self.loaded:
            news = self.next_fetch()
            (found,) = await self._pipeline.execute(news.command)
            _raise_if_down(found)
            if self.apply(news, found):
                break
        if not self.loaded:
            await self.load()

    async def try_catch_up(self) -> bool:
        """The log has changed: catches up with it. Whether that could be done."""
        try:
            await self.catch_up()
        except RedisDownError:
            log.debug("the purges cannot be read while Redis is away; they will be before anything is stored")
            return False
        return True

    def next_fetch(self) -> PurgeFetch:
        """Asks for the purges since the last, from that one on."""
        news = self._next_fetch
        if news.since != self.last_position or news.epoch != self._epoch:
            command = encode_command(("XRANGE", PURGE_LOG_KEY, "%d-%d" % self.last_position, "+", "COUNT", _PAGE))  # noqa: UP031 - shorter so
            news = self._next_fetch = PurgeFetch(command, self.last_position, self._epoch)
        return news

    def apply(self, fetch: PurgeFetch, reply: Any) -> bool:
        """Takes over the reply to `news`; whether that was all, so that no more need be asked."""
        if isinstance(reply, Exception):  # a wrong type at our key
            log.warning("the purges cannot be read: %s", reply)
            return True
        if fetch.epoch != self._epoch or not self.loaded:  # the log is read anew, or has been since
            return True
        if not self._is_continuation(fetch, reply):
            self._on_records_lost()
            return True
        for id_, fields in reply:
            mark = parse_position(id_)
            if mark > self.last_position:
                self._apply_record(mark, fields)
        return len(reply) < _PAGE

    def _is_continuation(self, fetch: PurgeFetch, reply: Any) -> bool:
        """Whether the reply begins with the record that was the last when it was asked for."""
        if fetch.since == BEGINNING:
            return True
        if not reply or parse_position(reply[0][0]) != fetch.since:
            return False
        # The first record of another log may by chance have the same id.
        return bool(fetch.since != self.last_position or reply[0][1] == self._last_fields)

    def _apply_record(self, position: PurgePosition, fields: Any) -> None:
        self.last_position, self._last_fields = position, fields
        scope = decode_entry_filter(fields)
        if scope is not None:
            self._index.add(position, scope)
            self._on_purge(scope)

    # -- what is covered ----------------------------------------------------------------------------------------------

    def covers(self, key: str, documents: tuple[str, ...], since: PurgePosition) -> bool:
        """Whether an entry that was begun, or checked last, at `since` has been purged since, or may have been."""
        if since < self._first_position:
            return True
        return since < self.last_position and self._index.covers(key, documents, since)


def _raise_if_down(reply: Any) -> None:
    """Of a cluster, the one server that has the log may be away."""
    if isinstance(reply, RedisBackendError):
        raise RedisDownError


def parse_position(id_: bytes) -> PurgePosition:
    """A record's id. Raises ValueError."""
    milliseconds, _, number = id_.partition(b"-")
    return int(milliseconds), int(number)


def _to_dict(fields: Any) -> dict[bytes, bytes]:
    return dict(fields) if isinstance(fields, dict) else dict(zip(fields[::2], fields[1::2], strict=False))


def _is_loss_record(fields: Any) -> bool:
    return _to_dict(fields).get(b"log") == b"lost records"


def decode_entry_filter(fields: Any) -> EntryFilter | None:
    """What a record has purged; None for one that is no purge, or not understood."""
    pairs = _to_dict(fields)
    if b"scope" not in pairs and b"log" in pairs:
        return None
    try:
        return msgspec.json.decode(pairs[b"scope"], type=EntryFilter)
    except (KeyError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        log.warning("a purge is not understood, and passed over: %s", error)
        return None
