"""The responses of /v1/responses that are generated in the background, in Redis.

    rh:1:response:{tenant}:{id}    as one that is kept (see response_records), from its beginning on, with
        state     `running`, later `ended`
        runner    the process that generates it, see InFlightLeases
        lease     until when that process is believed to live, in ms of Redis' clock
        events    all events of its stream, compressed; see EventLog

Theory of operation. A response ends once: each script that ends it looks whether it is running. So a response that was
cancelled at one router is not completed by another, and one whose process has died is not taken up again. The process
prolongs the lease while it generates. Who finds that the lease has run out, ends the response as failed.

The process learns that a response was cancelled, deleted or given up by a message, or else when it prolongs the lease.
"""

import secrets
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from router.core.cache.redis_keys import flight_key, response_key
from router.core.endpoints.conversations.background_response import ended_response
from router.core.endpoints.conversations.turn import with_previous_id
from router.errors import ApiError
from router.net.redis.commands import Command
from router.net.redis.pipeline import RedisDownError, RedisPipeline
from router.shared.inflight.claim import process_channel
from router.shared.inflight.stream_reader import StreamSource
from router.shared.responses.kept_response import ResponseNotFoundError
from router.shared.responses.response_records import ResponseRecords

LEASE: Final = 30.0
"""Seconds without a sign of life after which a process counts as dead, and its responses as failed."""

RENEW_INTERVAL: Final = 5.0

RETRY_DELAY: Final = 1.0
"""Seconds until Redis is asked again that did not answer."""

FOLLOWER_TIMEOUT: Final = 5.0
"""Seconds without a message of a follower after which the process ends its stream."""

STOP: Final = "stop"

_FIELDS: Final = ("response", "state", "runner", "lease", "parent", "digest", "ambiguous")

# ARGV: the time to live in ms, the end of the lease in ms, and the object, empty if it has not changed.
_RENEW_SCRIPT: Final = """
if redis.call('HGET', KEYS[1], 'state') ~= 'running' then return 0 end
redis.call('HSET', KEYS[1], 'lease', ARGV[2])
if ARGV[3] ~= '' then redis.call('HSET', KEYS[1], 'response', ARGV[3]) end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""

# ARGV: the time to live in ms, the object, the events, and a time in ms: only if the lease has run out by then; 0: in
# any case.
_END_SCRIPT: Final = """
local held = redis.call('HMGET', KEYS[1], 'state', 'lease')
if held[1] ~= 'running' then return 0 end
if ARGV[4] ~= '0' and tonumber(held[2]) > tonumber(ARGV[4]) then return 0 end
redis.call('HSET', KEYS[1], 'state', 'ended', 'response', ARGV[2], 'events', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""


# Of one that has ended without events. ARGV: the events.
_EVENTS_SCRIPT: Final = """
local held = redis.call('HMGET', KEYS[1], 'state', 'events')
if held[1] ~= 'ended' or (held[2] and held[2] ~= '') then return 0 end
redis.call('HSET', KEYS[1], 'events', ARGV[1])
return 1
"""


class StoredResponse(NamedTuple):
    """`body`: the object. `runner`: the process that generates it; empty if none does any more.

    `is_background`: whether it was generated in the background. `events`: compressed; empty if they are not kept, or
    were not asked for.
    """

    body: bytes
    runner: str
    is_background: bool
    events: bytes

    @property
    def is_running(self) -> bool:
        return bool(self.runner)


class BackgroundRecords:
    """- Each tenant finds its own responses alone, each of them in one state at every process.
    - A response ends once, and stays as it has ended.
    - Raises RedisDownError where Redis does not answer, and also where it refuses the command.
    """

    def __init__(
        self, pipeline: RedisPipeline, records: ResponseRecords, *, ttl: float, clock: Callable[[], float]
    ) -> None:
        """`records`: which of them are kept. `ttl`, `clock`: see ResponseRecords."""
        self._pipeline = pipeline
        self._records = records
        self._ttl_ms = max(1, int(1000 * ttl))
        self._clock = clock

    async def find(self, tenant: str, id_: str, *, with_events: bool = False) -> StoredResponse:
        """Raises ResponseNotFoundError and RedisDownError."""
        fields = (*_FIELDS, "events") if with_events else _FIELDS
        while True:
            (reply,) = await self._execute(("HMGET", response_key(tenant, id_), *fields))
            found, lease = self._pipeline.decode(_decode, reply)
            if found is None:
                raise ResponseNotFoundError
            now = int(1000 * self._clock())
            if not found.is_running or lease > now or self._has_just_come_up():
                return found
            # In the record, too: a process that was only paused must not complete what was failed for someone.
            body = ended_response(found.body, "failed", runner_lost())
            await self._end(tenant, id_, body, b"", now)

    def _has_just_come_up(self) -> bool:
        """Whether processes may not have prolonged their leases yet since Redis was down."""
        return self._pipeline.seconds_up < RENEW_INTERVAL + RETRY_DELAY

    async def cancel(self, tenant: str, id_: str) -> StoredResponse:
        """Ends a response that is running. Any other is as it was. Raises ResponseNotFoundError and RedisDownError."""
        while (found := await self.find(tenant, id_)).is_running:
            if await self.end(tenant, id_, ended_response(found.body, "cancelled")):
                self._pipeline.send(("PUBLISH", process_channel(found.runner), stop_message(id_)))
        return found

    async def begin(self, tenant: str, id_: str, body: bytes, runner: str) -> None:
        """`body`: the object. Raises RedisDownError: then it leaves no record, also if Redis gets the command later.

        It has its full time to live from the first `renew` on.
        """
        now = self._clock()
        fields = (
            "response", body, "state", "running", "runner", runner, "lease", self._lease_end(), "created", f"{now:.3f}"
        )  # fmt: skip
        key = response_key(tenant, id_)
        ttl_ms = min(self._ttl_ms, int(2000 * LEASE))
        await self._execute(("HSET", key, *fields), ("PEXPIRE", key, ttl_ms), size=len(body))
        await self._records.use(tenant, id_, len(body))

    async def renew(self, tenant: str, id_: str, body: bytes = b"") -> bool:
        """Prolongs the lease. `body`: the object, if it has changed. False: it is not running any more.

        Raises RedisDownError.
        """
        key = response_key(tenant, id_)
        command = ("EVAL", _RENEW_SCRIPT, 1, key, self._ttl_ms, self._lease_end(), body)
        (reply,) = await self._execute(command, size=len(body))
        return bool(reply == 1)

    async def end(self, tenant: str, id_: str, body: bytes, events: bytes = b"") -> bool:
        """Ends a response that cannot be continued; False if it had ended before. Raises RedisDownError."""
        return await self._end(tenant, id_, body, events, 0)

    async def _end(self, tenant: str, id_: str, body: bytes, events: bytes, expired_by: int) -> bool:
        key, size = response_key(tenant, id_), len(body) + len(events)
        command = ("EVAL", _END_SCRIPT, 1, key, self._ttl_ms, body, events, expired_by)
        (reply,) = await self._execute(command, size=size)
        if reply != 1:
            return False
        await self._records.use(tenant, id_, size)
        return True

    async def add_events(self, tenant: str, id_: str, events: bytes) -> None:
        """Of a response that has ended without them. Raises RedisDownError."""
        command = ("EVAL", _EVENTS_SCRIPT, 1, response_key(tenant, id_), events)
        (reply,) = await self._execute(command, size=len(events))
        if reply == 1:
            await self._records.use(tenant, id_, len(events))

    def source(self, tenant: str, id_: str, runner: str, after: int) -> StreamSource:
        """The stream of events with a number above `after`, for one follower."""
        # Under `flight`, since the listener wakes followers at each change of it: they need not poll for each event.
        key, stream_id = response_key(tenant, id_), secrets.token_hex(8)
        return StreamSource(
            flight_key(key, stream_id), runner, follow_message(id_, stream_id, after),
            ("HMGET", key, "state", "lease"), self._is_held, FOLLOWER_TIMEOUT,
        )  # fmt: skip

    def _is_held(self, reply: Any) -> bool:
        state, lease = reply
        return state == b"running" and int(lease) > 1000 * self._clock()

    def _lease_end(self) -> int:
        return int(1000 * (self._clock() + LEASE))

    async def _execute(self, *commands: Command, size: int = 0) -> list[Any]:
        replies = await self._pipeline.execute(*commands, size=size)
        if any(isinstance(reply, Exception) for reply in replies):
            raise RedisDownError
        return replies


def _decode(reply: Any) -> tuple[StoredResponse | None, int]:
    """The response, and the end of its lease. Raises any exception for a reply that HMGET cannot have."""
    body, state, runner, lease, parent, digest, ambiguous, *events = reply
    if not body or not (state or digest) or ambiguous:
        return None, 0
    is_running = state == b"running"
    stored = StoredResponse(
        body=with_previous_id(body, parent.decode("ascii", "replace") if parent else ""),
        runner=(runner or b"-").decode("ascii", "replace") if is_running else "",
        is_background=bool(state),
        events=(events[0] or b"") if events else b"",
    )
    return stored, int(lease or 0) if is_running else 0


def stop_message(id_: str) -> str:
    # To the process that generates the response, when that was cancelled.
    return f"{id_}.{STOP}"


def follow_message(id_: str, stream_id: str, after: int) -> str:
    # From a follower, once a second; see BackgroundRuns.
    return f"{id_}.{stream_id}.{after}"


def runner_lost() -> ApiError:
    return ApiError(503, "The router that generated the response is gone, or could not store it.", code="router_lost")
