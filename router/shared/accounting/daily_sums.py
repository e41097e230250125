"""Sums by day that a process adds in Redis every few seconds, so that a request costs no command.

A process that is killed loses what it has not yet added. While Redis is down, the sums are kept. If Redis goes down
while it gets them, nobody knows whether it has added them; they are then dropped, so that there is never more in Redis
than there was.
"""

import datetime as dt
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from router.net.redis.commands import Command
from router.net.redis.pipeline import OnReply, RedisDownError, Replies
from router.net.redis.replies import decode_reply
from router.shared.accounting.retention import RETENTION_DAYS

AccountT = TypeVar("AccountT")

FLUSH_INTERVAL: Final = 5.0
"""Seconds between two flushes, which is what a process that is killed loses at most."""

MAX_PENDING_DAYS: Final = 8
"""Days of which sums are kept while Redis is down; older ones are dropped."""

MAX_SUM: Final = 1e18
"""Far more than anything that is counted in a day; a larger value was not written by us, and would overflow totals."""

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


def add_to_key(
    key: str, sums: Mapping[AccountT, float], field: Callable[[AccountT], str]
) -> Iterator[tuple[Command, dict[AccountT, float]]]:
    """The commands that add the sums to the fields of a hash, with the sums that each of them adds."""
    items = list(sums.items())
    for start in range(0, len(items), _SUMS_PER_COMMAND):
        part = items[start : start + _SUMS_PER_COMMAND]
        pairs = [word for account, amount in part for word in (field(account), f"{amount:.15g}")]
        yield ("EVAL", ADD_SCRIPT, 1, key, RETENTION_DAYS * 86400, *pairs), dict(part)


def decode_fields(reply: Any) -> list[tuple[str, float]]:
    """The fields and sums in a reply to HGETALL, sorted; values that are no number up to MAX_SUM are left out."""
    decoded = decode_reply(_text_pairs, reply)
    return [(field, amount) for field, value in decoded if (amount := _parse_amount(value)) is not None]


def decode_sums(reply: Any) -> dict[tuple[str, str], dict[str, float]]:
    """The sums in a reply to HGETALL, by tenant or key id and model; fields of another form are left out."""
    sums: dict[tuple[str, str], dict[str, float]] = {}
    for field, amount in decode_fields(reply):
        owner, _, rest = field.partition("/")
        model, _, kind = rest.rpartition("/")  # a model's name may contain slashes
        if owner and model and kind:
            sums.setdefault((owner, model), {})[kind] = amount
    return sums


def _text_pairs(reply: Any) -> list[tuple[str, str]]:
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=False)
    return sorted((_text(field), _text(value)) for field, value in pairs)


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _parse_amount(text: str) -> float | None:
    try:
        amount = float(text)
    except ValueError:
        return None
    return amount if abs(amount) <= MAX_SUM else None  # false for nan


class Sender(Protocol):
    """The part of a RedisPipeline that is needed here."""

    def send(self, command: Command, /, *, on_reply: OnReply) -> None: ...


class DailySums(Generic[AccountT]):
    """The sums of this process that Redis does not have yet.

    - `add_amount` never raises and never waits.
    - `flush` sends the sums. Those that it cannot send, or that Redis refuses, are kept for the next flush.
    - No amount is added twice.
    """

    def __init__(
        self,
        add_commands: Callable[[str, Mapping[AccountT, float]], Iterator[tuple[Command, dict[AccountT, float]]]],
        *,
        max_accounts: int,
        log: logging.Logger,
        name: str,
    ) -> None:
        """`max_accounts`: sums of a day that are kept. `name`: of what is added up, for the log."""
        self._add_commands = add_commands
        self._max_accounts = max_accounts
        self._log = log
        self._name = name
        self._added: dict[AccountT, float] = {}  # since the last flush
        self._pending: dict[str, dict[AccountT, float]] = {}  # by day
        self._refused = False

    def add_amount(self, account: AccountT, amount: float) -> None:
        if amount and (account in self._added or len(self._added) < self._max_accounts):
            self._added[account] = self._added.get(account, 0.0) + amount

    def flush(self, pipeline: Sender, now: float) -> None:
        """`now`: seconds since the epoch; what was added since the last flush counts for its day."""
        added, self._added = self._added, {}
        self._keep(utc_day(now), added)
        pending, self._pending = self._pending, {}
        for day, day_sums in pending.items():
            for command, sums in self._add_commands(day, day_sums):
                try:
                    pipeline.send(command, on_reply=partial(self._on_reply, day, sums))
                except RedisDownError:
                    self._keep(day, sums)

    def _on_reply(self, day: str, sums: dict[AccountT, float], replies: Replies | None) -> None:
        if replies is None:  # Redis went down: it may have added them
            return
        was_refused, self._refused = self._refused, isinstance(replies[0], Exception)
        if self._refused:
            if not was_refused:  # a line for the first refusal, not one every few seconds
                self._log.warning("Redis refuses the sums of the %s; they are kept: %s", self._name, replies[0])
            self._keep(day, sums)

    def _keep(self, day: str, sums: Mapping[AccountT, float]) -> None:
        if not sums:
            return
        kept = self._pending.setdefault(day, {})
        for account, amount in sums.items():
            if account in kept or len(kept) < self._max_accounts:
                kept[account] = kept.get(account, 0.0) + amount
        while len(self._pending) > MAX_PENDING_DAYS:
            del self._pending[min(self._pending)]
