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

from router.core.cache.redis_keys import claim_of, flight_of
from router.net.redis.commands import later
from router.net.redis.pipeline import Line, RedisDownError
from router.shared.claim import LEASE, Claim, channel_of
from router.shared.stream_writer import Record, read_record

WANTED: Final = 1.0
"""Seconds between two messages to the leader that the flight is wanted."""

_LOOK_AGAIN: Final = 0.5  # seconds; in case that a push was lost
_ASK_AGAIN: Final = 0.05  # seconds between two attempts to ask a Redis that does not answer


class LostError(Exception):
    """The process that generated is gone, or has nothing more to say of it."""


async def follow(line: Line, key: str, claim: Claim, changed: asyncio.Event) -> AsyncGenerator[Record, None]:
    """What a flight says, from its first record to its end; `changed` is set when its stream has changed.

    Raises LostError, and RedisDownError while nothing has been read.
    """
    stream, clock = flight_of(key, claim.flight), asyncio.get_running_loop().time
    last = 0
    alive = clock()  # when the leader last gave a sign, or could have given one again
    wanted: float | None = None
    away: float | None = None  # since when Redis does not answer
    while True:
        changed.clear()
        try:
            reached = None
            if wanted is None or clock() - wanted >= WANTED:
                wanted = clock()
                reached = line.ask(("PUBLISH", channel_of(claim.process), claim.flight))
            # The claim first: if it is gone by then, the stream has all that it ever will.
            found, records = await line.ask(
                ("GET", claim_of(key)), later(("XRANGE", stream, f"{last + 1}-0", "+", "COUNT", 100))
            )
        except RedisDownError as error:
            found = records = error
        if isinstance(found, Exception) or isinstance(records, Exception):  # of a cluster, one server may not answer
            if not last:
                raise RedisDownError
            away, wanted = away or clock(), None  # the leader may not have got the message
            if clock() - away > LEASE:
                raise LostError
            await asyncio.sleep(_ASK_AGAIN)
            continue
        if away is not None:
            away, alive = None, clock()
        for id_, fields in records:
            number = int(id_.partition(b"-")[0])
            if number != last + 1:
                raise LostError  # it has said more than a stream keeps
            last, alive = number, clock()
            record = read_record(fields)
            yield record
            if record.end is not None:
                return
        if records:
            continue
        claimed = found == claim.text().encode()
        if not last and not (claimed and (reached is None or _reached(line, (await reached)[0]))):
            raise LostError
        if clock() - alive > LEASE and not (last and claimed):
            raise LostError
        await _event(changed, _LOOK_AGAIN)


def _reached(line: Line, receivers: Any) -> bool:
    """Whether a message may have reached somebody; an exception is how Redis refused it."""
    return not isinstance(receivers, ResponseError) and (receivers != 0 or not line.counts_receivers)


async def _event(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
