"""The savings ledger: what requests cost and what the cache saved, by day, tenant and model.

    rh:1:savings:{YYYY-MM-DD}     a hash: TENANT/MODEL/KIND -> a sum of that day (UTC, by Redis' clock)

Every process adds its sums every few seconds, so a request costs no command. A process that is killed loses what it has
not yet added. While Redis is down, the sums are kept. If Redis goes down while it gets them, nobody knows whether it
has added them; they are then dropped, so that the ledger never shows more than there was.
"""

import datetime as dt
import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from math import isfinite
from typing import Any, Final, Literal

from router.core.cache.redis_keys import savings_key
from router.net.redis.commands import Command
from router.net.redis.pipeline import RedisDownError, RedisPipeline, Replies

log = logging.getLogger("roundhouse.savings")

SavingsKind = Literal[
    "requests", "hits", "coalesced", "saved_tokens", "gpu_seconds_spent", "gpu_seconds_saved", "joules_spent",
    "joules_saved",
]  # fmt: skip
"""The kinds of sums. `hits` includes stale responses; for the others, see docs/operating.md."""

Account = tuple[str, str, SavingsKind]
"""Tenant, model, kind."""

Sums = dict[Account, float]

FLUSH_INTERVAL: Final = 5.0
"""Seconds between two flushes, which is what a process that is killed loses at most."""

RETENTION_DAYS: Final = 400
"""Days after which Redis drops the sums of a day."""

MAX_PENDING_DAYS: Final = 8
"""Days of which sums are kept while Redis is down; older ones are dropped."""

MAX_ACCOUNTS: Final = 10_000
"""Sums of a day that a process keeps; more names than the configuration has at a time come only from reloads."""

_SUMS_PER_COMMAND: Final = 500  # cache lookups share the connection, and Redis runs a script to its end

# ARGV: the time to live in seconds, then pairs of a field and what is added to it. HGET and HSET rather than
# HINCRBYFLOAT: the router's ACL has them. EXPIRE comes last and its failure is no error: the sums are added by then.
ADD_SCRIPT: Final = """
for i = 2, #ARGV, 2 do
  local sum = tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or '') or 0
  redis.call('HSET', KEYS[1], ARGV[i], string.format('%.15g', sum + ARGV[i + 1]))
end
redis.pcall('EXPIRE', KEYS[1], ARGV[1])
return 1
"""


def utc_day(at: float) -> str:
    """`at` in seconds since the epoch."""
    return dt.datetime.fromtimestamp(at, dt.UTC).strftime("%Y-%m-%d")


def days_until(at: float, count: int) -> list[str]:
    """The day of `at` and the days before it, the latest first."""
    return [utc_day(at - 86400 * back) for back in range(count)]


def add_commands(day: str, sums: Mapping[Account, float]) -> Iterator[tuple[Command, Sums]]:
    """The commands that add the sums, with the sums that each of them adds."""
    items = list(sums.items())
    for start in range(0, len(items), _SUMS_PER_COMMAND):
        part = items[start : start + _SUMS_PER_COMMAND]
        pairs = [word for account, amount in part for word in ("/".join(account), f"{amount:.15g}")]
        yield ("EVAL", ADD_SCRIPT, 1, savings_key(day), RETENTION_DAYS * 86400, *pairs), dict(part)


def read_command(day: str) -> Command:
    return ("HGETALL", savings_key(day))


def decode_sums(reply: Any) -> dict[tuple[str, str], dict[str, float]]:
    """The sums in the reply to `read_command`, by tenant and model; fields that cannot be decoded are left out."""
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=False)
    sums: dict[tuple[str, str], dict[str, float]] = {}
    for field, value in sorted((_text(field), _text(value)) for field, value in pairs):
        tenant, _, rest = field.partition("/")
        model, _, kind = rest.rpartition("/")  # a model's name may contain slashes
        amount = _parse_amount(value)
        if tenant and model and kind and amount is not None:
            sums.setdefault((tenant, model), {})[kind] = amount
    return sums


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _parse_amount(text: str) -> float | None:
    try:
        amount = float(text)
    except ValueError:
        return None
    return amount if isfinite(amount) else None


class SavingsLedger:
    """The sums of this process that Redis does not have yet.

    - `add` never raises and never waits.
    - `flush` sends the sums. Those that it cannot send, or that Redis refuses, are kept for the next flush.
    - No amount is added twice.
    """

    def __init__(self) -> None:
        self._added: Sums = {}  # since the last flush
        self._pending: dict[str, Sums] = {}  # by day
        self._refused = False

    def add(self, tenant: str, model: str, amounts: Iterable[tuple[SavingsKind, float]]) -> None:
        for kind, amount in amounts:
            account = (tenant, model, kind)
            if amount and (account in self._added or len(self._added) < MAX_ACCOUNTS):
                self._added[account] = self._added.get(account, 0.0) + amount

    def flush(self, pipeline: RedisPipeline, now: float) -> None:
        """`now`: seconds since the epoch; what was added since the last flush counts for its day."""
        added, self._added = self._added, {}
        self._keep(utc_day(now), added)
        pending, self._pending = self._pending, {}
        for day, day_sums in pending.items():
            for command, sums in add_commands(day, day_sums):
                try:
                    pipeline.send(command, on_reply=partial(self._on_reply, day, sums))
                except RedisDownError:
                    self._keep(day, sums)

    def _on_reply(self, day: str, sums: Sums, replies: Replies | None) -> None:
        if replies is None:  # Redis went down: it may have added them
            return
        was_refused, self._refused = self._refused, isinstance(replies[0], Exception)
        if self._refused:
            if not was_refused:  # a line for the first refusal, not one every few seconds
                log.warning("Redis does not take the savings, which are kept: %s", replies[0])
            self._keep(day, sums)

    def _keep(self, day: str, sums: Sums) -> None:
        if not sums:
            return
        kept = self._pending.setdefault(day, {})
        for account, amount in sums.items():
            if account in kept or len(kept) < MAX_ACCOUNTS:
                kept[account] = kept.get(account, 0.0) + amount
        while len(self._pending) > MAX_PENDING_DAYS:
            del self._pending[min(self._pending)]
