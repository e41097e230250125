"""The script that applies an update to a tenant's usage in Redis, its command and its reply."""

from typing import Any, Final

import msgspec

from router.core.quota.rate_limit import (
    CONCURRENT_RETRY_MS,
    MINUTE_MS,
    ONE_TOKEN,
    LimitKind,
    Quota,
    RateLimitStatus,
    UsageUpdate,
)
from router.net.redis.commands import Command
from router.net.redis.replies import integers

RUNNING_LEASE_MS: Final = 3000
"""Milliseconds after which a process' number of running requests expires unless it is reported again."""

# The index is the first number of the script's reply; 0 means that the request is admitted.
_LIMIT_KINDS: Final[tuple[LimitKind | None, ...]] = (None, "requests", "tokens", "concurrent requests")

# TenantUsage.apply, line for line. A value at the key that is not ours is replaced. The token level is stored as a
# string, since cjson would lose digits of a number. ARGV: the process, whether a request asks for admission (2: one
# that needs no tokens), requests of the process that have ended, its running requests ('' if unknown), used tokens, the
# three limits ('' for none), the lease in ms, and the time in ms ('' for Redis' clock). The reply: see `decode_status`.
UPDATE_SCRIPT: Final = f"""
local process, acquire, released = ARGV[1], ARGV[2] ~= '0', tonumber(ARGV[3])
local reported_running, tokens_used = tonumber(ARGV[4]), tonumber(ARGV[5])
local max_requests, max_tokens, max_concurrent = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local lease, now = tonumber(ARGV[9]), tonumber(ARGV[10])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local stored = redis.pcall('GET', KEYS[1])
local is_json, state = pcall(cjson.decode, type(stored) == 'string' and stored or '')
if not is_json or type(state) ~= 'table' or type(state.requests) ~= 'table' or type(state.working) ~= 'table' then
  state = {{requests = {{}}, working = {{}}}}
end
local request_count, seconds, other_running, leases = 0, {{}}, 0, {{}}
for _, second in ipairs(state.requests) do
  if now - {MINUTE_MS} < second[1] and second[1] < now + {MINUTE_MS} then
    seconds[#seconds + 1] = second
    request_count = request_count + second[2]
  end
end
local level = max_tokens or 0
if max_tokens and tonumber(state.tokens) then
  local refill = math.max(0, now - state.at) * max_tokens / {MINUTE_MS}
  level = math.min(max_tokens, tonumber(state.tokens) + refill)
end
level = level - tokens_used
local own_running = reported_running or math.max(0, (state.working[process] or {{0}})[1] - released)
for name, report in pairs(state.working) do
  local expires_at = math.min(report[2], now + lease)
  if name ~= process and expires_at > now then
    leases[name] = {{report[1], expires_at}}
    other_running = other_running + report[1]
  end
end
local refused, wait = 0, 0
if acquire then
  if max_concurrent and own_running + other_running >= max_concurrent then
    refused, wait = 3, {CONCURRENT_RETRY_MS}
  elseif max_requests and request_count >= max_requests then
    refused = 1
    local remaining = request_count
    for _, second in ipairs(seconds) do
      remaining = remaining - second[2]
      if remaining < max_requests then
        wait = second[1] + {MINUTE_MS} - now
        break
      end
    end
  elseif max_tokens and ARGV[2] == '1' and level < {ONE_TOKEN} then
    refused, wait = 2, math.ceil((1 - level) * {MINUTE_MS} / max_tokens)
  else
    request_count, own_running = request_count + 1, own_running + 1
    local last = seconds[#seconds]
    if last and math.floor(last[1] / 1000) >= math.floor(now / 1000) then
      last[1], last[2] = math.max(last[1], now), last[2] + 1
    else
      seconds[#seconds + 1] = {{now, 1}}
    end
  end
end
if not max_concurrent then own_running = 0 end
if own_running > 0 then leases[process] = {{own_running, now + lease}} end
local tokens_reset = max_tokens and math.ceil((max_tokens - level) * {MINUTE_MS} / max_tokens) or 0
local level_text = max_tokens and string.format('%.17g', level)
local text = cjson.encode({{at = now, tokens = level_text, requests = seconds, working = leases}})
redis.call('SET', KEYS[1], text, 'PX', string.format('%.0f', math.max({MINUTE_MS}, lease, tokens_reset) + 1000))
local last = seconds[#seconds]
local requests_reset = last and last[1] + {MINUTE_MS} - now or 0
local requests_remaining = math.max(0, (max_requests or 0) - request_count)
return {{refused, wait, requests_remaining, requests_reset, math.max(0, math.floor(level)), tokens_reset, own_running}}
"""


def update_command(key: str, quota: Quota, update: UsageUpdate, now: int | None = None) -> Command:
    """The command that applies an update; `now` in milliseconds replaces Redis' clock, for tests."""
    acquire = int(update.acquire) if update.needs_tokens else 2 * update.acquire
    usage = (update.process, acquire, update.released, _or_none(update.running), update.tokens_used)
    return (
        "EVAL",
        UPDATE_SCRIPT,
        1,
        key,
        *usage,
        *map(_or_none, msgspec.structs.astuple(quota)),
        RUNNING_LEASE_MS,
        _or_none(now),
    )


def _or_none(number: int | None) -> int | str:
    return "" if number is None else number


def decode_status(reply: Any) -> RateLimitStatus:
    """Raises ValueError or IndexError for a reply of another form."""
    numbers = integers(reply, 7)
    if min(numbers) < 0:
        raise ValueError("a number is negative")
    exceeded_kind, retry_after, requests_left, requests_reset, tokens_left, tokens_reset, running = numbers
    return RateLimitStatus(
        exceeded=_LIMIT_KINDS[exceeded_kind],
        retry_after_ms=retry_after,
        requests_remaining=requests_left,
        requests_reset_ms=requests_reset,
        tokens_remaining=tokens_left,
        tokens_reset_ms=tokens_reset,
        running=running,
    )
