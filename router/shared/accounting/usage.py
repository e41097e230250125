"""The usage of tenants by API key, model and day.

    rh:1:usage:{tenant}:{YYYY-MM-DD}     a hash: KEY_ID/MODEL/KIND -> a sum of that day (UTC, by Redis' clock)

A key id comes only from a valid key; `-` stands for requests without one. See router.shared.accounting.daily_sums for
how the sums get there. A hash has at most as many fields as a tenant's keys, times its models, times the kinds.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal

from router.core.cache.redis_keys import usage_key
from router.net.redis.commands import Command
from router.shared.accounting.daily_sums import DailySums, add_to_key

log = logging.getLogger("roundhouse.usage")

UsageKind = Literal[
    "requests", "hits", "coalesced", "prompt_tokens", "completion_tokens", "estimated_tokens", "saved_tokens",
    "gpu_seconds",
]  # fmt: skip
"""The kinds of sums; see router.store.admin.usage.UsageSums. Requests that were refused: see REFUSED."""

UsageAccount = tuple[str, str, str, str]
"""Tenant, key id, model, kind."""

REFUSED: Final = "refused:"
"""With the reason after it, the kind of the requests that were refused for it. Earlier versions leave it out."""

NO_KEY: Final = "-"
"""In place of a key id."""

MAX_ACCOUNTS: Final = 50_000
"""Sums of a day that a process keeps: those of some thousand keys."""


def add_commands(day: str, sums: Mapping[UsageAccount, float]) -> Iterator[tuple[Command, dict[UsageAccount, float]]]:
    """The commands that add the sums, with the sums that each of them adds."""
    by_tenant: dict[str, dict[UsageAccount, float]] = {}
    for account, amount in sums.items():
        by_tenant.setdefault(account[0], {})[account] = amount
    for tenant, own in by_tenant.items():
        yield from add_to_key(usage_key(tenant, day), own, _field)


def _field(account: UsageAccount) -> str:
    return "/".join(account[1:])


def read_command(tenant: str, day: str) -> Command:
    return ("HGETALL", usage_key(tenant, day))


class UsageLedger(DailySums[UsageAccount]):
    """The usage that this process has counted and Redis does not have yet; see DailySums."""

    def __init__(self) -> None:
        super().__init__(add_commands, max_accounts=MAX_ACCOUNTS, log=log, name="usage")

    def add(self, tenant: str, key_id: str | None, model: str, amounts: Iterable[tuple[str, float]]) -> None:
        for kind, amount in amounts:
            self.add_amount((tenant, key_id or NO_KEY, model, kind), amount)
