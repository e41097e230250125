"""The savings ledger: what requests cost and what the cache saved, by day, tenant and model.

    rh:1:savings:{YYYY-MM-DD}     a hash: TENANT/MODEL/KIND -> a sum of that day (UTC, by Redis' clock)

See router.shared.accounting.daily_sums for how the sums get there.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal

from router.core.cache.redis_keys import savings_key
from router.net.redis.commands import Command
from router.shared.accounting.daily_sums import FLUSH_INTERVAL as FLUSH_INTERVAL
from router.shared.accounting.daily_sums import DailySums, add_to_key

log = logging.getLogger("roundhouse.savings")

SavingsKind = Literal[
    "requests", "hits", "coalesced", "saved_tokens", "gpu_seconds_spent", "gpu_seconds_saved", "joules_spent",
    "joules_saved", "refused",
]  # fmt: skip
"""The kinds of sums. `hits` includes stale responses; for the others, see docs/operating.md.

`refused` is there so that a tenant whose requests were all refused is found.
"""

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


class SavingsLedger(DailySums[Account]):
    """The sums of this process that Redis does not have yet; see DailySums."""

    def __init__(self) -> None:
        super().__init__(add_commands, max_accounts=MAX_ACCOUNTS, log=log, name="savings")

    def add(self, tenant: str, model: str, amounts: Iterable[tuple[SavingsKind, float]]) -> None:
        for kind, amount in amounts:
            self.add_amount((tenant, model, kind), amount)
