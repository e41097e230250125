"""Entries in Redis, and beside them the copy that this process holds of some."""

import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, Literal

import redis.exceptions

from router.core.types import Entry
from router.net.redis.commands import Packed, form, later, part
from router.net.redis.errors import LinkError
from router.net.redis.pipeline import Line, RedisDownError, Replies
from router.shared.purges import Mark, News, Purges
from router.store.codec import FIELDS, entry_of, is_of_another_format, to_words
from router.store.local_cache import LocalCopy

log = logging.getLogger("roundhouse.store")

WriteResult = Literal["stored", "failed", "dropped", "purged"]

MAX_BACKLOG: Final = 64 << 20
"""Bytes of entries that may wait to be written; what comes beyond that is dropped."""

_LOOK_UP: Final = form("HMGET", None, *FIELDS)  # its reply is cheaper to read than that of HGETALL

# In one step, and on a cluster too. SET comes first because it replaces what is there whatever it is, and because a
# Redis without memory refuses it: once a script has deleted something, Redis refuses it nothing any more.
_WRITE: Final = (
    "redis.call('SET', KEYS[1], '') redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1], unpack(ARGV, 2)) "
    "return redis.call('PEXPIRE', KEYS[1], ARGV[1])"
)
_PUT: Final = b"*%d\r\n" + part("EVAL", _WRITE, 1, None, None)
_PUT_WORDS: Final = 5

# Only the entry that was read: another process may have replaced it since.
_DELETE_IF_UNCHANGED: Final = (
    "local there = redis.call('HMGET', KEYS[1], 'created', 'checksum') "
    "if (there[1] or '') == ARGV[1] and (there[2] or '') == ARGV[2] then return redis.call('DEL', KEYS[1]) end return 0"
)
_CREATED: Final = FIELDS.index("created")
_CHECKSUM: Final = FIELDS.index("checksum")
_FORMAT: Final = FIELDS.index("format")


class EntryStore:
    """Where whole answers are kept, for every replica to find.

    - What was put is found by the next `get` of this process, and by other processes as soon as Redis has it.
    - Every entry has an expiry from the moment it exists, and no field of an entry that stood there before.
    - What is at a key and is no entry, or a damaged one, is a miss, not an error; `damaged` is called for each.
    - What has been purged since its generation began is not stored; should it be there all the same, it is a miss.
    - A `put` never raises and never waits; what it came to is told to its `written`.
    """

    def __init__(
        self, line: Line, purges: Purges, local: LocalCopy, *, damaged: Callable[[], object] = lambda: None,
        max_backlog: int = MAX_BACKLOG,
    ) -> None:  # fmt: skip
        """`max_backlog` in bytes."""
        self._damaged = damaged
        self._max_backlog = max_backlog
        self._line = line
        self._purges = purges
        self._local = local
        self._backlog = 0

    async def get(self, key: str) -> Entry | None:
        """The entry at a key, or None; it may be older than its time to live. Raises RedisDownError."""
        fetched = self._local.fetching(key)
        entry = None
        try:
            at = key.encode()
            (reply,) = await self._line.look_up(_LOOK_UP % (len(at), at))
            if isinstance(reply, redis.exceptions.ResponseError) and str(reply).startswith("WRONGTYPE"):
                self._damaged()
                return None
            if isinstance(reply, Exception):
                raise RedisDownError
            found = entry_of(reply)
            if found is None:
                if reply.count(None) != len(reply):
                    if not is_of_another_format(reply[_FORMAT]):
                        self._damaged()
                    self._delete(key, reply)
                return None
            purges, mark = self._purges, found.purges
            known = (mark <= purges.last and purges.current) or await self._catch_up()
            if not known and mark > purges.last:
                return None
            # A mark beyond the end of the log is one of a log that is gone.
            if mark != purges.last and (mark > purges.last or purges.cover(key, found.documents, mark)):
                self._delete(key, reply)  # its writer did not learn of the purge
                return None
            entry = found
        finally:
            fetched(entry)
        return entry

    async def _catch_up(self) -> bool:
        """Whether all purges are known; else the server of a cluster that has them is away. Raises RedisDownError."""
        try:
            await self._purges.catch_up()
        except RedisDownError:
            if not self._line.up:
                raise
            return False
        return True

    def _delete(self, key: str, values: list[bytes | None]) -> None:
        """Deletes what was read. While it is there, whoever claims the key takes its answer for stored already."""
        created, checksum = values[_CREATED] or b"", values[_CHECKSUM] or b""
        with contextlib.suppress(RedisDownError):
            self._line.tell(("EVAL", _DELETE_IF_UNCHANGED, 1, key, created, checksum))

    def put(self, key: str, entry: Entry, since: Mark, written: Callable[[WriteResult], None]) -> None:
        """Keeps an entry, as long as it may be given; its generation began when the purges were known up to `since`."""
        size = entry.size + 1024
        if self._purges.cover(key, entry.documents, since):
            written("purged")
            return
        if self._backlog + size > self._max_backlog:
            written("dropped")
            return
        write = _Write(key, entry.documents, since, size, self._purges.news(), written)
        try:
            self._line.tell(
                _writing(key, entry, self._purges.last), later(write.news.command), size=size,
                told=partial(self._answered, write),
            )  # fmt: skip
        except RedisDownError:
            written("dropped")
            return
        self._backlog += size
        # Redis will tell of it too, but only in a moment, and the next `get` of this process may come before that.
        self._local.changed([key])

    def _answered(self, write: "_Write", replies: Replies | None) -> None:
        """What became of a write. Where the reply is lost, the entry may be there: readers check its mark."""
        self._backlog -= write.size
        if replies is None:
            write.written("failed")
            return
        reply, found = replies
        if isinstance(reply, Exception):
            # It answers, so it is not down; out of memory or read-only, it still gives what it has.
            log.warning("an entry could not be written: %s", reply)
            write.written("failed")
            return
        self._check(write, found)

    def _check(self, write: "_Write", found: object) -> None:
        """Whether the purges that were read after a write cover it. It counts as stored once all of them were read."""
        unsure = isinstance(found, LinkError)  # of a cluster, the one server that knows the purges does not answer
        read_all = self._purges.note(write.news, found)
        covered = self._purges.cover(write.key, write.documents, write.since)
        if unsure or covered:
            with contextlib.suppress(RedisDownError):
                self._line.tell(("DEL", write.key))
            write.written("failed" if unsure else "purged")
        elif read_all:
            write.written("stored")
        else:
            write.news = self._purges.news()
            try:
                self._line.tell(write.news.command, told=partial(self._checked_page, write))
            except RedisDownError:
                write.written("failed")

    def _checked_page(self, write: "_Write", replies: Replies | None) -> None:
        if replies is None:
            write.written("failed")
        else:
            self._check(write, replies[0])


class _Write:
    """A write under way: of the entry at `key`, `size` bytes; `news` is what was asked behind it."""

    __slots__ = ("documents", "key", "news", "since", "size", "written")

    def __init__(
        self, key: str, documents: tuple[str, ...], since: Mark, size: int, news: News,
        written: Callable[[WriteResult], None],
    ) -> None:  # fmt: skip
        self.key = key
        self.documents = documents
        self.since = since
        self.size = size
        self.news = news
        self.written = written


def _writing(key: str, entry: Entry, mark: Mark) -> Packed:
    count, words = to_words(entry, mark)
    at, lifetime = key.encode(), b"%d" % max(1, int((entry.ttl + entry.stale) * 1000))
    return b"".join([_PUT % (_PUT_WORDS + count, len(at), at, len(lifetime), lifetime), *words])
