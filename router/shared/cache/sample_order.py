"""Which sample of a request comes next, for all routers: `cache.samples`; see router.core.cache.sample.

    rh:1:session:samples:{tenant}:{model}:{system}:{rag}:{query}
        a sorted set: a session and the number of a sample that it got, scored by the place of its request

Theory of operation. Each request takes the next place, which is one more than the highest score. It gets the sample of
that place, or the first one from there on that its session did not get yet. Requests without a session count as one
session that may get a sample again. The oldest are removed, so a session may get a sample again after MAX_REMEMBERED
others, or if Redis evicts the set.
"""

from functools import partial
from typing import Any, Final, NamedTuple

import xxhash

from router.core.cache.redis_keys import samples_key
from router.core.cache.sample import ONLY_SAMPLE, Sample
from router.core.routing.session import Session
from router.net.redis.commands import Command
from router.net.redis.pipeline import RedisPipeline
from router.net.redis.replies import integers

MAX_REMEMBERED: Final = 1000
"""Samples of one request that sessions got, and that are remembered."""

# ZINCRBY by the difference, and not ZADD, for which the router's user in Redis has no right.
NEXT_SCRIPT: Final = f"""
local last = redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local place = (tonumber(last[2]) or -1) + 1
local count, session = tonumber(ARGV[1]), ARGV[2]
local number, has_all = place % count, 0
if session ~= '' then
  has_all = 1
  for step = 0, count - 1 do
    local candidate = (place + step) % count
    if not redis.call('ZSCORE', KEYS[1], session .. ':' .. candidate) then
      number, has_all = candidate, 0
      break
    end
  end
end
local member = session .. ':' .. number
local before = tonumber(redis.call('ZSCORE', KEYS[1], member) or 0)
redis.call('ZINCRBY', KEYS[1], place - before, member)
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -{MAX_REMEMBERED + 1})
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {{place, number, has_all}}
"""
"""KEYS[1]: the sorted set. ARGV: the number of samples, the session (empty for none), the lifetime in milliseconds.

The reply: the place, the number of the sample, and 1 if the session got all samples before.
"""


class NextSample(NamedTuple):
    """`has_all`: the session got all samples before, `sample` included."""

    sample: Sample
    has_all: bool = False


class SampleOrder:
    """The order in which the samples of each request are handed out.

    - A session gets each sample once, in whichever process; then `has_all` is set.
    - Where Redis answers and takes no writes, the first sample is always next.
    """

    __slots__ = ("_pipeline",)

    def __init__(self, pipeline: RedisPipeline) -> None:
        self._pipeline = pipeline

    async def next(self, key: str, count: int, session: Session | None, lifetime: float) -> NextSample:
        """The next of `count` samples of the request with this entry key, which is remembered for `lifetime` seconds.

        Raises RedisDownError.
        """
        (reply,) = await self._pipeline.execute(next_command(key, count, session, lifetime))
        if isinstance(reply, Exception):
            return NextSample(ONLY_SAMPLE)
        return self._pipeline.decode(partial(_decode, count), reply)


def next_command(key: str, count: int, session: Session | None, lifetime: float) -> Command:
    # The hash: a session may name a person.
    name = "" if session is None else xxhash.xxh3_64_hexdigest(session.id.encode())
    return ("EVAL", NEXT_SCRIPT, 1, samples_key(key), count, name, int(1000 * lifetime))


def _decode(count: int, reply: Any) -> NextSample:
    place, number, has_all = integers(reply, 3)
    if not 0 <= number < count:
        raise ValueError("no number of a sample")
    return NextSample(Sample(number, count, is_first=place == 0), has_all == 1)
