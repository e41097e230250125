"""Follows another process' in-flight request through its stream in Redis.

Theory of operation. Redis pushes that the stream has changed (router.net.redis.listener). The follower then reads the
records after the last one that it has; it also polls, since a push can be lost. Once a second it publishes the id of
the in-flight request on the leader's channel.

A leader is lost when
- its claim is gone and it has written nothing: it ended or died before it knew of the follower;
- nobody is subscribed to its channel, or it has not written its first record within LEASE_DURATION: it is unreachable;
- it has written nothing for LEASE_DURATION although Redis answers, and its claim is gone too: a leader that is alive
  writes at least empty records, and if Redis refuses them (when it is out of memory), it still renews its claim;
- a record is missing.

While Redis does not answer, nothing is known about the leader. A follower that has received records waits for Redis for
LEASE_DURATION, and then gives the leader another LEASE_DURATION to write what it could not. A follower that has
received nothing fails at once, since it can start a generation of its own.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final

from redis.exceptions import ResponseError

from router.core.cache.redis_keys import claim_key, flight_key
from router.net.redis.commands import after_previous
from router.net.redis.pipeline import RedisDownError, RedisPipeline
from router.net.redis.replies import stream_records
from router.shared.claim import LEASE_DURATION, Claim, process_channel
from router.shared.stream_writer import StreamRecord, decode_record

FOLLOW_INTERVAL: Final = 1.0
"""Seconds between two messages to the leader that the in-flight request has a remote follower."""

_POLL_INTERVAL: Final = 0.5  # seconds between two reads without a push, since a push can be lost
_RETRY_DELAY: Final = 0.05  # seconds between two reads while Redis does not answer


class LeaderLostError(Exception):
    """The leader is gone, or will not write the rest of the stream."""


async def follow(
    pipeline: RedisPipeline, key: str, claim: Claim, stream_changed: asyncio.Event
) -> AsyncGenerator[StreamRecord, None]:
    """Yields the records of an in-flight request, from the first one to the one with its outcome.

    `stream_changed` is set by the push that the stream has changed. Raises LeaderLostError, and RedisDownError while no
    record has been read.
    """
    stream, clock = flight_key(key, claim.flight_id), asyncio.get_running_loop().time
    last = 0
    alive_at = clock()  # when the leader last wrote, or when Redis came back, so that it could write again
    published_at: float | None = None
    down_since: float | None = None  # since when Redis does not answer
    while True:
        stream_changed.clear()  # before the read: a push that arrives during it must cause another read
        try:
            receivers = None
            if published_at is None or clock() - published_at >= FOLLOW_INTERVAL:
                published_at = clock()
                receivers = pipeline.execute(("PUBLISH", process_channel(claim.process_id), claim.flight_id))
            # The claim is read first: if it is gone by then, the stream is as complete as it will ever be.
            holder, records = await pipeline.execute(
                ("GET", claim_key(key)), after_previous(("XRANGE", stream, f"{last + 1}-0", "+", "COUNT", 100))
            )
            if not isinstance(records, Exception):
                records = pipeline.decode(stream_records, records)
        except RedisDownError as error:
            holder = records = error
        if isinstance(holder, Exception) or isinstance(records, Exception):  # or one server of a cluster is down
            if not last:
                raise RedisDownError
            down_since, published_at = down_since or clock(), None  # publish again: the last message may be lost
            if clock() - down_since > LEASE_DURATION:
                raise LeaderLostError
            await asyncio.sleep(_RETRY_DELAY)
            continue
        if down_since is not None:
            down_since, alive_at = None, clock()
        for id_, fields in records:
            number = int(id_.partition(b"-")[0])
            if number != last + 1:
                raise LeaderLostError  # trimmed: the leader has written more than the stream keeps
            last, alive_at = number, clock()
            record = decode_record(fields)
            yield record
            if record.outcome is not None:
                return
        if records:
            continue
        held = holder == claim.encode().encode()
        # No record yet: the leader must hold the claim and must have received the message.
        if not last and not (held and (receivers is None or _may_have_receivers(pipeline, (await receivers)[0]))):
            raise LeaderLostError
        # Silent for too long. Its claim counts as a sign of life only once it has written, which shows that it knows of
        # its follower.
        if clock() - alive_at > LEASE_DURATION and not (last and held):
            raise LeaderLostError
        await _wait_for_event(stream_changed, _POLL_INTERVAL)


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
