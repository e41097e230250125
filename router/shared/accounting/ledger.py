"""The savings ledger: what requests cost and what the cache saved, by day, tenant and model.

    rh:1:savings:{YYYY-MM-DD}     a hash: TENANT/MODEL/KIND -> a sum of that day (UTC, by Redis' clock)

See router.shared.accounting.daily_sums for how the sums get there.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal

from router.core.cache.redis_keys import savings_key
from router.net.redis.commands import Command
from router.net.redis.pipeline import RedisPipeline
from router.shared.accounting.daily_sums import ADD_SCRIPT as ADD_SCRIPT
from router.shared.accounting.daily_sums import FLUSH_INTERVAL as FLUSH_INTERVAL
from router.shared.accounting.daily_sums import MAX_PENDING_DAYS as MAX_PENDING_DAYS
from router.shared.accounting.daily_sums import DailySums, add_to_key, decode_fields
from router.shared.accounting.daily_sums import days_until as days_until

log = logging.getLogger("roundhouse.savings")

SavingsKind = Literal[
    "requests", "hits", "coalesced", "saved_tokens", "gpu_seconds_spent", "gpu_seconds_saved", "joules_spent",
    "joules_saved",
]  # fmt: skip
"""The kinds of sums. `hits` includes stale responses; for the others, see docs/operating.md."""

Account = tuple[str, str, SavingsKind]
"""Tenant, model, kind."""

Sums = dict[Account, float]

MAX_ACCOUNTS: Final = 10_000
"""Sums of a day that a process keeps; more names than the configuration has at a time come only from reloads."""


def add_commands(day: str, sums: Mapping[Account, float]) -> Iterator[tuple[Command, Sums]]:
    """The commands that add the sums, with the sums that each of them adds."""
    yield from add_to_key(savings_key(day), sums, "/".join)


def read_command(day: str) -> Command:
    return ("HGETALL", savings_key(day))


def decode_sums(reply: Any) -> dict[tuple[str, str], dict[str, float]]:
    """The sums in the reply to `read_command`, by tenant and model; fields that cannot be decoded are left out."""
    sums: dict[tuple[str, str], dict[str, float]] = {}
    for field, amount in decode_fields(reply):
        tenant, _, rest = field.partition("/")
        model, _, kind = rest.rpartition("/")  # a model's name may contain slashes
        if tenant and model and kind:
            sums.setdefault((tenant, model), {})[kind] = amount
    return sums


class SavingsLedger:
    """The sums of this process that Redis does not have yet; see DailySums."""

    def __init__(self) -> None:
        self._sums: DailySums[Account] = DailySums(add_commands, max_accounts=MAX_ACCOUNTS, log=log, name="savings")

    def add(self, tenant: str, model: str, amounts: Iterable[tuple[SavingsKind, float]]) -> None:
        for kind, amount in amounts:
            self._sums.add((tenant, model, kind), amount)

    def flush(self, pipeline: RedisPipeline, now: float) -> None:
        """`now`: seconds since the epoch; what was added since the last flush counts for its day."""
        self._sums.flush(pipeline, now)
