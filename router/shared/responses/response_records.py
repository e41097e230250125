"""The responses of /v1/responses that later requests may continue, in Redis.

    rh:1:response:{tenant}:{id}    one of them, a hash; see KeptResponse
    rh:1:response:{tenant}         a sorted set: the ids of a tenant's, by when each was last used, in ms

Theory of operation. A response is stored with the items of its own turn, and with the ids of those before it. So a
conversation grows by what is new, and all of it is read at once. The set bounds how many a tenant has: the ones that
were not used for longest leave. A turn counts as a use of all turns before it, and prolongs their lives.

An id is the engine's, so that two responses may have the same. Each record has a digest of its whole conversation. One
with the same id and another conversation is not stored, and marks the record that is there: from then on nobody knows
which of the two a client means by the id, so it is not found. Turns that were added to the one that is there name it by
its digest, too, and still find it.

The same conversation may come in other turns, since a client may send all of it as its input. The record whose turn is
all of it stays: it needs no others. So a record says what its parent is, and the ids before that are a hint of what to
read.
"""

import contextlib
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from router.core.cache.redis_keys import response_key, responses_key
from router.core.endpoints.conversations.items import join_items
from router.net.redis.commands import Command
from router.net.redis.errors import RedisBackendError
from router.net.redis.pipeline import RedisDownError, RedisPipeline

MAX_TURNS: Final = 1000
"""Of a conversation. Each record has the ids of all turns before it."""

StoreResult = Literal["stored", "collision", "failed"]

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

# ARGV: the time to live in ms, the time in ms, how many ids stay, the id that is new, and those before it. Returns the
# ids that have left. ZINCRBY and ZREVRANGE rather than ZADD and ZRANGE: the router's ACL has them.
_USE_SCRIPT: Final = """
for at = 4, #ARGV do
  local used = redis.call('ZSCORE', KEYS[1], ARGV[at])
  if used or at == 4 then redis.call('ZINCRBY', KEYS[1], ARGV[2] - (used or 0), ARGV[at]) end
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
local gone = redis.call('ZREVRANGE', KEYS[1], ARGV[3], -1)
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - ARGV[3])
return gone
"""

_OWN_FIELDS: Final = ("parent", "before", "digest", "size", "input", "output", "ambiguous")
_TURN_FIELDS: Final = (*_OWN_FIELDS, "root", "ancestors")


class KeptResponse(NamedTuple):
    """A turn of a conversation.

    - `parent`: the id of the turn before; empty in the first one. `root`: that of the first one.
    - `ancestors`: the ids of all turns before, the first one first, as they were when it was stored.
    - `before`, `digest`: of the conversation, without and with this turn; see items.extend_digest.
    - `size`: bytes of the items of the conversation.
    - `input`, `output`: the items of this turn. `response`: the object as it was sent.
    """

    id: str
    parent: str
    root: str
    ancestors: tuple[str, ...]
    before: str
    digest: str
    size: int
    input: bytes
    output: bytes
    response: bytes = b""


class Conversation(NamedTuple):
    """`turns`: the first one first, at least one."""

    turns: tuple[KeptResponse, ...]

    @property
    def input(self) -> bytes:
        """The items that the last response was made from."""
        *before, last = self.turns
        return join_items(*[join_items(turn.input, turn.output) for turn in before], last.input)

    @property
    def items(self) -> bytes:
        return join_items(self.input, self.turns[-1].output)


class ResponseNotFoundError(Exception):
    """There is no such response, or a turn before it is gone, or nobody knows which one is meant."""


class ResponseRecords:
    """- Each tenant finds its own responses alone.
    - What was stored is found by every process that asks after `store` has returned.
    - A conversation is read as it was stored, or not found.
    - Raises RedisDownError where Redis does not answer, and also where it refuses the command.
    """

    def __init__(
        self, pipeline: RedisPipeline, *, ttl: float, max_per_tenant: int, clock: Callable[[], float],
        on_refused: Callable[[Exception], None] = lambda _: None, on_removed: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """`ttl`: seconds. `clock`: see CacheLookup. `on_refused`: see EntryStore.

        `on_removed`: a response leaves, since its tenant has too many.
        """
        self._pipeline = pipeline
        self._ttl_ms = max(1, int(1000 * ttl))
        self._max_per_tenant = max_per_tenant
        self._clock = clock
        self._on_refused = on_refused
        self._on_removed = on_removed

    async def find(self, tenant: str, id_: str, *, with_object: bool = False) -> KeptResponse:
        """`with_object`: whether its `response` is read, too. Raises ResponseNotFoundError and RedisDownError."""
        (found,) = await self._read(tenant, [id_], (*_TURN_FIELDS, "response") if with_object else _TURN_FIELDS)
        if found is None or found[1]:
            raise ResponseNotFoundError
        return found[0]

    async def conversation(self, tenant: str, last: KeptResponse) -> Conversation:
        """Raises ResponseNotFoundError and RedisDownError."""
        known = await self._known(tenant, last.ancestors, last.size)
        turn, turns = last, [last]
        while turn.parent:
            if len(turns) >= MAX_TURNS:
                raise ResponseNotFoundError
            parent = known.get(turn.parent)
            if parent is None and turn.parent not in last.ancestors:  # a turn before was replaced by an equal one
                parent = (await self._known(tenant, [turn.parent], last.size)).get(turn.parent)
            if parent is None or parent.digest != turn.before:
                raise ResponseNotFoundError
            turn = parent
            turns.append(turn)
        return Conversation(tuple(reversed(turns)))

    async def store(self, tenant: str, response: KeptResponse, created: float) -> StoreResult:
        """`created`: seconds since the epoch. Raises RedisDownError."""
        ids = response.ancestors
        replies = await self._pipeline.execute(
            ("EVAL", _WRITE_SCRIPT, 1, response_key(tenant, response.id), self._ttl_ms, response.digest,
             *_encode(response, created)),
            ("EVAL", _USE_SCRIPT, 1, responses_key(tenant), self._ttl_ms, int(1000 * self._clock()),
             self._max_per_tenant, response.id, *ids),
            *(("PEXPIRE", response_key(tenant, id_), self._ttl_ms) for id_ in ids),
            size=len(response.input) + len(response.output) + len(response.response),
        )  # fmt: skip
        written, gone = replies[:2]
        if isinstance(written, Exception):
            if not isinstance(written, RedisBackendError):  # a server of a cluster that is down
                self._on_refused(written)
            return "failed"
        if isinstance(gone, Exception):  # stored, and not counted
            self._on_refused(gone)
        if isinstance(gone, list) and gone:
            keys = [response_key(tenant, id_.decode("ascii", "replace")) for id_ in gone if type(id_) is bytes]
            for _ in keys:
                self._on_removed()
            with contextlib.suppress(RedisDownError):
                self._pipeline.send(*(("DEL", key) for key in keys))
        return "stored" if written == 1 else "collision"

    async def delete(self, tenant: str, id_: str) -> bool:
        """Whether it was there. Raises RedisDownError."""
        deleted, _ = await self._execute(("DEL", response_key(tenant, id_)), ("ZREM", responses_key(tenant), id_))
        return bool(deleted)

    async def _known(self, tenant: str, ids: Sequence[str], size: int) -> dict[str, KeptResponse]:
        """Of these turns the ones that are there, without `root`, `ancestors` and `response`."""
        found = await self._read(tenant, ids, _OWN_FIELDS, size)
        return {each[0].id: each[0] for each in found if each is not None}

    async def _read(
        self, tenant: str, ids: Sequence[str], fields: Sequence[str], size: int = 0
    ) -> list[tuple[KeptResponse, bool] | None]:
        """For each id its response, and whether it is ambiguous. `size`: about how many bytes they have."""
        if not ids:
            return []
        commands: list[Command] = [("HMGET", response_key(tenant, id_), *fields) for id_ in ids]
        replies = await self._execute(*commands, size=size)
        return [
            self._pipeline.decode(partial(_decode, id_, fields), reply) for id_, reply in zip(ids, replies, strict=True)
        ]

    async def _execute(self, *commands: Command, size: int = 0) -> list[Any]:
        replies = await self._pipeline.execute(*commands, size=size)
        if any(isinstance(reply, Exception) for reply in replies):
            raise RedisDownError
        return replies


def _encode(response: KeptResponse, created: float) -> list[str | bytes | int]:
    fields: dict[str, str | bytes | int] = {
        "parent": response.parent,
        "root": response.root,
        "ancestors": " ".join(response.ancestors),
        "before": response.before,
        "digest": response.digest,
        "size": response.size,
        "input": b"[%b]" % response.input,
        "output": b"[%b]" % response.output,
        "response": response.response,
        "created": f"{created:.3f}",
    }
    return [word for field in fields.items() for word in field]


def _decode(id_: str, names: Sequence[str], reply: Any) -> tuple[KeptResponse, bool] | None:
    """Raises any exception for a reply that HMGET cannot have."""
    values: dict[str, bytes | None] = dict(zip(names, reply, strict=True))
    if not values["digest"] or _NUMBER.fullmatch(values["size"] or b"") is None:
        return None  # it is not there, or no record of ours
    text = {name: (value or b"").decode("ascii", "replace") for name, value in values.items() if name in _TEXTS}
    return KeptResponse(
        id=id_,
        parent=text["parent"],
        root=text.get("root", ""),
        ancestors=tuple(text.get("ancestors", "").split()),
        before=text["before"],
        digest=text["digest"],
        size=int(values["size"] or b""),
        input=(values["input"] or b"[]")[1:-1],
        output=(values["output"] or b"[]")[1:-1],
        response=values.get("response") or b"",
    ), bool(values["ambiguous"])


_NUMBER: Final = re.compile(rb"[0-9]{1,15}")
_TEXTS: Final = ("parent", "root", "ancestors", "before", "digest")
