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

from router.core.cache.entry_filter import Scope
from router.core.cache.purge_index import BEGINNING as BEGINNING
from router.core.cache.purge_index import Mark as Mark
from router.core.cache.purge_index import PurgeIndex
from router.core.cache.redis_keys import PURGES
from router.net.redis.commands import Command, Packed, pack
from router.net.redis.errors import LinkError
from router.net.redis.pipeline import Line, RedisDownError

log = logging.getLogger("roundhouse.purges")

REMEMBERED: Final = 10_000
"""Purges that the log and each process remember."""

_EVERYTHING: Final = Scope(all=True)
_NEVER: Final[Mark] = (1 << 64, 0)  # beyond all ids
_PAGE: Final = 1000

Record = tuple[Mark, Any]


def begin_log() -> Command:
    """Adds the record that a log begins with. It is no purge."""
    return ("XADD", PURGES, "*", "log", "begins", *unique())


def unique() -> tuple[str, str]:
    """A field that no other record has, so that a record of another log is told apart although it has the same id."""
    return "nonce", secrets.token_hex(6)


class News(NamedTuple):
    """A question for the purges after `since`, as `command`; `epoch`: of which log, as this process counts them."""

    command: Packed
    since: Mark
    epoch: int


class Purges:
    """The purges that this process knows of.

    - `last`: the last of them; what begins now was begun after it.
    - `learned`: whether the log was read. While it is not, everything counts as purged.
    - `told`: whether each change of the log becomes known by itself; whoever reads an entry meanwhile catches up first.
    - `purged` is called with each purge that becomes known, once; with one of everything where records were lost.
    """

    def __init__(
        self, line: Line, purged: Callable[[Scope], None] = lambda _: None, *,
        alive: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        """`alive`: whether Redis has shown of late that it tells of changes; see Liveness."""
        self._alive = alive
        self._line = line
        self._purged = purged
        self._index = PurgeIndex(REMEMBERED)
        self._first = _NEVER
        self._last_fields: Any = None
        self._epoch = 0
        self._learning = asyncio.Lock()
        self._relearning: asyncio.Task[bool] | None = None
        self.last = BEGINNING
        self.learned = False
        self.told = False
        self._news = News(b"", _NEVER, 0)

    @property
    def current(self) -> bool:
        """Whether all purges are known, but for those of the last moments."""
        return self.told and self.learned and self._alive()

    # -- the log ------------------------------------------------------------------------------------------------------

    async def learn(self) -> None:
        """Reads the log from its first record on; begins one where there is none. Raises RedisDownError."""
        async with self._learning:
            if self.learned:
                return
            records = await self._read_log()
            if records is None:  # a wrong type at our key, or no right to read it
                self._first, self.learned = BEGINNING, True
                return
            if self._is_to_mark(records):
                await self._mark_loss(records)
                records = await self._read_log() or []
            last = records[-1][0] if records else BEGINNING
            if last < self.last:
                log.debug("the log of purges cannot be continued; nothing is stored until it can")
                return
            self._adopt(records)

    def _adopt(self, records: list[Record]) -> None:
        self._index = PurgeIndex(REMEMBERED)
        self._first = records[0][0] if records else BEGINNING
        for mark, fields in records:
            self.last, self._last_fields = mark, fields
            scope = scope_of(fields)
            if scope is not None:
                self._index.add(mark, scope)
        self.learned = True

    async def _read_log(self) -> list[Record] | None:
        records: list[Record] = []
        after: str = "-"
        while True:
            (found,) = await self._line.ask(("XRANGE", PURGES, after, "+", "COUNT", _PAGE))
            _raise_if_away(found)
            if isinstance(found, Exception):
                log.warning("the purges cannot be read: %s", found)
                return None
            records += [(mark_of(id_), fields) for id_, fields in found]
            if len(found) < _PAGE:
                return records
            after = "(" + found[-1][0].decode()

    def _is_to_mark(self, records: list[Record]) -> bool:
        """Whether the log needs a record that is beyond all that were known, and says that some were lost.

        Not where the last record that was known is older than all that there are. It may have been trimmed away; and
        what was stored before is below the first record, wherever it is read.
        """
        if not records:
            return True
        known = self.last
        if known == BEGINNING or records[0][0] > known or (known, self._last_fields) in records:
            return False
        return not any(
            mark > known and _is_loss(fields) for mark, fields in records
        )  # else another process has done it

    async def _mark_loss(self, records: list[Record]) -> None:
        known = self.last
        if known == BEGINNING:
            command = begin_log()
        else:
            back = not records or records[-1][0] <= known
            id_ = f"{known[0]}-{known[1] + 1}" if back else "*"
            command = ("XADD", PURGES, id_, "scope", _EVERYTHING.record(), "log", "lost records", *unique())
        (reply,) = await self._line.ask(command)
        _raise_if_away(reply)
        if isinstance(reply, Exception):  # another process was quicker, or Redis takes no writes
            log.debug("the log of purges was not continued: %s", reply)

    def _lose(self) -> None:
        """Records of the log have been lost, and perhaps purges with them."""
        log.warning("the log of purges has lost records; everything that was begun or stored before counts as purged")
        self.learned = False
        self._first = _NEVER
        self._epoch += 1
        self._purged(_EVERYTHING)
        self._relearning = asyncio.get_running_loop().create_task(self.changed())

    # -- what becomes known -------------------------------------------------------------------------------------------

    async def catch_up(self) -> None:
        """Learns of the purges since the last. Raises RedisDownError."""
        while self.learned:
            news = self.news()
            (found,) = await self._line.ask(news.command)
            _raise_if_away(found)
            if self.note(news, found):
                break
        if not self.learned:
            await self.learn()

    async def changed(self) -> bool:
        """The log has changed: catches up with it. Whether that could be done."""
        try:
            await self.catch_up()
        except RedisDownError:
            log.debug("the purges cannot be read while Redis is away; they will be before anything is stored")
            return False
        return True

    def news(self) -> News:
        """Asks for the purges since the last, from that one on."""
        news = self._news
        if news.since != self.last or news.epoch != self._epoch:
            command = pack(("XRANGE", PURGES, "%d-%d" % self.last, "+", "COUNT", _PAGE))  # noqa: UP031 - shorter so
            news = self._news = News(command, self.last, self._epoch)
        return news

    def note(self, news: News, found: Any) -> bool:
        """Takes over the reply to `news`; whether that was all, so that no more need be asked."""
        if isinstance(found, Exception):  # a wrong type at our key
            log.warning("the purges cannot be read: %s", found)
            return True
        if news.epoch != self._epoch or not self.learned:  # the log is read anew, or has been since
            return True
        if not self._continues(news, found):
            self._lose()
            return True
        for id_, fields in found:
            mark = mark_of(id_)
            if mark > self.last:
                self._take(mark, fields)
        return len(found) < _PAGE

    def _continues(self, news: News, found: Any) -> bool:
        """Whether the reply begins with the record that was the last when it was asked for."""
        if news.since == BEGINNING:
            return True
        if not found or mark_of(found[0][0]) != news.since:
            return False
        # The first record of another log may by chance have the same id.
        return bool(news.since != self.last or found[0][1] == self._last_fields)

    def _take(self, mark: Mark, fields: Any) -> None:
        self.last, self._last_fields = mark, fields
        scope = scope_of(fields)
        if scope is not None:
            self._index.add(mark, scope)
            self._purged(scope)

    # -- what is covered ----------------------------------------------------------------------------------------------

    def cover(self, key: str, documents: tuple[str, ...], since: Mark) -> bool:
        """Whether an entry that was begun, or checked last, at `since` has been purged since, or may have been."""
        if since < self._first:
            return True
        return since < self.last and self._index.covers(key, documents, since)


def _raise_if_away(reply: Any) -> None:
    """Of a cluster, the one server that has the log may be away."""
    if isinstance(reply, LinkError):
        raise RedisDownError


def mark_of(id_: bytes) -> Mark:
    """A record's id. Raises ValueError."""
    milliseconds, _, number = id_.partition(b"-")
    return int(milliseconds), int(number)


def _pairs(fields: Any) -> dict[bytes, bytes]:
    return dict(fields) if isinstance(fields, dict) else dict(zip(fields[::2], fields[1::2], strict=False))


def _is_loss(fields: Any) -> bool:
    return _pairs(fields).get(b"log") == b"lost records"


def scope_of(fields: Any) -> Scope | None:
    """What a record has purged; None for one that is no purge, or not understood."""
    pairs = _pairs(fields)
    if b"scope" not in pairs and b"log" in pairs:
        return None
    try:
        return msgspec.json.decode(pairs[b"scope"], type=Scope)
    except (KeyError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        log.warning("a purge is not understood, and passed over: %s", error)
        return None
