"""The cache's entries in Redis, with a local copy of some in this process."""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal

import redis.exceptions

from router.core.types import Entry
from router.net.redis.commands import EncodedCommand, command_template, template_part
from router.net.redis.errors import RedisBackendError, UnexpectedReplyError
from router.net.redis.pipeline import RedisDownError, RedisPipeline, Replies
from router.net.redis.standalone import is_read_only_error
from router.shared.cache.purges import BEGINNING, PurgeFetch, PurgePosition, Purges
from router.store.codec import FIELD_NAMES, decode_values, encode_entry, is_other_format
from router.store.local_cache import LocalCache

WriteResult = Literal["stored", "failed", "dropped", "purged"]
AttemptResult = WriteResult | Literal["unavailable"]
"""`failed`: Redis refused it; `unavailable`: Redis, or a server of its cluster, is down, so it may succeed later."""

MAX_BACKLOG: Final = 64 << 20
"""Bytes of entries that may wait to be written; further entries are dropped."""

# HMGET and not HGETALL: parsing a list costs a quarter of parsing a map (docs/decisions/0001).
_GET_TEMPLATE: Final = command_template("HMGET", None, *FIELD_NAMES)

# A script, so that the entry is replaced atomically, on a cluster too. SET comes first for two reasons: it replaces a
# value of any type, and a Redis that is out of memory refuses it. After a script's first write, here the DEL, Redis no
# longer checks the memory.
_WRITE_SCRIPT: Final = (
    "redis.call('SET', KEYS[1], '') redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1], unpack(ARGV, 2)) "
    "return redis.call('PEXPIRE', KEYS[1], ARGV[1])"
)
_PUT_TEMPLATE: Final = b"*%d\r\n" + template_part("EVAL", _WRITE_SCRIPT, 1, None, None)
_PUT_WORD_COUNT: Final = 5  # EVAL, the script, the number of keys, the key and the lifetime

# Does the same, and returns 0 if the entry at the key is younger than ARGV[2], the `created` of the one to be written.
# HGET fails for a value of another type, which is replaced.
_WRITE_IF_YOUNGEST_SCRIPT: Final = (
    "local created = redis.pcall('HGET', KEYS[1], 'created') "
    "created = type(created) == 'string' and tonumber(created) "
    "if created and created > tonumber(ARGV[2]) then return 0 end "
    "redis.call('SET', KEYS[1], '') redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1], unpack(ARGV, 3)) "
    "return redis.call('PEXPIRE', KEYS[1], ARGV[1])"
)
_PUT_IF_YOUNGEST_TEMPLATE: Final = b"*%d\r\n" + template_part("EVAL", _WRITE_IF_YOUNGEST_SCRIPT, 1, None, None, None)

# Deletes only the entry that was read: another process may have replaced it since.
_DELETE_IF_UNCHANGED_SCRIPT: Final = (
    "local stored = redis.call('HMGET', KEYS[1], 'created', 'checksum') "
    "if (stored[1] or '') == ARGV[1] and (stored[2] or '') == ARGV[2] then return redis.call('DEL', KEYS[1]) end "
    "return 0"
)
_CREATED_INDEX: Final = FIELD_NAMES.index("created")
_CHECKSUM_INDEX: Final = FIELD_NAMES.index("checksum")
_FORMAT_INDEX: Final = FIELD_NAMES.index("format")


class EntryStore:
    """Stores complete responses, which every replica can look up.

    - An entry that was put is returned by the next `get` of this process, and by other processes once Redis has it.
    - Every entry has an expiry from the moment it exists, and no field of an entry that was at its key before.
    - A damaged entry, or a value that is no entry, is a miss and not an error; `on_damaged` is called for each.
    - An entry that was purged after its generation began is not stored; if it is there nevertheless, it is a miss.
    - `put` never raises and never waits; its result is passed to `on_written`.
    """

    def __init__(
        self,
        pipeline: RedisPipeline,
        purges: Purges,
        local: LocalCache,
        *,
        on_damaged: Callable[[], object] = lambda: None,
        on_refused: Callable[[Exception], None] = lambda _: None,
        max_backlog: int = MAX_BACKLOG,
    ) -> None:
        """`on_refused` is called with Redis' reply to each entry that it refuses."""
        self._on_damaged = on_damaged
        self._on_refused = on_refused
        self._max_backlog = max_backlog
        self._pipeline = pipeline
        self._purges = purges
        self._local = local
        self._backlog = 0

    async def get(self, key: str) -> Entry | None:
        """The entry at a key, or None. It may be older than its time to live. Raises RedisDownError."""
        fetched = self._local.begin_fetch(key)
        entry = None
        try:
            encoded_key = key.encode()
            (reply,) = await self._pipeline.execute_eager(_GET_TEMPLATE % (len(encoded_key), encoded_key))
            if isinstance(reply, redis.exceptions.ResponseError) and str(reply).startswith("WRONGTYPE"):
                self._on_damaged()
                return None
            if isinstance(reply, Exception):
                raise RedisDownError
            decoded = self._decode(reply)
            if decoded is None:
                if reply.count(None) != len(reply):  # something is there
                    if not is_other_format(reply[_FORMAT_INDEX]):  # written by another version, not damaged
                        self._on_damaged()
                    self._delete_if_unchanged(key, reply)
                return None
            purges, position = self._purges, decoded.purges
            up_to_date = (position <= purges.last_position and purges.up_to_date) or await self._catch_up()
            # Without the latest purges, only an entry whose writer knew no more of them than this process can be used.
            if not up_to_date and position > purges.last_position:
                return None
            # A position beyond the end of the log belongs to a log that is lost.
            if position != purges.last_position and (
                position > purges.last_position or purges.covers(key, decoded.documents, position)
            ):
                self._delete_if_unchanged(key, reply)  # its writer did not know of the purge
                return None
            entry = decoded
        finally:  # also for a miss, an error or a cancellation: the fetch must not stay pending
            fetched(entry)
        return entry

    def _decode(self, reply: Any) -> Entry | None:
        """None for what is no valid entry. Raises RedisDownError for a reply that HMGET cannot have."""
        if type(reply) is not list:
            return self._pipeline.decode(_no_list, reply)
        try:
            return decode_values(reply)
        except Exception:  # noqa: BLE001 - which one depends on the form
            return self._pipeline.decode(decode_values, reply)  # which raises again

    async def _catch_up(self) -> bool:
        """Whether all purges are known now; False if the cluster node with the log is down. Raises RedisDownError."""
        try:
            await self._purges.catch_up()
        except RedisDownError:
            if not self._pipeline.up:
                raise
            return False
        return True

    def _delete_if_unchanged(self, key: str, values: list[bytes | None]) -> None:
        # A process that acquires the key's lease would take the response for stored already.
        created, checksum = values[_CREATED_INDEX] or b"", values[_CHECKSUM_INDEX] or b""
        if type(created) is not bytes or type(checksum) is not bytes:  # no reply of HMGET
            return
        with contextlib.suppress(RedisDownError):
            self._pipeline.send(("EVAL", _DELETE_IF_UNCHANGED_SCRIPT, 1, key, created, checksum))

    def put(
        self, key: str, entry: Entry, since: PurgePosition, on_written: Callable[[AttemptResult], None],
        lifetime: float | None = None, *, keeps_younger: bool = False,
    ) -> None:  # fmt: skip
        """Store an entry. `since`: the purge position at which its generation began.

        `lifetime`: seconds until Redis deletes it; by default until it is neither fresh nor kept as a stale entry.
        `keeps_younger`: a younger entry at the key stays, and the result is "stored".
        """
        size = entry.size + 1024  # with room for the key and the other fields
        if self._purges.covers(key, entry.documents, since):
            # Without any position, the log could not be read then: Redis was down, and nobody has purged it.
            on_written("dropped" if since == BEGINNING else "purged")
            return
        if self._backlog + size > self._max_backlog:
            on_written("dropped")
            return
        write = _PendingWrite(key, entry.documents, since, size, self._purges.next_fetch(), on_written)
        encode = encode_put_if_youngest if keeps_younger else encode_put
        try:
            self._pipeline.send(
                encode(
                    key, entry, self._purges.last_position, entry.ttl + entry.stale if lifetime is None else lifetime
                ),
                write.purge_fetch.command,
                size=size,
                on_reply=partial(self._on_write_reply, write),
            )
        except RedisDownError:
            on_written("unavailable")
            return
        self._backlog += size
        # Redis' own invalidation message comes later, possibly after the next `get` of this process.
        self._local.invalidate([key])

    def _on_write_reply(self, write: "_PendingWrite", replies: Replies | None) -> None:
        self._backlog -= write.size
        if replies is None:  # the entry may have been written nevertheless: readers check its purge position
            write.on_written("unavailable")
            return
        reply, fetched_purges = replies
        # A server of a cluster that is down, or one that has become a replica: the pipeline is about to notice.
        if isinstance(reply, RedisBackendError) or is_read_only_error(reply):
            write.on_written("unavailable")
        elif isinstance(reply, Exception):
            # Redis replies, so it is not down: out of memory or read-only, it can still be read.
            self._on_refused(reply)
            write.on_written("failed")
        elif reply == 0:  # a younger entry is there, whose writer checks whether a purge covers it
            write.on_written("stored")
        else:
            self._check_purges(write, fetched_purges)

    def _check_purges(self, write: "_PendingWrite", fetched_purges: object) -> None:
        # The cluster node that holds the log does not answer: whether a purge covers the entry is unknown.
        unknown, read_all = isinstance(fetched_purges, RedisBackendError), True
        try:
            read_all = self._purges.apply(write.purge_fetch, fetched_purges)
        except UnexpectedReplyError:
            unknown = True
        covered = self._purges.covers(write.key, write.documents, write.since)
        if unknown or covered:
            with contextlib.suppress(RedisDownError):
                self._pipeline.send(("DEL", write.key))
            write.on_written("unavailable" if unknown else "purged")
        elif read_all:
            write.on_written("stored")
        else:  # more purges than one fetch returns: the entry counts as stored once all of them were read
            write.purge_fetch = self._purges.next_fetch()
            try:
                self._pipeline.send(write.purge_fetch.command, on_reply=partial(self._on_purges_reply, write))
            except RedisDownError:
                write.on_written("unavailable")

    def _on_purges_reply(self, write: "_PendingWrite", replies: Replies | None) -> None:
        if replies is None:
            write.on_written("unavailable")
        else:
            self._check_purges(write, replies[0])


def _no_list(_: Any) -> Entry | None:
    raise TypeError


class _PendingWrite:
    """A write in progress: `size` bytes for the entry at `key`; `purge_fetch` is sent behind it."""

    def __init__(
        self, key: str, documents: tuple[str, ...], since: PurgePosition, size: int, purge_fetch: PurgeFetch,
        on_written: Callable[[AttemptResult], None],
    ) -> None:  # fmt: skip
        self.key = key
        self.documents = documents
        self.since = since
        self.size = size
        self.purge_fetch = purge_fetch
        self.on_written = on_written


def encode_put(key: str, entry: Entry, mark: PurgePosition, lifetime: float) -> EncodedCommand:
    """The command that writes an entry, which Redis keeps for `lifetime` seconds."""
    count, words = encode_entry(entry, mark)
    encoded_key, expiry = key.encode(), _expiry(lifetime)
    return b"".join(
        [_PUT_TEMPLATE % (_PUT_WORD_COUNT + count, len(encoded_key), encoded_key, len(expiry), expiry), *words]
    )


def encode_put_if_youngest(key: str, entry: Entry, mark: PurgePosition, lifetime: float) -> EncodedCommand:
    """As `encode_put`, but a younger entry stays, and the reply is 0."""
    count, words = encode_entry(entry, mark)
    encoded_key, expiry, created = key.encode(), _expiry(lifetime), b"%.3f" % entry.created
    head = _PUT_IF_YOUNGEST_TEMPLATE % (
        _PUT_WORD_COUNT + 1 + count, len(encoded_key), encoded_key, len(expiry), expiry, len(created), created
    )  # fmt: skip
    return b"".join([head, *words])


def _expiry(lifetime: float) -> bytes:
    """In milliseconds, as PEXPIRE takes it."""
    return b"%d" % max(1, int(lifetime * 1000))
