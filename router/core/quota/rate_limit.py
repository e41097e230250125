"""The rate limits of a tenant: its quota, its usage, and the headers and errors that report them.

Three limits, each counted in Redis for all routers (router.shared.quota.rate_limits), or in each process while Redis is
down:

- requests: at most the limit in any 60 seconds. They are counted per second of arrival; the requests of one second
  count until the last of them is a minute old.
- tokens: a bucket that holds the limit of one minute and fills at a constant rate. The usage of a request is not known
  on arrival. So a request is admitted while the bucket holds at least one token, and its tokens are subtracted when it
  ends. The bucket can become negative; then no request is admitted until it holds a token again.
- concurrent requests: those that were admitted and have not ended. Each process reports how many it has, with a lease;
  the report of a process that is gone expires.

The same logic exists twice, here and as a script for Redis, because only Redis can apply it atomically for all routers.
"""

from math import ceil, floor
from typing import Final, Literal

import msgspec

from router.core.types import BYTES_PER_TOKEN
from router.errors import RATE_LIMIT, ApiError

LimitKind = Literal["requests", "tokens", "concurrent requests"]

MINUTE_MS: Final = 60_000
ONE_TOKEN: Final = 0.999  # the level that counts as one token: a sum of fractions can end slightly below 1
_NO_LIMIT: Final = 1 << 31
CONCURRENT_RETRY_MS: Final = 1000  # a guess, because the end of a request cannot be predicted


RESERVE: Final = 0.25
"""The share of a limit that requests which nobody waits for leave to others."""


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a tenant; None is unlimited."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None

    @property
    def is_limited(self) -> bool:
        return self != Quota()

    def without_reserve(self) -> "Quota":
        """As for a request that nobody waits for: a part of the requests is kept for others."""
        return msgspec.structs.replace(
            self,
            requests_per_minute=_without_reserve(self.requests_per_minute),
            concurrent_requests=_without_reserve(self.concurrent_requests),
        )

    def refuse_reserved_tokens(self, status: "RateLimitStatus") -> "RateLimitStatus":
        """The status of such a request, which is not admitted either for tokens that are kept for others."""
        if status.exceeded is not None or self.tokens_per_minute is None:
            return status
        missing = RESERVE * self.tokens_per_minute - status.tokens_remaining
        if missing <= 0:
            return status
        return msgspec.structs.replace(
            status, exceeded="tokens", retry_after_ms=ceil(missing * MINUTE_MS / self.tokens_per_minute)
        )

    def without_concurrency(self) -> "Quota":
        """As for a request that never has to wait for others. It is counted among those that run."""
        if self.concurrent_requests is None:
            return self
        # Not None: then no process would report its running requests.
        return msgspec.structs.replace(self, concurrent_requests=_NO_LIMIT)


class UsageUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a tenant's usage, reported by one process.

    - `process`: the id of the process.
    - `acquire`: asks for admission of a request, which counts if it is granted; if it `needs_tokens`, not without one.
    - `released`: how many requests of this process have ended. Negative: how many run that were not counted.
    - `running`: how many requests this process has; None if it is not certain. It replaces the reported count.
    - `tokens_used`: tokens to subtract.
    """

    process: str
    acquire: bool = False
    needs_tokens: bool = True
    released: int = 0
    running: int | None = None
    tokens_used: int = 0


class RateLimitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a tenant after an update.

    - `exceeded`: the limit for which the request is refused; None if it is admitted.
    - `retry_after_ms`: when it can be admitted, if no other request is.
    - `requests_remaining`, `tokens_remaining`: what is left of the limit.
    - `requests_reset_ms`, `tokens_reset_ms`: when the whole limit is available again.
    - `running`: the requests of the process that are counted as running.

    `remaining`, `reset` and `running` are meaningless without such a limit.
    """

    exceeded: LimitKind | None = None
    retry_after_ms: int = 0
    requests_remaining: int = 0
    requests_reset_ms: int = 0
    tokens_remaining: int = 0
    tokens_reset_ms: int = 0
    running: int = 0


class TenantUsage:
    """The usage of one tenant, as this process counts it while Redis is down; the script keeps the same in Redis."""

    __slots__ = ("_requests", "_running", "_token_level", "_updated_at")

    def __init__(self) -> None:
        self._updated_at = 0
        self._token_level: float | None = None
        self._requests: list[tuple[int, int]] = []  # per second: the instant of the last request, and how many
        self._running: dict[str, tuple[int, int]] = {}  # by process: how many, and when the lease expires

    def apply(self, quota: Quota, update: UsageUpdate, now: int, lease: int) -> RateLimitStatus:
        """Applies an update. `now` in milliseconds; `lease`: how many milliseconds the report of a process is valid."""
        # An instant in the future is from a clock that was set back, or from a previous Redis server: drop it too.
        self._requests = [pair for pair in self._requests if now - MINUTE_MS < pair[0] < now + MINUTE_MS]
        request_count = sum(count for _, count in self._requests)
        bucket_size = quota.tokens_per_minute or 0
        level = (
            min(bucket_size, self._token_level + max(0, now - self._updated_at) * bucket_size / MINUTE_MS)
            if self._token_level is not None
            else bucket_size
        )
        level -= update.tokens_used
        own_running = self._running.pop(update.process, (0, 0))[0]
        own_running = max(0, own_running - update.released) if update.running is None else update.running
        # After a clock was set back, min keeps the report of a dead process from outliving a lease.
        leases = ((name, count, min(expires_at, now + lease)) for name, (count, expires_at) in self._running.items())
        self._running = {name: (count, expires_at) for name, count, expires_at in leases if expires_at > now}
        refused, wait = (
            self._check_limits(quota, update, now, request_count, level, own_running) if update.acquire else (None, 0)
        )
        if update.acquire and refused is None:
            request_count += 1
            own_running += 1
            # One pair per second keeps the list short. >=: after a clock was set back, the last may be ahead of now.
            if self._requests and self._requests[-1][0] // 1000 >= now // 1000:
                last, count = self._requests[-1]
                self._requests[-1] = (max(last, now), count + 1)
            else:
                self._requests.append((now, 1))
        # Without this limit, a process does not report which of its requests have ended.
        if quota.concurrent_requests is None:
            own_running = 0
        if own_running:
            self._running[update.process] = (own_running, now + lease)
        self._updated_at, self._token_level = now, level if bucket_size else None
        return RateLimitStatus(
            exceeded=refused,
            retry_after_ms=wait,
            requests_remaining=max(0, (quota.requests_per_minute or 0) - request_count),
            requests_reset_ms=self._requests[-1][0] + MINUTE_MS - now if self._requests else 0,
            tokens_remaining=max(0, floor(level)),
            tokens_reset_ms=ceil((bucket_size - level) * MINUTE_MS / bucket_size) if bucket_size else 0,
            running=own_running,
        )

    def _check_limits(
        self, quota: Quota, update: UsageUpdate, now: int, used: int, level: float, mine: int
    ) -> tuple[LimitKind | None, int]:
        concurrent, requests, tokens = quota.concurrent_requests, quota.requests_per_minute, quota.tokens_per_minute
        if concurrent is not None and mine + sum(count for count, _ in self._running.values()) >= concurrent:
            return "concurrent requests", CONCURRENT_RETRY_MS
        if requests is not None and used >= requests:
            # Finds the first second whose expiry makes room for one more request.
            for last, count in self._requests:
                used -= count
                if used < requests:
                    return "requests", last + MINUTE_MS - now
        if tokens is not None and update.needs_tokens and level < ONE_TOKEN:
            return "tokens", ceil((1 - level) * MINUTE_MS / tokens)
        return None, 0


def _without_reserve(limit: int | None) -> int | None:
    return max(1, floor((1 - RESERVE) * limit)) if limit is not None else None


def estimate_tokens(prompt_bytes: int, event_count: int, body_bytes: int) -> int:
    """Estimates the tokens of a generation that ended without a usage report.

    `event_count`: received events of a stream, about one token each; `body_bytes`: received bytes of a JSON response.
    """
    return prompt_bytes // BYTES_PER_TOKEN + event_count + body_bytes // BYTES_PER_TOKEN


def rate_limit_headers(quota: Quota, status: RateLimitStatus) -> list[tuple[bytes, bytes]]:
    """Source: https://platform.openai.com/docs/guides/rate-limits, "Rate limits in headers"."""
    headers: list[tuple[bytes, bytes]] = []
    for name, limit, remaining, reset in (
        (b"requests", quota.requests_per_minute, status.requests_remaining, status.requests_reset_ms),
        (b"tokens", quota.tokens_per_minute, status.tokens_remaining, status.tokens_reset_ms),
    ):
        if limit is not None:
            headers += [
                (b"x-ratelimit-limit-" + name, b"%d" % limit),
                (b"x-ratelimit-remaining-" + name, b"%d" % remaining),
                (b"x-ratelimit-reset-" + name, encode_duration(reset)),
            ]
    return headers


def encode_duration(milliseconds: int) -> bytes:
    """Formats a duration as OpenAI does: `20ms`, `1s`, `6m0s`."""
    if 0 < milliseconds < 1000:
        return b"%dms" % milliseconds
    minutes, seconds = divmod(ceil(milliseconds / 1000), 60)
    return b"%dm%ds" % (minutes, seconds) if minutes else b"%ds" % seconds


def rate_limit_error(quota: Quota, status: RateLimitStatus) -> ApiError:
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
