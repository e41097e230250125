"""Reading what another process generates, from its stream.

Theory of operation. Redis pushes that the stream has changed (router.net.redis.listener); the follower then reads on
from the last record that it has, and looks by itself now and then, since a push can be lost. Once a second it publishes
on the leader's channel that the flight is wanted.

A leader is lost when
- its claim is gone, and it has written nothing: it ended or died before it knew of the follower;
- nobody listens on its channel, or it has not written its first record within a lease: it cannot be reached;
- it has written nothing for a lease, although Redis answers, and its claim is gone too: a leader that lives writes at
  least empty records, and where Redis takes none (it is out of memory, say) it still renews its claim, if it has one;
- a record is missing.

While Redis does not answer, nothing is known of the leader. A follower that has had something waits for Redis for a
lease, and then gives the leader a lease to write what it could not; one that has had nothing can as well begin anew.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final

from redis.exceptions import ResponseError

from router.core.cache.redis_keys import claim_key, flight_key
from router.net.redis.commands import after_previous
from router.net.redis.pipeline import RedisDownError, RedisPipeline
from router.shared.claim import LEASE_DURATION, Claim, process_channel
from router.shared.stream_writer import StreamRecord, decode_record

FOLLOW_INTERVAL: Final = 1.0
"""Seconds between two messages to the leader that the flight is wanted."""

_POLL_INTERVAL: Final = 0.5  # seconds; in case that a push was lost
_RETRY_DELAY: Final = 0.05  # seconds between two attempts to ask a Redis that does not answer


class LeaderLostError(Exception):
    """The process that generated is gone, or has nothing more to say of it."""


async def follow(
    pipeline: RedisPipeline, key: str, claim: Claim, stream_changed: asyncio.Event
) -> AsyncGenerator[StreamRecord, None]:
    """What a flight says, from its first record to its end; `changed` is set when its stream has changed.

    Raises LostError, and RedisDownError while nothing has been read.
    """
    stream, clock = flight_key(key, claim.flight_id), asyncio.get_running_loop().time
    last = 0
    alive = clock()  # when the leader last gave a sign, or could have given one again
    wanted: float | None = None
    away: float | None = None  # since when Redis does not answer
    while True:
        stream_changed.clear()
        try:
            reached = None
            if wanted is None or clock() - wanted >= FOLLOW_INTERVAL:
                wanted = clock()
                reached = pipeline.execute(("PUBLISH", process_channel(claim.process_id), claim.flight_id))
            # The claim first: if it is gone by then, the stream has all that it ever will.
            found, records = await pipeline.execute(
                ("GET", claim_key(key)), after_previous(("XRANGE", stream, f"{last + 1}-0", "+", "COUNT", 100))
            )
        except RedisDownError as error:
            found = records = error
        if isinstance(found, Exception) or isinstance(records, Exception):  # of a cluster, one server may not answer
            if not last:
                raise RedisDownError
            away, wanted = away or clock(), None  # the leader may not have got the message
            if clock() - away > LEASE_DURATION:
                raise LeaderLostError
            await asyncio.sleep(_RETRY_DELAY)
            continue
        if away is not None:
            away, alive = None, clock()
        for id_, fields in records:
            number = int(id_.partition(b"-")[0])
            if number != last + 1:
                raise LeaderLostError  # it has said more than a stream keeps
            last, alive = number, clock()
            record = decode_record(fields)
            yield record
            if record.outcome is not None:
                return
        if records:
            continue
        claimed = found == claim.encode().encode()
        if not last and not (claimed and (reached is None or _may_have_receivers(pipeline, (await reached)[0]))):
            raise LeaderLostError
        if clock() - alive > LEASE_DURATION and not (last and claimed):
            raise LeaderLostError
        await _wait_for_event(stream_changed, _POLL_INTERVAL)


def _may_have_receivers(pipeline: RedisPipeline, receivers: Any) -> bool:
    """Whether a message may have reached somebody; an exception is how Redis refused it."""
    return not isinstance(receivers, ResponseError) and (receivers != 0 or not pipeline.counts_receivers)


async def _wait_for_event(event: asyncio.Event, timeout: float) -> None:
    try:
        async with asyncio.timeout(timeout):
            await event.wait()
    except TimeoutError:
        pass
