"""What tenants use, counted in Redis for all routers.

    rh:1:limit:{tenant}    what it has used of late, as JSON

Theory of operation. One script does all in one step, by Redis' own clock (router.core.quota.rate_limit says what): so
however many ask at once and wherever, no more come in than may. A request costs one command, and a second one that
nobody waits for when it is over, where that has to be told.

A process tells how many requests it has at work with a lease, and again before that lapses. Should Redis not have heard
of the end of one, then the next count that is known for certain puts it right: when no question is under way, so that
no request can have come in of which the process does not know yet.

While Redis is away, each process counts for itself, with the whole of the limits.
"""

import asyncio
import logging
import secrets
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import msgspec

from router.core.cache.redis_keys import limit_of
from router.core.quota.rate_limit import CONCURRENT_WAIT, MINUTE, TOKEN, Allowance, Ledger, Quota, Step, What, refusal
from router.net.redis.commands import Command
from router.net.redis.pipeline import Line, RedisDownError, Replies, Told

log = logging.getLogger("roundhouse.limits")

LEASE: Final = 3000
"""Milliseconds for which a process' count of its requests holds without being told again."""

_TELL_EVERY: Final = LEASE / 3000
_REFUSED: Final[tuple[What | None, ...]] = (None, "requests", "tokens", "concurrent requests")

# Ledger.step, line for line. What stands at the key and is not ours is replaced. Numbers in JSON would lose digits.
SCRIPT: Final = f"""
local process, ask, done = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3])
local working, spent = tonumber(ARGV[4]), tonumber(ARGV[5])
local requests, tokens, concurrent = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local lease, now = tonumber(ARGV[9]), tonumber(ARGV[10])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local found = redis.pcall('GET', KEYS[1])
local good, state = pcall(cjson.decode, type(found) == 'string' and found or '')
if not good or type(state) ~= 'table' or type(state.requests) ~= 'table' or type(state.working) ~= 'table' then
  state = {{requests = {{}}, working = {{}}}}
end
local used, seconds, others, at_work = 0, {{}}, 0, {{}}
for _, pair in ipairs(state.requests) do
  if now - {MINUTE} < pair[1] and pair[1] < now + {MINUTE} then
    seconds[#seconds + 1] = pair
    used = used + pair[2]
  end
end
local level = tokens or 0
if tokens and tonumber(state.tokens) then
  level = math.min(tokens, tonumber(state.tokens) + math.max(0, now - state.at) * tokens / {MINUTE})
end
level = level - spent
local mine = working or math.max(0, (state.working[process] or {{0}})[1] - done)
for name, told in pairs(state.working) do
  local till = math.min(told[2], now + lease)
  if name ~= process and till > now then
    at_work[name] = {{told[1], till}}
    others = others + told[1]
  end
end
local refused, wait = 0, 0
if ask then
  if concurrent and mine + others >= concurrent then
    refused, wait = 3, {CONCURRENT_WAIT}
  elseif requests and used >= requests then
    refused = 1
    local left = used
    for _, pair in ipairs(seconds) do
      left = left - pair[2]
      if left < requests then
        wait = pair[1] + {MINUTE} - now
        break
      end
    end
  elseif tokens and level < {TOKEN} then
    refused, wait = 2, math.ceil((1 - level) * {MINUTE} / tokens)
  else
    used, mine = used + 1, mine + 1
    local last = seconds[#seconds]
    if last and math.floor(last[1] / 1000) >= math.floor(now / 1000) then
      last[1], last[2] = math.max(last[1], now), last[2] + 1
    else
      seconds[#seconds + 1] = {{now, 1}}
    end
  end
end
if mine > 0 then at_work[process] = {{mine, now + lease}} end
local full = tokens and math.ceil((tokens - level) * {MINUTE} / tokens) or 0
local left = tokens and string.format('%.17g', level)
local text = cjson.encode({{at = now, tokens = left, requests = seconds, working = at_work}})
redis.call('SET', KEYS[1], text, 'PX', string.format('%.0f', math.max({MINUTE}, lease, full) + 1000))
local last = seconds[#seconds]
local reset = last and last[1] + {MINUTE} - now or 0
return {{refused, wait, math.max(0, (requests or 0) - used), reset, math.max(0, math.floor(level)), full}}
"""


class TenantLimits:
    """The limits of all tenants that have some.

    - Of the requests that ask, everywhere at once, no more come in than may.
    - A tenant without limits costs nothing.
    - A process that is gone has given back its places after LEASE, even if Redis' clock is set back meanwhile.
    - Without Redis, all goes on, with the same limits in each process.
    """

    def __init__(self, line: Line, limits: Mapping[str, Quota]) -> None:
        process = secrets.token_hex(6)
        self._tenants = {name: _Tenant(line, name, own, process) for name, own in limits.items() if own.any}

    def concern(self, tenant: str) -> bool:
        """Whether this tenant has limits."""
        return tenant in self._tenants

    async def ask(self, tenant: str) -> "Permit":
        """Whether a request of this tenant, which has limits, may come in."""
        return await self._tenants[tenant].ask()

    def spend(self, tenant: str, tokens: int) -> None:
        """A tenant has used so many tokens."""
        found = self._tenants.get(tenant)
        if found is not None:
            found.spend(tokens)

    async def run(self) -> None:
        """Tells again and again what is at work here, until it is cancelled."""
        while True:
            await asyncio.sleep(_TELL_EVERY)
            for tenant in self._tenants.values():
                tenant.tell()


class Permit:
    """The answer to a request that wanted to come in; `close` says that it is over, whatever the answer was."""

    __slots__ = ("_tenant", "allowance", "quota")

    def __init__(self, tenant: "_Tenant", allowance: Allowance) -> None:
        self.quota = tenant.quota
        self.allowance = allowance
        self._tenant: _Tenant | None = tenant if allowance.refused is None else None

    def check(self) -> None:
        """Raises ApiError where it may not come in."""
        if self.allowance.refused is not None:
            raise refusal(self.quota, self.allowance)

    def close(self) -> None:
        tenant, self._tenant = self._tenant, None
        if tenant is not None:
            tenant.done()


class _Tenant:
    """One tenant with limits, as this process sees it."""

    def __init__(self, line: Line, name: str, quota: Quota, process: str) -> None:
        self.quota = quota
        self._line = line
        self._key = limit_of(name)
        self._process = process
        self._local = Ledger()
        self._working = 0
        self._asking = 0
        self._told = True  # whether Redis knows `_working`

    async def ask(self) -> Permit:
        answer: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        try:
            self._send(Step(process=self._process, ask=True), partial(self._answered, answer))
        except RedisDownError:
            return self._ask_here()
        self._asking += 1
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled():
                answer.result().close()
            raise

    def _answered(self, answer: "asyncio.Future[Permit]", replies: Replies | None) -> None:
        self._asking -= 1
        allowance = self._read(replies)
        if allowance is None:
            self._told = False
            permit = self._ask_here()
        else:
            self._working += allowance.refused is None
            permit = Permit(self, allowance)
        if answer.done():  # who asked has left
            permit.close()
        else:
            answer.set_result(permit)
        if not self._told:
            self.tell()

    def _ask_here(self) -> Permit:
        allowance = self._step_here(Step(process=self._process, ask=True, working=self._working))
        self._working += allowance.refused is None
        return Permit(self, allowance)

    def spend(self, tokens: int) -> None:
        if self.quota.tokens_per_minute is None or tokens <= 0:
            return
        step = Step(process=self._process, spent=tokens)
        try:
            self._send(step)
        except RedisDownError:
            self._step_here(step)

    def done(self) -> None:
        """One of the requests that came in here is over."""
        self._working -= 1
        if self.quota.concurrent_requests is not None:
            self._tell(Step(process=self._process, done=1))

    def tell(self) -> None:
        """Tells Redis how many are at work here, if there is anything to tell."""
        if self.quota.concurrent_requests is None or (self._told and not self._working):
            return
        if self._asking:  # how many there are is not known, only that there are some
            self._tell(Step(process=self._process))
        elif self._tell(Step(process=self._process, working=self._working)):
            self._told = True

    def _tell(self, step: Step) -> bool:
        try:
            self._send(step, self._heard)
        except RedisDownError:
            self._told = False
            return False
        return True

    def _heard(self, replies: Replies | None) -> None:
        if self._read(replies) is None:
            self._told = False

    # -- Redis, and what stands in for it ---------------------------------------------------------------------------

    def _send(self, step: Step, told: Told | None = None) -> None:
        self._line.tell(command(self._key, self.quota, step), told=told)

    def _step_here(self, step: Step) -> Allowance:
        now = int(asyncio.get_running_loop().time() * 1000)
        return self._local.step(self.quota, step, now, LEASE)

    @staticmethod
    def _read(replies: Replies | None) -> Allowance | None:
        if replies is None:
            return None
        (reply,) = replies
        if isinstance(reply, Exception):
            log.warning("the limits cannot be counted in Redis: %s", reply)
            return None
        return read(reply)


def command(key: str, quota: Quota, step: Step, now: int | None = None) -> Command:
    """The command that takes a step; `now` in milliseconds, where it is not Redis' clock that counts."""
    spent = (step.process, int(step.ask), step.done, _or_none(step.working), step.spent)
    return ("EVAL", SCRIPT, 1, key, *spent, *map(_or_none, msgspec.structs.astuple(quota)), LEASE, _or_none(now))


def _or_none(number: int | None) -> int | str:
    return "" if number is None else number


def read(reply: Any) -> Allowance:
    """What the script said."""
    refused, wait, requests_left, requests_reset, tokens_left, tokens_reset = reply
    return Allowance(
        refused=_REFUSED[refused], wait=wait, requests_left=requests_left, requests_reset=requests_reset,
        tokens_left=tokens_left, tokens_reset=tokens_reset,
    )  # fmt: skip
