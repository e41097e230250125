"""The responses of /v1/responses that later requests may continue, in Redis.

    rh:1:response:{tenant}:{id}    one of them, a hash; see KeptResponse
    rh:1:response:{tenant}         those of a tenant; see response_index

A record without a digest has only the output: later requests can refer to its items, and cannot continue it.

Theory of operation. A response is stored with the items of its own turn, and with the ids of those before it. So a
conversation grows by what is new. An index bounds what a tenant has: the ones that were not used for longest leave.

A turn counts as a use of all turns before it, and prolongs their lives. In a long conversation these are many commands,
so each record says until when all of them are kept, and they are prolonged only once a tenth of that time has passed,
or a tenth of the responses that a tenant may have were used since.

An id is the engine's, so that two responses may have the same. Each record has a digest of its whole conversation. One
with the same id and another conversation is not stored, and marks the record that is there: from then on nobody knows
which of the two a client means by the id, so it is not found. Turns that were added to the one that is there name it by
its digest, too, and still find it.

The same conversation may come in other turns, since a client may send all of it as its input. The record whose turn is
all of it stays: it needs no others. So a record says what its parent is, and the ids before that are a hint of what to
read.
"""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal

from router.core.cache.redis_keys import response_key
from router.core.endpoints.conversations.item_references import referable_items
from router.net.redis.commands import Command, EncodedCommand, command_template
from router.net.redis.errors import RedisBackendError
from router.net.redis.pipeline import RedisDownError, RedisPipeline
from router.shared.responses.item_index import add_command
from router.shared.responses.kept_response import (
    EARLIER_FIELDS,
    TURN_FIELDS,
    Conversation,
    EarlierTurn,
    KeptResponse,
    ResponseNotCompleteError,
    ResponseNotFoundError,
    assemble,
    decode_earlier_turns,
    decode_turn,
    encode_fields,
)
from router.shared.responses.response_index import ResponseIndex, left_ids, remove_command

StoreResult = Literal["stored", "collision", "failed", "ended"]
"""`ended`: of one that was generated in the background, which was cancelled or deleted before."""

# One that has no parent needs no other, so it is not replaced by one of the same conversation that does. ARGV: the time
# to live in ms, the digest, and the fields. Nothing is deleted before: the mark of a collision stays.
_WRITE_SCRIPT: Final = """
local held = redis.call('HMGET', KEYS[1], 'digest', 'parent')
if held[1] and held[1] ~= ARGV[2] then
  redis.call('HSET', KEYS[1], 'ambiguous', '1')
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  return 0
end
if not held[1] or held[2] ~= '' then redis.call('HSET', KEYS[1], unpack(ARGV, 3)) end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""

# Of one that was generated in the background, see background_records. ARGV as above.
_END_SCRIPT: Final = """
if redis.call('HGET', KEYS[1], 'state') ~= 'running' then return 2 end
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""

# Not of one that is kept as a turn, which has the same output. ARGV: the time to live in ms, and the fields.
_OUTPUT_SCRIPT: Final = """
local held = redis.call('HMGET', KEYS[1], 'digest', 'state')
if not held[1] and not held[2] then redis.call('HSET', KEYS[1], unpack(ARGV, 2)) end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""

_RESULTS: Final[dict[int, StoreResult]] = {1: "stored", 2: "ended"}

_PROLONG_SCRIPT: Final = """
if redis.call('PEXPIRE', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'alive_until', ARGV[2])
return 1
"""
"""Of the last turn before the new one, whose record says so to other turns that continue it."""

_BATCH: Final = 100
"""Turns that are read at once, so that commands of other requests come between."""

_READ_TURN: Final = command_template("HMGET", None, *EARLIER_FIELDS)


class ResponseRecords:
    """- Each tenant finds its own responses alone.
    - What was stored is found by every process that asks after `store` has returned.
    - A conversation is read as it was stored, or not found.
    - The turns before one that is stored are kept for another nine tenths of `ttl` at least.
    - Raises RedisDownError where Redis does not answer, and also where it refuses the command.
    """

    def __init__(
        self, pipeline: RedisPipeline, *, ttl: float, max_per_tenant: int, max_bytes_per_tenant: int,
        clock: Callable[[], float], on_refused: Callable[[Exception], None] = lambda _: None,
        on_removed: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """`ttl`: seconds. `clock`: see CacheLookup. `on_refused`: see EntryStore.

        `on_removed`: a response leaves, since its tenant has too many.
        """
        self._pipeline = pipeline
        self._ttl_ms = max(1, int(1000 * ttl))
        self._index = ResponseIndex(self._ttl_ms, max_per_tenant, max_bytes_per_tenant)
        self._clock = clock
        self._on_refused = on_refused
        self._on_removed = on_removed

    async def find(self, tenant: str, id_: str) -> KeptResponse:
        """Raises ResponseNotFoundError, ResponseNotCompleteError and RedisDownError.

        Its `alive_until` is 0 if so many others were used since that its conversation may soon have to leave.
        """
        reply, crowding = await self._pipeline.execute(
            ("HMGET", response_key(tenant, id_), *TURN_FIELDS), self._index.crowding(tenant)
        )
        if isinstance(reply, Exception):
            raise RedisDownError
        found = self._pipeline.decode(partial(decode_turn, id_), reply)
        if found is None:
            (state,) = await self._execute(("HGET", response_key(tenant, id_), "state"))
            raise ResponseNotCompleteError if state else ResponseNotFoundError
        used_at = found.alive_until - self._ttl_ms
        if isinstance(crowding, Exception) or self._pipeline.decode(float, crowding) > used_at:
            return found._replace(alive_until=0)
        return found

    async def conversation(self, tenant: str, last: KeptResponse) -> Conversation:
        """Raises ResponseNotFoundError and RedisDownError."""
        known = await self._earlier_turns(tenant, last.ancestors, last.size)
        while isinstance(found := assemble(last, known), str):
            other = await self._earlier_turns(tenant, [found], last.size)
            if not other:
                raise ResponseNotFoundError
            known |= other
        return found

    async def store(
        self, tenant: str, response: KeptResponse, created: float, events: bytes | None = None
    ) -> StoreResult:
        """`created`: seconds since the epoch. `events`: of one in the background, see EventLog.

        Raises RedisDownError, and MALFORMED_RESPONSE_ERRORS for an output that is no list of items.
        """
        now = int(1000 * self._clock())
        prolonged: tuple[str, ...] = ()
        if not 0.9 * self._ttl_ms <= response.alive_until - now <= self._ttl_ms:  # longer: `ttl` was changed
            response, prolonged = response._replace(alive_until=now + self._ttl_ms), response.ancestors
        fields = encode_fields(response, created)
        script = _WRITE_SCRIPT
        if events is not None:
            script = _END_SCRIPT
            fields += ["state", "ended", "events", events]
        size = sum([len(word) for word in fields[1::2]])
        written, left, indexed, *others = await self._pipeline.execute(
            ("EVAL", script, 1, response_key(tenant, response.id), self._ttl_ms, response.digest, *fields),
            self._index.use(tenant, now, response.id, size, prolonged),
            self._add_items(tenant, response.id, response.output),
            *[("PEXPIRE", response_key(tenant, id_), self._ttl_ms) for id_ in prolonged[:-1]],
            *[self._prolong(tenant, id_, response.alive_until) for id_ in prolonged[-1:]],
            size=size,
        )
        if any(isinstance(reply, Exception) for reply in others):  # a server of a cluster is down
            with contextlib.suppress(RedisDownError):  # the next turn has to prolong them
                self._pipeline.send(*[self._prolong(tenant, id_, 0) for id_ in (prolonged[-1], response.id)])
        return await self._settle(tenant, response.id, written, left, indexed)

    async def store_output(self, tenant: str, id_: str, output: bytes, created: float) -> StoreResult:
        """Keeps the items of a response for references to them. It cannot be continued. Raises as `store` does."""
        fields = ("output", b"[%b]" % output, "created", f"{created:.3f}")
        written, left, indexed = await self._pipeline.execute(
            ("EVAL", _OUTPUT_SCRIPT, 1, response_key(tenant, id_), self._ttl_ms, *fields),
            self._index.use(tenant, int(1000 * self._clock()), id_, len(output), ()),
            self._add_items(tenant, id_, output),
            size=len(output),
        )
        return await self._settle(tenant, id_, written, left, indexed)

    async def _settle(self, tenant: str, id_: str, written: Any, left: Any, indexed: Any) -> StoreResult:
        """What follows from the replies to the commands that write a record, and count it, and index its items."""
        for error in (written, left, indexed):
            # A RedisBackendError: a server of a cluster that is down.
            if isinstance(error, Exception) and not isinstance(error, RedisBackendError):
                self._on_refused(error)
        self._remove(tenant, left)
        if isinstance(written, Exception):
            if not isinstance(left, Exception):
                await self._remove_absent(tenant, id_)
            return "failed"
        result = _RESULTS.get(written, "collision")
        if result == "ended":
            await self._remove_absent(tenant, id_)
        return result

    def _add_items(self, tenant: str, id_: str, output: bytes) -> Command:
        return add_command(tenant, id_, len(output), referable_items(output))

    async def use(self, tenant: str, id_: str, size: int) -> None:
        """Counts a response that has another record until it is stored. Raises RedisDownError."""
        (left,) = await self._execute(self._index.use(tenant, int(1000 * self._clock()), id_, size, ()))
        self._remove(tenant, left)

    def _remove(self, tenant: str, left: Any) -> None:
        """Deletes what has left the index. `left`: its reply."""
        if gone := left_ids(left):
            for _ in gone:
                self._on_removed()
            with contextlib.suppress(RedisDownError):
                self._pipeline.send(*[("DEL", response_key(tenant, id_)) for id_ in gone])

    async def _remove_absent(self, tenant: str, id_: str) -> None:
        """Takes a response out of the index that could not be written. It may have been stored before."""
        with contextlib.suppress(RedisDownError):
            (held,) = await self._pipeline.execute(("HMGET", response_key(tenant, id_), "response", "output"))
            if held == [None, None] or (isinstance(held, Exception) and not isinstance(held, RedisBackendError)):
                self._pipeline.send(remove_command(tenant, id_))

    async def delete(self, tenant: str, id_: str) -> bool:
        """Whether it was there. Raises RedisDownError."""
        deleted, _ = await self._execute(("DEL", response_key(tenant, id_)), remove_command(tenant, id_))
        return bool(deleted)

    def _prolong(self, tenant: str, id_: str, alive_until: int) -> Command:
        return ("EVAL", _PROLONG_SCRIPT, 1, response_key(tenant, id_), self._ttl_ms, alive_until)

    async def _earlier_turns(self, tenant: str, ids: Sequence[str], size: int) -> dict[str, EarlierTurn]:
        """Of these turns the ones that are there. `size`: how many bytes they have at most."""
        found: dict[str, EarlierTurn] = {}
        for start in range(0, len(ids), _BATCH):
            batch = ids[start : start + _BATCH]
            keys = [response_key(tenant, id_).encode("ascii") for id_ in batch]
            replies = await self._execute(*[_READ_TURN % (len(key), key) for key in keys], size=size)
            found |= self._pipeline.decode(partial(decode_earlier_turns, batch), replies)
        return found

    async def _execute(self, *commands: Command | EncodedCommand, size: int = 0) -> list[Any]:
        replies = await self._pipeline.execute(*commands, size=size)
        if any(isinstance(reply, Exception) for reply in replies):
            raise RedisDownError
        return replies
