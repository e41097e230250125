"""Batches in Redis: what they are, how far they are, and which process works on which part.

    rh:1:batches                 a sorted set: `{tenant}:{id}` of the batches that have not ended -> when created
    rh:1:router:ended-batches    a sorted set: `{tenant}:{id}` of the last that have ended, of all tenants -> when
    rh:1:batches:{tenant}        a sorted set: the ids of a tenant's batches -> when created
    rh:1:batches:{tenant}:{id}   a hash
        spec         what its client asked for, JSON: see BatchSpec
        status       see BatchObject; `{status}_at`: since when, in seconds since the epoch
        paused       1: no line begins
        waiting      why no line runs, in words, until one does
        limited      1: that is a limit or a budget of its tenant
        total        lines of its file; `ranges`: the parts that they are divided into
        index        the token of the check, which names the index of its lines
        completed, failed, cached    lines of the ranges that are done
        errors       why it has failed, JSON
        output, error_file   ids of files, once there are any
        ends_as      while it is finalizing: its status after that
        job          `{token} {until}`: the process that checks its file, or joins its output
        range:{n}    of a range that was begun: `held {token} {until} {completed} {failed} {cached}`, later
                     `done {token} 0 …`

Theory of operation. A process takes a range for the time of a lease, and prolongs that while it works. Its results are
in a file that has the token of the lease in its name. A range is done once, by the token that holds it then; so the
results of a process that has lost its lease do not count, whatever it writes later. A process that takes over a range
begins with the results that are there. The same holds for the check at the beginning and for the end.

Each script has one key, so that it works in a cluster.
"""

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from router.core.batches.batch_object import ENDED, BatchErrors, BatchObject, RequestCounts
from router.core.cache.redis_keys import ENDED_BATCHES_KEY, OPEN_BATCHES_KEY, batch_key, batches_key
from router.net.redis.commands import Command
from router.net.redis.pipeline import RedisDownError, RedisPipeline
from router.net.redis.replies import hash_fields
from router.net.repeated_warning import RepeatedWarning

log = logging.getLogger("roundhouse.batches")

LEASE: Final = 30.0
"""Seconds without a sign of life after which another process takes over what a process held."""

RENEW_INTERVAL: Final = 5.0

KEPT_AFTER_END: Final = 30 * 86400
"""Seconds for which a batch that has ended is kept. One that never ends, as its tenant is gone: after its window."""

MAX_LISTED: Final = 10_000
"""Batches of a tenant that are listed, the newest ones."""

MAX_ENDED: Final = 20
"""Batches of all tenants that are listed as ended, the last ones."""

_encode: Final = msgspec.json.Encoder().encode

# ARGV: what the members of the tenant begin with, how many there may be, the score, the member. The reply: 0 if there
# are so many.
_ADMIT_SCRIPT: Final = """
local running = 0
for _, member in ipairs(redis.call('ZREVRANGE', KEYS[1], 0, -1)) do
    if string.sub(member, 1, #ARGV[1]) == ARGV[1] then running = running + 1 end
end
if running >= tonumber(ARGV[2]) then return 0 end
redis.call('ZINCRBY', KEYS[1], ARGV[3], ARGV[4])
return 1
"""

# ARGV: now in ms, the end of the lease in ms, the token, now in s, why no lines may run or nothing, 1 if a range may be
# claimed. The reply: what to do, and how the batch ends, or the number of the range and the token of a holder that has
# given it back.
_CLAIM_SCRIPT: Final = """
local key, now = KEYS[1], tonumber(ARGV[1])
local batch = redis.call('HMGET', key, 'status', 'ranges', 'ends_as', 'job', 'paused', 'expires')
local status, ranges, ends_as = batch[1], tonumber(batch[2] or 0), batch[3]
if not status then return {'ended'} end

-- A lease that ends later than any could is from before the clock was set back.
local function is_held(until_ms) return until_ms > now and until_ms <= 2 * tonumber(ARGV[2]) - now end

local function take_job(what)
    if is_held(batch[4] and tonumber(string.match(batch[4], ' (%d+)$')) or 0) then return {'wait'} end
    redis.call('HSET', key, 'job', ARGV[3] .. ' ' .. ARGV[2])
    return {what, ends_as or ''}
end

local function finalize(as, new_status)
    ends_as = as
    redis.call('HSET', key, 'ends_as', as)
    if new_status then redis.call('HSET', key, 'status', new_status, new_status .. '_at', ARGV[4]) end
end

local has_expired = now >= 1000 * tonumber(batch[6])
if status == 'validating' then
    if batch[5] == '1' and not has_expired then return {'wait'} end
    return take_job('validate')
end
if status == 'in_progress' and has_expired then
    finalize('expired', 'finalizing')
    status = 'finalizing'
end
if status == 'cancelling' and not ends_as then finalize('cancelled') end
if status == 'in_progress' or status == 'finalizing' or status == 'cancelling' then
    local open, held, given_back, counts = nil, false, nil, '0 0 0'
    for first = 0, ranges - 1, 500 do
        local names = {}
        for n = first, math.min(first + 499, ranges - 1) do names[#names + 1] = 'range:' .. n end
        for i, state in ipairs(redis.call('HMGET', key, unpack(names))) do
            if not state then
                open = open or first + i - 1
            elseif string.sub(state, 1, 4) == 'held' then
                if is_held(tonumber(string.match(state, '^held %S+ (%d+)'))) then held = true
                elseif not open then
                    open = first + i - 1
                    given_back = string.match(state, '^held (%S+) 0 ')
                    counts = string.match(state, '%d+ %d+ %d+$')
                end
            end
        end
    end
    if status ~= 'in_progress' then
        if held then return {'wait'} end
        return take_job('finalize')
    end
    if open then
        if batch[5] == '1' or ARGV[6] ~= '1' then return {'wait'} end
        if ARGV[5] ~= '' then
            redis.call('HSET', key, 'waiting', ARGV[5])
            redis.call('HDEL', key, 'limited')
            return {'wait'}
        end
        redis.call('HDEL', key, 'waiting', 'limited')
        redis.call('HSET', key, 'range:' .. open, 'held ' .. ARGV[3] .. ' ' .. ARGV[2] .. ' ' .. counts)
        return {'range', tostring(open), given_back or ''}
    end
    if held then return {'wait'} end
    finalize('completed', 'finalizing')
    return take_job('finalize')
end
if status == 'validating' then return {'wait'} end
return {'ended'}
"""

# ARGV: the number of the range, the token, the end of the lease in ms, lines completed, failed and cached, now in s.
# The reply: whether the work is to go on, 0, 1, or 2 while it is paused.
_RENEW_RANGE_SCRIPT: Final = """
local name = 'range:' .. ARGV[1]
local batch = redis.call('HMGET', KEYS[1], 'status', name, 'paused', 'expires')
if not batch[2] or string.match(batch[2], '^held (%S+)') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], name, 'held ' .. table.concat(ARGV, ' ', 2, 6))
if batch[1] ~= 'in_progress' or tonumber(ARGV[7]) >= tonumber(batch[4]) then return 0 end
return batch[3] == '1' and 2 or 1
"""

# ARGV: the number of the range, the token, `done` or `held`, lines completed, failed and cached; these stay as they are
# if they are left out.
_FINISH_RANGE_SCRIPT: Final = """
local name = 'range:' .. ARGV[1]
local state = redis.call('HGET', KEYS[1], name)
if not state or string.match(state, '^held (%S+)') ~= ARGV[2] then return 0 end
local counts = ARGV[4] and table.concat(ARGV, ' ', 4) or string.match(state, '%d+ %d+ %d+$')
redis.call('HSET', KEYS[1], name, ARGV[3] .. ' ' .. ARGV[2] .. ' 0 ' .. counts)
if ARGV[3] == 'done' then
    for i, field in ipairs({'completed', 'failed', 'cached'}) do redis.call('HINCRBY', KEYS[1], field, ARGV[3 + i]) end
end
return 1
"""

# ARGV: the token, the end of the lease in ms.
_RENEW_JOB_SCRIPT: Final = """
local job = redis.call('HGET', KEYS[1], 'job')
if not job or string.match(job, '^(%S+)') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'job', ARGV[1] .. ' ' .. ARGV[2])
return 1
"""

# ARGV: the token, the time to live in ms or 0, fields and values. A batch that was cancelled meanwhile stays so.
_FINISH_JOB_SCRIPT: Final = """
local batch = redis.call('HMGET', KEYS[1], 'job', 'status')
if not batch[1] or string.match(batch[1], '^(%S+)') ~= ARGV[1] then return 0 end
redis.call('HDEL', KEYS[1], 'job')
local fields = {}
for i = 3, #ARGV, 2 do
    local is_start = ARGV[i] == 'status' and ARGV[i + 1] == 'in_progress'
    if not (is_start and batch[2] == 'cancelling') then
        fields[#fields + 1] = ARGV[i]
        fields[#fields + 1] = ARGV[i + 1]
    end
end
redis.call('HSET', KEYS[1], unpack(fields))
if ARGV[2] ~= '0' then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1
"""

# ARGV: why, and 1 if that is a limit. Not for a batch that is gone.
_SET_WAITING_SCRIPT: Final = """
if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('HSET', KEYS[1], 'waiting', ARGV[1], 'limited', ARGV[2]) end
"""

# ARGV: now in s. The reply: the status before.
_CANCEL_SCRIPT: Final = """
local status = redis.call('HGET', KEYS[1], 'status')
if status == 'validating' or status == 'in_progress' then
    redis.call('HSET', KEYS[1], 'status', 'cancelling', 'cancelling_at', ARGV[1], 'paused', '0')
end
return status
"""

# ARGV: 1 or 0. The reply: the status.
_PAUSE_SCRIPT: Final = """
local status = redis.call('HGET', KEYS[1], 'status')
if status == 'validating' or status == 'in_progress' then redis.call('HSET', KEYS[1], 'paused', ARGV[1]) end
return status
"""


# The reply: as to HGETALL, but with the ranges that are held as one.
_PROGRESS_SCRIPT: Final = """
local fields, sums = {}, {0, 0, 0}
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
    if string.sub(all[i], 1, 6) ~= 'range:' then
        fields[#fields + 1] = all[i]
        fields[#fields + 1] = all[i + 1]
    else
        local counts = {string.match(all[i + 1], '^held %S+ %d+ (%d+) (%d+) (%d+)$')}
        for n = 1, #counts do sums[n] = sums[n] + counts[n] end
    end
end
if #fields > 0 then
    fields[#fields + 1] = 'range:held'
    fields[#fields + 1] = 'held - 0 ' .. table.concat(sums, ' ')
end
return fields
"""


class BatchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the client asked for. Times in seconds since the epoch. `cache_control`: for each of its requests.

    `output_ttl`: seconds for which its results are kept, if that is less than for all files.
    """

    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    metadata: Mapping[str, str] | None = None
    cache_control: str = ""
    output_ttl: int | None = None


_decode_spec: Final = msgspec.json.Decoder(BatchSpec).decode
_decode_errors: Final = msgspec.json.Decoder(BatchErrors).decode


class BatchNotFoundError(Exception):
    """The tenant has no such batch."""


class TooManyBatchesError(Exception):
    """So many batches of the tenant have not ended as there may be."""


class BatchName(NamedTuple):
    tenant: str
    id: str

    @property
    def key(self) -> str:
        return batch_key(self.tenant, self.id)


class Stage(NamedTuple):
    """`is_waiting`: it says why no line runs. `is_limited`: that is a limit or a budget of its tenant."""

    status: str
    is_paused: bool
    is_waiting: bool
    is_limited: bool


class Claim(NamedTuple):
    """What a process is to do. `range`: which one. `ends_as`: the batch's last status.

    `given_back`: the token of the range's last holder, if it has given it back.

    `what`: `validate`, `range` or `finalize`; `wait` if there is nothing now, `ended` if there never will be.
    """

    what: str
    token: str
    range: int = -1
    ends_as: str = ""
    given_back: str = ""


class BatchRecord(NamedTuple):
    """`shown`: as clients see it. `tokens`: of the ranges that are done, by number.

    `index_token`: of the check; empty before it.
    """

    spec: BatchSpec
    shown: BatchObject
    ranges: int
    index_token: str
    tokens: Mapping[int, str]


class BatchRecords:
    """- Each tenant finds its own batches alone.
    - A range is held by one process at a time, and done once.
    - Raises RedisDownError where Redis does not answer, and also where it refuses the command.
    """

    def __init__(self, pipeline: RedisPipeline, *, clock: Callable[[], float]) -> None:
        """`clock`: Redis' time, in seconds since the epoch."""
        self._pipeline = pipeline
        self._clock = clock
        self._warning = RepeatedWarning(log)

    # -- for clients --------------------------------------------------------------------------------------------------

    async def create(self, name: BatchName, spec: BatchSpec, *, max_open: int) -> None:
        """`max_open`: how many of the tenant's may not have ended. Raises TooManyBatchesError."""
        fields = (
            "spec", _encode(spec), "status", "validating", "validating_at", spec.created_at, "expires", spec.expires_at,
        )  # fmt: skip
        listed, open_member, score = batches_key(name.tenant), f"{name.tenant}:{name.id}", f"{self._clock():.3f}"
        await self._execute(
            ("HSET", name.key, *fields),
            ("PEXPIRE", name.key, 1000 * (spec.expires_at - spec.created_at + KEPT_AFTER_END)),
            # Not ZADD, so that the router's user of Redis needs no further right; the member is new.
            ("ZINCRBY", listed, score, name.id),
            ("ZREMRANGEBYRANK", listed, 0, -MAX_LISTED - 1),
        )
        # Last, since from then on processes look for it.
        admit = ("EVAL", _ADMIT_SCRIPT, 1, OPEN_BATCHES_KEY, f"{name.tenant}:", max_open, score, open_member)
        (admitted,) = await self._execute(admit)
        if not admitted:
            await self._execute(("DEL", name.key), ("ZREM", listed, name.id))
            raise TooManyBatchesError

    async def find(self, name: BatchName) -> BatchRecord:
        """Raises BatchNotFoundError."""
        (reply,) = await self._execute(("HGETALL", name.key))
        return self._decode(name, reply)

    async def ids(self, tenant: str) -> list[str]:
        """Of all its batches, the newest first."""
        (reply,) = await self._execute(("ZREVRANGE", batches_key(tenant), 0, -1))
        return [id_.decode() for id_ in reply]

    async def find_all(self, tenant: str, ids: Sequence[str]) -> list[BatchObject]:
        """Those of them that are still kept."""
        names = [BatchName(tenant, id_) for id_ in ids]
        replies = await self._execute(*[("HGETALL", name.key) for name in names]) if names else []
        found = []
        gone = []
        for name, reply in zip(names, replies, strict=True):
            try:
                found.append(self._decode(name, reply).shown)
            except BatchNotFoundError:
                gone.append(name.id)
        if gone:
            await self._execute(("ZREM", batches_key(tenant), *gone))
        return found

    async def cancel(self, name: BatchName) -> str:
        """The status before. Raises BatchNotFoundError."""
        return await self._change(name, _CANCEL_SCRIPT, int(self._clock()))

    async def pause(self, name: BatchName, *, paused: bool) -> str:
        """The status. Raises BatchNotFoundError."""
        return await self._change(name, _PAUSE_SCRIPT, int(paused))

    async def _change(self, name: BatchName, script: str, argument: int) -> str:
        (status,) = await self._execute(("EVAL", script, 1, name.key, argument))
        if status is None:
            raise BatchNotFoundError
        return str(status, "ascii")

    # -- for administrators -------------------------------------------------------------------------------------------

    async def ended(self) -> list[BatchName]:
        """The batches of all tenants that have ended, the last one first; at most MAX_ENDED."""
        (reply,) = await self._execute(("ZREVRANGE", ENDED_BATCHES_KEY, 0, -1))
        return [_name(member) for member in reply]

    async def progress(self, names: Sequence[BatchName]) -> list[tuple[BatchName, BatchObject]]:
        """How far those of them are that are still kept. Redis adds up the ranges, which may be many."""
        commands = [("EVAL", _PROGRESS_SCRIPT, 1, name.key) for name in names]
        replies = await self._execute(*commands) if commands else []
        found = []
        for name, reply in zip(names, replies, strict=True):
            with contextlib.suppress(BatchNotFoundError):
                found.append((name, self._decode(name, reply).shown))
        return found

    async def stages(self, names: Sequence[BatchName]) -> list[Stage]:
        """Of those of them that are still kept."""
        commands = [("HMGET", name.key, "status", "paused", "waiting", "limited") for name in names]
        replies = await self._execute(*commands) if commands else []
        return [
            Stage(str(status, "ascii"), paused == b"1", bool(waiting), limited == b"1")
            for status, paused, waiting, limited in replies
            if status
        ]

    # -- for processes that work on them ------------------------------------------------------------------------------

    async def open(self) -> list[BatchName]:
        """The batches that have not ended, the oldest first."""
        (reply,) = await self._execute(("ZREVRANGE", OPEN_BATCHES_KEY, 0, -1))
        return [_name(member) for member in reversed(reply)]

    async def remove_lost(self) -> None:
        """Forgets open batches that Redis has no more: those of tenants that are gone."""
        names = await self.open()
        replies = await self._execute(*[("EXISTS", name.key) for name in names]) if names else []
        lost = [f"{name.tenant}:{name.id}" for name, exists in zip(names, replies, strict=True) if not exists]
        if lost:
            await self._execute(("ZREM", OPEN_BATCHES_KEY, *lost))

    async def with_jobs(self, names: Sequence[BatchName]) -> list[BatchName]:
        """Those of them whose file is to be checked, or that are to be ended."""
        commands = [("HMGET", name.key, "status", "expires") for name in names]
        replies = await self._execute(*commands) if commands else []
        now = self._clock()
        return [
            name for name, (status, expires) in zip(names, replies, strict=True)
            if status != b"in_progress" or float(expires) <= now
        ]  # fmt: skip

    async def claim(self, name: BatchName, token: str, no_range: str = "", *, ranges: bool = True) -> Claim:
        """`no_range`: why no lines may run, for those who look; empty if they may. `ranges`: whether one is claimed."""
        now = self._clock()
        (reply,) = await self._execute(
            ("EVAL", _CLAIM_SCRIPT, 1, name.key, int(1000 * now), self._lease_end(), token, int(now), no_range,
             int(ranges))
        )  # fmt: skip
        what, *rest = [word.decode() for word in reply]
        if what == "ended":
            await self._execute(("ZREM", OPEN_BATCHES_KEY, f"{name.tenant}:{name.id}"))
        if what == "range":
            return Claim(what, token, int(rest[0]), given_back=rest[1])
        return Claim(what, token, ends_as=rest[0] if rest else "")

    async def renew_range(self, name: BatchName, claim: Claim, counts: RequestCounts) -> int:
        """`counts`: so far. 0: the range is another process', or the batch is ending. 2: it is paused."""
        command = (
            "EVAL", _RENEW_RANGE_SCRIPT, 1, name.key, claim.range, claim.token, self._lease_end(), *_words(counts),
            int(self._clock()),
        )  # fmt: skip
        (reply,) = await self._execute(command)
        return int(reply)

    async def finish_range(self, name: BatchName, claim: Claim, counts: RequestCounts | None, *, done: bool) -> bool:
        """`counts`: None if they are not known. `done`: else another process may take it at once.

        False: the range is another process'.
        """
        state = "done" if done else "held"
        words = _words(counts) if counts is not None else ()
        command = ("EVAL", _FINISH_RANGE_SCRIPT, 1, name.key, claim.range, claim.token, state, *words)
        (reply,) = await self._execute(command)
        return bool(reply == 1)

    async def set_waiting(self, name: BatchName, reason: str, *, is_limited: bool = False) -> None:
        """Why no line runs, for those who look; until a range is claimed. Empty: they run.

        `is_limited`: a limit or a budget of its tenant is reached.
        """
        await self._execute(("EVAL", _SET_WAITING_SCRIPT, 1, name.key, reason, int(is_limited)))

    async def renew_job(self, name: BatchName, token: str) -> bool:
        (reply,) = await self._execute(("EVAL", _RENEW_JOB_SCRIPT, 1, name.key, token, self._lease_end()))
        return bool(reply == 1)

    async def begin(self, name: BatchName, token: str, total: int, ranges: int) -> bool:
        """Its file has been checked."""
        now = int(self._clock())
        fields = (
            "status", "in_progress", "in_progress_at", now, "total", total, "ranges", ranges, "index", token,
        )  # fmt: skip
        return await self._finish_job(name, token, 0, *fields)

    async def fail(self, name: BatchName, token: str, errors: BatchErrors) -> bool:
        now = int(self._clock())
        return await self._end(name, token, "failed", "failed_at", now, "errors", _encode(errors))

    async def end(
        self, name: BatchName, token: str, status: str, counts: RequestCounts, output: str, error_file: str
    ) -> bool:
        """`output`, `error_file`: ids of files, empty for none."""
        files = [field for field in (("output", output), ("error_file", error_file)) if field[1]]
        return await self._end(
            name, token, status, f"{status}_at", int(self._clock()), "completed", counts.completed, "failed",
            counts.failed, "cached", counts.cached, *[word for pair in files for word in pair],
        )  # fmt: skip

    async def _end(self, name: BatchName, token: str, status: str, *fields: str | int | bytes) -> bool:
        ended = await self._finish_job(name, token, 1000 * KEPT_AFTER_END, "status", status, *fields)
        if ended:
            member = f"{name.tenant}:{name.id}"
            await self._execute(
                ("ZREM", OPEN_BATCHES_KEY, member),
                ("ZINCRBY", ENDED_BATCHES_KEY, f"{self._clock():.3f}", member),
                ("ZREMRANGEBYRANK", ENDED_BATCHES_KEY, 0, -MAX_ENDED - 1),
            )
        return ended

    async def _finish_job(self, name: BatchName, token: str, ttl_ms: int, *fields: str | int | bytes) -> bool:
        (reply,) = await self._execute(("EVAL", _FINISH_JOB_SCRIPT, 1, name.key, token, ttl_ms, *fields))
        return bool(reply == 1)

    def _lease_end(self) -> int:
        return int(1000 * (self._clock() + LEASE))

    async def _execute(self, *commands: Command) -> list[Any]:
        replies = await self._pipeline.execute(*commands)
        for reply in replies:
            if isinstance(reply, Exception):
                self._warning.log("Redis refuses a command of batches: %s", reply)
                raise RedisDownError
        return replies

    def _decode(self, name: BatchName, reply: Any) -> BatchRecord:
        fields = self._pipeline.decode(hash_fields, reply)
        if b"spec" not in fields or b"status" not in fields:
            raise BatchNotFoundError
        return self._pipeline.decode(lambda values: _read(name, values), fields)


def _name(member: bytes) -> BatchName:
    tenant, _, id_ = member.decode().partition(":")
    return BatchName(tenant, id_)


def _read(batch: BatchName, fields: Mapping[bytes, bytes]) -> BatchRecord:
    spec = _decode_spec(fields[b"spec"])
    status: Any = fields[b"status"].decode()
    total, ranges = _number(fields, b"total") or 0, _number(fields, b"ranges") or 0
    counts = [_number(fields, name) or 0 for name in (b"completed", b"failed", b"cached")]
    tokens = {}
    for field, value in fields.items():
        if field.startswith(b"range:"):
            state, token, _, *range_counts = value.split(b" ")
            if state == b"done":
                tokens[int(field[6:])] = token.decode()
            elif status not in ENDED:
                counts = [count + int(more) for count, more in zip(counts, range_counts, strict=True)]
    times: dict[str, Any] = {f"{each}_at": _number(fields, f"{each}_at".encode()) for each in _TIMED}
    shown = BatchObject(
        id=batch.id,
        endpoint=spec.endpoint,
        errors=_decode_errors(fields[b"errors"]) if b"errors" in fields else None,
        input_file_id=spec.input_file_id,
        completion_window=spec.completion_window,
        status=status,
        output_file_id=_text(fields, b"output"),
        error_file_id=_text(fields, b"error_file"),
        created_at=spec.created_at,
        expires_at=spec.expires_at,
        request_counts=RequestCounts(total, *counts),
        metadata=spec.metadata,
        paused=fields.get(b"paused") == b"1",
        waiting_for=(_text(fields, b"waiting") or None) if status == "in_progress" else None,
        **times,
    )
    return BatchRecord(spec, shown, ranges, _text(fields, b"index") or "", tokens)


def _words(counts: RequestCounts) -> tuple[int, int, int]:
    return counts.completed, counts.failed, counts.cached


_TIMED: Final = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


def _number(fields: Mapping[bytes, bytes], name: bytes) -> int | None:
    value = fields.get(name)
    return int(value) if value is not None else None


def _text(fields: Mapping[bytes, bytes], name: bytes) -> str | None:
    value = fields.get(name)
    return value.decode() if value is not None else None
