"""What a tenant may use, what it has used, and what it is told of that.

Three limits, each counted in one place for all routers (router.shared.rate_limits), or in one router while Redis is
away:

- requests: no more in any 60 seconds than the limit says. They are counted by the second in which they came; those of a
  second count until the last of them is a minute old.
- tokens: a bucket that holds a minute's worth and fills evenly. What a request will use is not known when it comes, so
  it may come as long as there is a token in the bucket; what was read and generated is taken out once that is over. So
  the bucket may be in debt, and no request comes in until it has been filled again.
- concurrent requests: those that came in and have not been answered to the end. Each router process tells how many it
  has; what one that is gone has told is forgotten after a lease.

The same is written twice, here and as a script for Redis, since only Redis can do it for all in one step.
"""

from math import ceil, floor
from typing import Final, Literal

import msgspec

from router.errors import RATE_LIMIT, ApiError

LimitKind = Literal["requests", "tokens", "concurrent requests"]

MINUTE_MS: Final = 60_000  # milliseconds
ONE_TOKEN: Final = 0.999  # what counts as one; sums of fractions come short
CONCURRENT_RETRY_MS: Final = 1000  # milliseconds; nobody knows when a request will be over

_BYTES_PER_TOKEN: Final = 4
"""As of English prose; see https://help.openai.com/en/articles/4936856."""


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant may use; None is any amount."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit at all."""
        return self != Quota()


class UsageUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """What is told of a tenant, and asked, all at once.

    - `process`: who tells it. `spent`: tokens that were used; `done`: requests of this process that are over.
    - `working`: how many requests this process has, where it knows that for certain.
    - `ask`: whether a request may come in, which then counts.
    """

    process: str
    acquire: bool = False
    released: int = 0
    running: int | None = None
    tokens_used: int = 0


class RateLimitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Where a tenant stands after a step.

    - `refused`: the limit for which the request that was asked for may not come in, if it may not.
    - `wait`: milliseconds after which it may, if nobody else does.
    - `requests_left`, `tokens_left`: what may still come before the next is refused; `requests_reset`, `tokens_reset`:
      milliseconds after which all of the limit is there again. They mean nothing where there is no such limit.
    """

    exceeded: LimitKind | None = None
    retry_after_ms: int = 0
    requests_remaining: int = 0
    requests_reset_ms: int = 0
    tokens_remaining: int = 0
    tokens_reset_ms: int = 0


class TenantUsage:
    """What one tenant has used, as far as this process knows: what the script keeps in Redis."""

    __slots__ = ("_requests", "_running", "_token_level", "_updated_at")

    def __init__(self) -> None:
        self._updated_at = 0
        self._token_level: float | None = None
        self._requests: list[tuple[int, int]] = []  # by second: when the last of it came, and how many
        self._running: dict[str, tuple[int, int]] = {}  # by process: how many, and until when that holds

    def apply(self, quota: Quota, update: UsageUpdate, now: int, lease: int) -> RateLimitStatus:
        """Takes a step; `now` and `lease`, for how long a process' word holds, in milliseconds."""
        # What is to come was seen on a clock that has been set back, or on that of a server that is no more.
        self._requests = [pair for pair in self._requests if now - MINUTE_MS < pair[0] < now + MINUTE_MS]
        used = sum(count for _, count in self._requests)
        cap = quota.tokens_per_minute or 0
        level = (
            min(cap, self._token_level + max(0, now - self._updated_at) * cap / MINUTE_MS)
            if self._token_level is not None
            else cap
        )
        level -= update.tokens_used
        mine = self._running.pop(update.process, (0, 0))[0]
        mine = max(0, mine - update.released) if update.running is None else update.running
        # A clock that was set back must not keep the places of a process that is gone: none holds longer than a lease.
        working = ((name, count, min(until, now + lease)) for name, (count, until) in self._running.items())
        self._running = {name: (count, until) for name, count, until in working if until > now}
        refused, wait = self._check_limits(quota, now, used, level, mine) if update.acquire else (None, 0)
        if update.acquire and refused is None:
            used += 1
            mine += 1
            if self._requests and self._requests[-1][0] // 1000 >= now // 1000:
                last, count = self._requests[-1]
                self._requests[-1] = (max(last, now), count + 1)
            else:
                self._requests.append((now, 1))
        if mine:
            self._running[update.process] = (mine, now + lease)
        self._updated_at, self._token_level = now, level if cap else None
        return RateLimitStatus(
            exceeded=refused,
            retry_after_ms=wait,
            requests_remaining=max(0, (quota.requests_per_minute or 0) - used),
            requests_reset_ms=self._requests[-1][0] + MINUTE_MS - now if self._requests else 0,
            tokens_remaining=max(0, floor(level)),
            tokens_reset_ms=ceil((cap - level) * MINUTE_MS / cap) if cap else 0,
        )

    def _check_limits(self, quota: Quota, now: int, used: int, level: float, mine: int) -> tuple[LimitKind | None, int]:
        concurrent, requests, tokens = quota.concurrent_requests, quota.requests_per_minute, quota.tokens_per_minute
        if concurrent is not None and mine + sum(count for count, _ in self._running.values()) >= concurrent:
            return "concurrent requests", CONCURRENT_RETRY_MS
        if requests is not None and used >= requests:
            for last, count in self._requests:
                used -= count
                if used < requests:
                    return "requests", last + MINUTE_MS - now
        if tokens is not None and level < ONE_TOKEN:
            return "tokens", ceil((1 - level) * MINUTE_MS / tokens)
        return None, 0


def estimate_tokens(prompt_bytes: int, event_count: int, body_bytes: int) -> int:
    """Tokens of a generation whose usage nobody told, from the bytes that were asked and what was said.

    `events`: how many events of a stream came; `body`: the bytes of a JSON answer.
    """
    return prompt_bytes // _BYTES_PER_TOKEN + event_count + body_bytes // _BYTES_PER_TOKEN


def rate_limit_headers(quota: Quota, status: RateLimitStatus) -> list[tuple[bytes, bytes]]:
    """What the client is told of its limits.

    Source: https://platform.openai.com/docs/guides/rate-limits, "Rate limits in headers".
    """
    told: list[tuple[bytes, bytes]] = []
    for name, limit, left, reset in (
        (b"requests", quota.requests_per_minute, status.requests_remaining, status.requests_reset_ms),
        (b"tokens", quota.tokens_per_minute, status.tokens_remaining, status.tokens_reset_ms),
    ):
        if limit is not None:
            told += [
                (b"x-ratelimit-limit-" + name, b"%d" % limit),
                (b"x-ratelimit-remaining-" + name, b"%d" % left),
                (b"x-ratelimit-reset-" + name, encode_duration(reset)),
            ]
    return told


def encode_duration(milliseconds: int) -> bytes:
    """As OpenAI writes durations: `20ms`, `1s`, `6m0s`."""
    if 0 < milliseconds < 1000:
        return b"%dms" % milliseconds
    minutes, seconds = divmod(ceil(milliseconds / 1000), 60)
    return b"%dm%ds" % (minutes, seconds) if minutes else b"%ds" % seconds


def rate_limit_error(quota: Quota, status: RateLimitStatus) -> ApiError:
    """What a client is told whose request may not come in: 429."""
    assert status.exceeded is not None
    limit = {
        "requests": f"{quota.requests_per_minute} requests per minute",
        "tokens": f"{quota.tokens_per_minute} tokens per minute",
        "concurrent requests": f"{quota.concurrent_requests} concurrent requests",
    }[status.exceeded]
    seconds = max(1, ceil(status.retry_after_ms / 1000))
    return ApiError(
        429, f"Rate limit reached: {limit}. Try again in {seconds} s.",
        kind=RATE_LIMIT if status.exceeded == "concurrent requests" else status.exceeded,
        code="rate_limit_exceeded", retry_after=seconds, reason=f"{status.exceeded.replace(' ', '_')}_limit",
    )  # fmt: skip
