"""Follows another process' in-flight request through its stream in Redis.

Theory of operation. Redis pushes that the stream has changed (router.net.redis.listener). The follower then reads the
records after the last one that it has; it also polls, since a push can be lost. Once a second it publishes the id of
the in-flight request on the leader's channel.

A leader is lost when
- its claim is gone and it has written nothing: it ended or died before it knew of the follower;
- nobody is subscribed to its channel, or it has not written its first record within LEASE_DURATION: it is unreachable;
- it has written nothing for LEASE_DURATION although Redis answers, and its claim is gone too: a leader that is alive
  writes at least empty records, and if Redis refuses them (when it is out of memory), it still renews its claim;
- a record is missing;
- it has got no message for so long that it has ended the stream: its caller did not take what was read. A later
  message would begin another stream under the same name.

While Redis does not answer, nothing is known about the leader. A follower that has received records waits for Redis for
LEASE_DURATION, and then gives the leader another LEASE_DURATION to write what it could not. A follower that has
received nothing fails at once, since it can start a generation of its own.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from math import inf
from typing import Any, Final, NamedTuple

from redis.exceptions import ResponseError

from router.core.cache.redis_keys import claim_key, flight_key
from router.net.redis.commands import Command, after_previous
from router.net.redis.pipeline import RedisDownError, RedisPipeline
from router.net.redis.replies import stream_records
from router.shared.inflight.claim import LEASE_DURATION, Claim, process_channel
from router.shared.inflight.stream_writer import StreamRecord, decode_record

FOLLOW_INTERVAL: Final = 1.0
"""Seconds between two messages to the leader that the in-flight request has a remote follower."""

_POLL_INTERVAL: Final = 0.5  # seconds between two reads without a push, since a push can be lost
_RETRY_DELAY: Final = 0.05  # seconds between two reads while Redis does not answer


class LeaderLostError(Exception):
    """The leader is gone, or will not write the rest of the stream."""


class StreamSource(NamedTuple):
    """What is followed: a stream, and its leader.

    - `process_id`: of the leader; `message`: what it gets on its channel from each follower.
    - `sign`: a command; `is_held`: whether the reply to it says that the leader is still in charge.
    - `message_timeout`: seconds without a message after which the leader ends the stream.
    """

    stream: str
    process_id: str
    message: str
    sign: Command
    is_held: Callable[[Any], bool]
    message_timeout: float = inf


def flight_source(key: str, claim: Claim) -> StreamSource:
    value = claim.encode().encode()
    return StreamSource(
        flight_key(key, claim.flight_id), claim.process_id, claim.flight_id, ("GET", claim_key(key)),
        lambda holder: bool(holder == value),
    )  # fmt: skip


class _SignsOfLeader:
    """What is known of the leader. Times are those of the event loop. `last`: the number of the last record, or 0."""

    def __init__(self, now: float) -> None:
        self.last = 0
        self._alive_at = now  # when the leader last wrote, or when Redis came back, so that it could write again
        self._down_since: float | None = None  # since when Redis does not answer

    def on_redis_down(self, now: float) -> None:
        if not self.last:
            raise RedisDownError
        self._down_since = self._down_since or now
        if now - self._down_since > LEASE_DURATION:
            raise LeaderLostError

    def on_answer(self, now: float) -> None:
        if self._down_since is not None:
            self._down_since, self._alive_at = None, now

    def on_record(self, number: int, now: float) -> None:
        if number != self.last + 1:
            raise LeaderLostError  # trimmed: the leader has written more than the stream keeps
        self.last, self._alive_at = number, now

    @property
    def has_written(self) -> bool:
        return self.last > 0

    def is_silent(self, now: float) -> bool:
        return now - self._alive_at > LEASE_DURATION


async def follow(
    pipeline: RedisPipeline, source: StreamSource, stream_changed: asyncio.Event
) -> AsyncGenerator[StreamRecord, None]:
    """Yields the records of an in-flight request, from the first one to the one with its outcome.

    `stream_changed` is set by the push that the stream has changed. Raises LeaderLostError, and RedisDownError while no
    record has been read.
    """
    clock = asyncio.get_running_loop().time
    leader = _SignsOfLeader(clock())
    published_at: float | None = None
    heard_at = clock()  # when the leader has got the last message, or earlier
    while True:
        stream_changed.clear()  # before the read: a push that arrives during it must cause another read
        receivers: Awaitable[list[Any]] | None = None
        if leader.has_written and clock() - heard_at > source.message_timeout:
            raise LeaderLostError
        try:
            if published_at is None or clock() - published_at >= FOLLOW_INTERVAL:
                published_at = clock()
                receivers = pipeline.execute(("PUBLISH", process_channel(source.process_id), source.message))
            held, records = await _read(pipeline, source, leader.last)
        except RedisDownError:
            leader.on_redis_down(clock())
            published_at = None  # publish again: the last message may be lost
            await asyncio.sleep(_RETRY_DELAY)
            continue
        leader.on_answer(clock())
        heard_at = published_at
        for id_, fields in records:
            leader.on_record(int(id_.partition(b"-")[0]), clock())
            record = decode_record(fields)
            yield record
            if record.outcome is not None:
                return
        if records:
            continue
        # No record yet: the leader must hold the claim and must have received the message.
        if not leader.has_written and not (
            held and (receivers is None or _may_have_receivers(pipeline, (await receivers)[0]))
        ):
            raise LeaderLostError
        # Its claim counts as a sign of life only once it has written, which shows that it knows of its follower.
        if leader.is_silent(clock()) and not (leader.has_written and held):
            raise LeaderLostError
        await _wait_for_event(stream_changed, _POLL_INTERVAL)


async def _read(pipeline: RedisPipeline, source: StreamSource, last: int) -> tuple[bool, Sequence[tuple[bytes, Any]]]:
    """Whether the leader is in charge, and the records after the last one. Raises RedisDownError."""
    # The sign is read first: if it is gone by then, the stream is as complete as it will ever be.
    sign, records = await pipeline.execute(
        source.sign, after_previous(("XRANGE", source.stream, f"{last + 1}-0", "+", "COUNT", 100))
    )
    if isinstance(sign, Exception) or isinstance(records, Exception):  # one server of a cluster is down
        raise RedisDownError
    return pipeline.decode(source.is_held, sign), pipeline.decode(stream_records, records)


def _may_have_receivers(pipeline: RedisPipeline, receivers: Any) -> bool:
    """Whether a message may have reached a subscriber. `receivers` is the reply to PUBLISH, which may be an error."""
    # An error other than a ResponseError, a server of a cluster that is down, says nothing about the leader.
    return not isinstance(receivers, ResponseError) and (receivers != 0 or not pipeline.counts_receivers)


async def _wait_for_event(event: asyncio.Event, timeout: float) -> None:
    try:
        async with asyncio.timeout(timeout):
            await event.wait()
    except TimeoutError:
        pass
