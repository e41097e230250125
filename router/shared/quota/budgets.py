"""Tenants' budgets, counted in Redis for all routers.

    rh:1:budget:{tenant}    what the tenant has used in the present day and month, a hash

Theory of operation. One script reads the counters, and adds to them, by Redis' own clock; the rules are in
router.core.quota.budget. A request costs one command before it is admitted, and its generation one when it ends, whose
reply is not awaited.

What a generation used is added once or, if Redis goes down while it gets the command, perhaps not at all: nobody knows
then, and a tenant must not pay twice. While Redis is down or takes no writes, a process keeps what it could not send
and adds it later. Meanwhile it continues with what Redis replied last.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from router.core.cache.redis_keys import budget_key
from router.core.quota.budget import DAY, MAX_DAYS_AHEAD, Budget, BudgetUse, month_of, use_at
from router.net.redis.commands import Command
from router.net.redis.pipeline import OnReply, RedisDownError, RedisPipeline, Replies
from router.net.redis.replies import integers
from router.net.repeated_warning import RepeatedWarning

log = logging.getLogger("roundhouse.limits")

MAX_AMOUNT: Final = 10**12
"""Of one update: Redis' scripts calculate in doubles, and an engine may report any number."""

_FOREIGN: Final = 10**15  # no counter gets there: from here on, and for nan, which never ends, a value is not ours
_TTL: Final = 40 * DAY  # longer than a month, so that only counters that are not used any more expire

# router.core.quota.budget.use_at, line for line; the month is Howard Hinnant's civil_from_days. A value at the key that
# is not ours is replaced. ARGV: the tokens and milliseconds to add, the time in seconds ('' for Redis' clock), the time
# to live in seconds. The reply: see `decode_use`. Nothing is written if nothing is added.
UPDATE_SCRIPT: Final = f"""
local names = {{'day', 'month', 'day_tokens', 'day_gpu_ms', 'month_tokens', 'month_gpu_ms'}}
local now = tonumber(ARGV[3]) or tonumber(redis.call('TIME')[1])
local today = math.floor(now / {DAY})
local days = today + 719468
local era = math.floor(days / 146097)
local of_era = days - era * 146097
local leap_days = math.floor(of_era / 1460) - math.floor(of_era / 36524) + math.floor(of_era / 146096)
local year = math.floor((of_era - leap_days) / 365)
local of_year = of_era - (365 * year + math.floor(year / 4) - math.floor(year / 100))
local month = (era * 400 + year) * 12 + math.floor((5 * of_year + 2) / 153) + 2
local use = redis.pcall('HMGET', KEYS[1], unpack(names))
if use.err then
  redis.call('DEL', KEYS[1])
  use = {{}}
end
for i = 1, #names do
  use[i] = tonumber(use[i] or '')
  if use[i] and not (math.abs(use[i]) < {_FOREIGN}) then use[i] = nil end
end
local known = use[1] and use[2]
if not known then
  use = {{today, month, 0, 0, 0, 0}}
elseif use[1] > today + {MAX_DAYS_AHEAD} then
  use[1], use[2] = today, month
else
  if today > use[1] then use[1], use[3], use[4] = today, 0, 0 end
  if month > use[2] then use[2], use[5], use[6] = month, 0, 0 end
end
for i = 3, 6 do use[i] = (use[i] or 0) + ARGV[1 + (i + 1) % 2] end
if ARGV[1] ~= '0' or ARGV[2] ~= '0' then
  local fields = {{}}
  for i, name in ipairs(names) do
    fields[#fields + 1] = name
    fields[#fields + 1] = string.format('%.0f', use[i])
  end
  redis.call('HSET', KEYS[1], unpack(fields))
  redis.pcall('EXPIRE', KEYS[1], ARGV[4])
end
return {{now, use[1], use[2], use[3], use[4], use[5], use[6]}}
"""


def update_command(key: str, tokens: int, gpu_ms: int, now: int | None = None) -> Command:
    """The command that adds what was used; `now` in seconds replaces Redis' clock, for tests."""
    return ("EVAL", UPDATE_SCRIPT, 1, key, tokens, gpu_ms, "" if now is None else now, _TTL)


def decode_use(reply: Any) -> BudgetUse:
    """Raises ValueError for a reply of another form."""
    now, day, month, day_tokens, day_gpu_ms, month_tokens, month_gpu_ms = integers(reply, 7)
    latest = now // DAY + MAX_DAYS_AHEAD
    if not (0 <= day <= latest and 0 <= month <= month_of(latest)):
        raise ValueError("it counts for a day to come")
    return BudgetUse(
        now=now,
        day=day,
        month=month,
        day_tokens=day_tokens,
        day_gpu_ms=day_gpu_ms,
        month_tokens=month_tokens,
        month_gpu_ms=month_gpu_ms,
    )


class BudgetCounter:
    """This process' part in the budgets of one tenant.

    - `read` counts for all processes. Without Redis, it is what Redis replied last and what this process used since.
    - `spend` never raises and never waits. Nothing is added twice.
    - What Redis does not take is kept, and added by a later `read`, `spend` or `flush`.
    """

    __slots__ = (
        "_clock",
        "_key",
        "_last_use",
        "_pipeline",
        "_refusals",
        "_unsent_gpu_ms",
        "_unsent_tokens",
        "budget",
    )

    def __init__(self, pipeline: RedisPipeline, tenant: str, budget: Budget, clock: Callable[[], float]) -> None:
        """`clock`: seconds since the epoch."""
        self.budget = budget
        self._pipeline = pipeline
        self._key = budget_key(tenant)
        self._clock = clock
        self._last_use: BudgetUse | None = None
        self._unsent_tokens = 0
        self._unsent_gpu_ms = 0
        self._refusals = RepeatedWarning(log)

    def configure(self, pipeline: RedisPipeline, budget: Budget, clock: Callable[[], float]) -> None:
        self._pipeline, self.budget, self._clock = pipeline, budget, clock

    def read(self) -> "asyncio.Future[BudgetUse]":
        """The command is sent at once, and may share a batch with others; the future never has an exception."""
        future: asyncio.Future[BudgetUse] = asyncio.get_running_loop().create_future()
        try:
            self._send(partial(self._on_read, future))
        except RedisDownError:
            future.set_result(self._local_use())
        return future

    def spend(self, tokens: int, gpu_seconds: float) -> None:
        self._unsent_tokens += min(max(0, tokens), MAX_AMOUNT)
        self._unsent_gpu_ms += min(max(0, round(1000 * gpu_seconds)), MAX_AMOUNT)
        self.flush()

    def flush(self) -> None:
        if not self._unsent_tokens and not self._unsent_gpu_ms:
            return
        try:
            self._send(lambda _: None)
        except RedisDownError:
            log.debug("Redis is down: what %s has used is kept", self._key)

    def _send(self, on_use: Callable[[BudgetUse], None]) -> None:
        """Sends what is unsent. Raises RedisDownError, and keeps it then."""
        tokens, gpu_ms = self._unsent_tokens, self._unsent_gpu_ms
        on_reply: OnReply = partial(self._on_reply, tokens, gpu_ms, on_use)
        self._unsent_tokens = self._unsent_gpu_ms = 0
        try:
            self._pipeline.send(update_command(self._key, tokens, gpu_ms), on_reply=on_reply)
        except RedisDownError:
            self._unsent_tokens, self._unsent_gpu_ms = tokens, gpu_ms
            raise

    def _on_reply(self, tokens: int, gpu_ms: int, on_use: Callable[[BudgetUse], None], replies: Replies | None) -> None:
        if replies is None:  # Redis went down: it may have added them, so they are not sent again
            if self._last_use is not None:
                self._last_use = self._last_use.plus(tokens, gpu_ms)
            on_use(self._local_use())
            return
        (reply,) = replies
        if isinstance(reply, Exception):  # it takes no writes, or no scripts
            self._refusals.log("cannot update a budget in Redis: %s", reply)
            self._unsent_tokens += tokens
            self._unsent_gpu_ms += gpu_ms
            on_use(self._local_use())
            return
        self._last_use = self._pipeline.decode(decode_use, reply)
        on_use(self._last_use)

    @staticmethod
    def _on_read(future: "asyncio.Future[BudgetUse]", use: BudgetUse) -> None:
        if not future.done():  # else the caller was cancelled
            future.set_result(use)

    def _local_use(self) -> BudgetUse:
        return use_at(self._last_use, self._clock()).plus(self._unsent_tokens, self._unsent_gpu_ms)
