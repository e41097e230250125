"""Entries in Redis, and beside them the copy that this process holds of some."""

import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, Literal

import redis.exceptions

from router.core.types import Entry
from router.net.redis.commands import EncodedCommand, after_previous, command_template, template_part
from router.net.redis.errors import RedisBackendError
from router.net.redis.pipeline import RedisDownError, RedisPipeline, Replies
from router.shared.purges import PurgeFetch, PurgePosition, Purges
from router.store.codec import FIELD_NAMES, decode_values, encode_entry, is_other_format
from router.store.local_cache import LocalCache

log = logging.getLogger("roundhouse.store")

WriteResult = Literal["stored", "failed", "dropped", "purged"]

MAX_BACKLOG: Final = 64 << 20
"""Bytes of entries that may wait to be written; what comes beyond that is dropped."""

_GET_TEMPLATE: Final = command_template(
    "HMGET", None, *FIELD_NAMES
)  # its reply is cheaper to read than that of HGETALL

# In one step, and on a cluster too. SET comes first because it replaces what is there whatever it is, and because a
# Redis without memory refuses it: once a script has deleted something, Redis refuses it nothing any more.
_WRITE_SCRIPT: Final = (
    "redis.call('SET', KEYS[1], '') redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1], unpack(ARGV, 2)) "
    "return redis.call('PEXPIRE', KEYS[1], ARGV[1])"
)
_PUT_TEMPLATE: Final = b"*%d\r\n" + template_part("EVAL", _WRITE_SCRIPT, 1, None, None)
_PUT_WORD_COUNT: Final = 5

# Only the entry that was read: another process may have replaced it since.
_DELETE_IF_UNCHANGED_SCRIPT: Final = (
    "local there = redis.call('HMGET', KEYS[1], 'created', 'checksum') "
    "if (there[1] or '') == ARGV[1] and (there[2] or '') == ARGV[2] then return redis.call('DEL', KEYS[1]) end return 0"
)
_CREATED_INDEX: Final = FIELD_NAMES.index("created")
_CHECKSUM_INDEX: Final = FIELD_NAMES.index("checksum")
_FORMAT_INDEX: Final = FIELD_NAMES.index("format")


class EntryStore:
    """Where whole answers are kept, for every replica to find.

    - What was put is found by the next `get` of this process, and by other processes as soon as Redis has it.
    - Every entry has an expiry from the moment it exists, and no field of an entry that stood there before.
    - What is at a key and is no entry, or a damaged one, is a miss, not an error; `damaged` is called for each.
    - What has been purged since its generation began is not stored; should it be there all the same, it is a miss.
    - A `put` never raises and never waits; what it came to is told to its `written`.
    """

    def __init__(
        self,
        pipeline: RedisPipeline,
        purges: Purges,
        local: LocalCache,
        *,
        on_damaged: Callable[[], object] = lambda: None,
        max_backlog: int = MAX_BACKLOG,
    ) -> None:
        """`max_backlog` in bytes."""
        self._on_damaged = on_damaged
        self._max_backlog = max_backlog
        self._pipeline = pipeline
        self._purges = purges
        self._local = local
        self._backlog = 0

    async def get(self, key: str) -> Entry | None:
        """The entry at a key, or None; it may be older than its time to live. Raises RedisDownError."""
        fetched = self._local.begin_fetch(key)
        entry = None
        try:
            at = key.encode()
            (reply,) = await self._pipeline.execute_eager(_GET_TEMPLATE % (len(at), at))
            if isinstance(reply, redis.exceptions.ResponseError) and str(reply).startswith("WRONGTYPE"):
                self._on_damaged()
                return None
            if isinstance(reply, Exception):
                raise RedisDownError
            found = decode_values(reply)
            if found is None:
                if reply.count(None) != len(reply):
                    if not is_other_format(reply[_FORMAT_INDEX]):
                        self._on_damaged()
                    self._delete_if_unchanged(key, reply)
                return None
            purges, mark = self._purges, found.purges
            known = (mark <= purges.last_position and purges.up_to_date) or await self._catch_up()
            if not known and mark > purges.last_position:
                return None
            # A mark beyond the end of the log is one of a log that is gone.
            if mark != purges.last_position and (
                mark > purges.last_position or purges.covers(key, found.documents, mark)
            ):
                self._delete_if_unchanged(key, reply)  # its writer did not learn of the purge
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
            if not self._pipeline.up:
                raise
            return False
        return True

    def _delete_if_unchanged(self, key: str, values: list[bytes | None]) -> None:
        """Deletes what was read. While it is there, whoever claims the key takes its answer for stored already."""
        created, checksum = values[_CREATED_INDEX] or b"", values[_CHECKSUM_INDEX] or b""
        with contextlib.suppress(RedisDownError):
            self._pipeline.send(("EVAL", _DELETE_IF_UNCHANGED_SCRIPT, 1, key, created, checksum))

    def put(self, key: str, entry: Entry, since: PurgePosition, on_written: Callable[[WriteResult], None]) -> None:
        """Keeps an entry, as long as it may be given; its generation began when the purges were known up to `since`."""
        size = entry.size + 1024
        if self._purges.covers(key, entry.documents, since):
            on_written("purged")
            return
        if self._backlog + size > self._max_backlog:
            on_written("dropped")
            return
        write = _PendingWrite(key, entry.documents, since, size, self._purges.next_fetch(), on_written)
        try:
            self._pipeline.send(
                _encode_put(key, entry, self._purges.last_position),
                after_previous(write.purge_fetch.command),
                size=size,
                on_reply=partial(self._on_write_reply, write),
            )
        except RedisDownError:
            on_written("dropped")
            return
        self._backlog += size
        # Redis will tell of it too, but only in a moment, and the next `get` of this process may come before that.
        self._local.invalidate([key])

    def _on_write_reply(self, write: "_PendingWrite", replies: Replies | None) -> None:
        """What became of a write. Where the reply is lost, the entry may be there: readers check its mark."""
        self._backlog -= write.size
        if replies is None:
            write.on_written("failed")
            return
        reply, found = replies
        if isinstance(reply, Exception):
            # It answers, so it is not down; out of memory or read-only, it still gives what it has.
            log.warning("an entry could not be written: %s", reply)
            write.on_written("failed")
            return
        self._check_purges(write, found)

    def _check_purges(self, write: "_PendingWrite", found: object) -> None:
        """Whether the purges that were read after a write cover it. It counts as stored once all of them were read."""
        unsure = isinstance(
            found, RedisBackendError
        )  # of a cluster, the one server that knows the purges does not answer
        read_all = self._purges.apply(write.purge_fetch, found)
        covered = self._purges.covers(write.key, write.documents, write.since)
        if unsure or covered:
            with contextlib.suppress(RedisDownError):
                self._pipeline.send(("DEL", write.key))
            write.on_written("failed" if unsure else "purged")
        elif read_all:
            write.on_written("stored")
        else:
            write.purge_fetch = self._purges.next_fetch()
            try:
                self._pipeline.send(write.purge_fetch.command, on_reply=partial(self._on_purges_reply, write))
            except RedisDownError:
                write.on_written("failed")

    def _on_purges_reply(self, write: "_PendingWrite", replies: Replies | None) -> None:
        if replies is None:
            write.on_written("failed")
        else:
            self._check_purges(write, replies[0])


class _PendingWrite:
    """A write under way: of the entry at `key`, `size` bytes; `news` is what was asked behind it."""

    __slots__ = ("documents", "key", "on_written", "purge_fetch", "since", "size")

    def __init__(
        self, key: str, documents: tuple[str, ...], since: PurgePosition, size: int, purge_fetch: PurgeFetch,
        on_written: Callable[[WriteResult], None],
    ) -> None:  # fmt: skip
        self.key = key
        self.documents = documents
        self.since = since
        self.size = size
        self.purge_fetch = purge_fetch
        self.on_written = on_written


def _encode_put(key: str, entry: Entry, mark: PurgePosition) -> EncodedCommand:
    count, words = encode_entry(entry, mark)
    at, lifetime = key.encode(), b"%d" % max(1, int((entry.ttl + entry.stale) * 1000))
    return b"".join([_PUT_TEMPLATE % (_PUT_WORD_COUNT + count, len(at), at, len(lifetime), lifetime), *words])
