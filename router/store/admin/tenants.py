"""What each tenant and each of its API keys used in some days: the usage, the savings, the budgets and the keys."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from router.core.quota.budget import BudgetStatus
from router.settings import Settings, tenants
from router.shared.accounting.usage import NO_KEY
from router.store.admin.keys import KeyRow, list_keys
from router.store.admin.savings import fetch_savings
from router.store.admin.scan import RedisClient
from router.store.admin.usage import Usage, UsageQuery, UsageRow, UsageSums, fetch_usage

ReadBudgets = Callable[[str], Awaitable[list[BudgetStatus]]]
"""What is left of a tenant's budgets; empty if it has none."""


class TenantKey(UsageSums, frozen=True, kw_only=True):
    """An API key, and what it used. `key`: its id; `-` for requests without one.

    - `name`, `source`, `last_used`: see KeyRow. `status`: also `unknown`, of a key whose record is gone.
    - `last_day`: the last of the days on which it sent a request; None if on none.
    """

    key: str
    name: str | None = None
    source: str | None = None
    status: str = "unknown"
    last_used: int | None = None
    last_day: str | None = None


class TenantRow(UsageSums, frozen=True, kw_only=True):
    """A tenant, and what it used.

    - `configured`: whether it can send requests now.
    - `gpu_seconds_saved`: the seconds that hits and coalesced requests would have taken.
    - `budgets`: what is left of them now, whatever the days.
    - `last_used`, `last_day`: the latest of its keys.
    - `keys`: those that are valid, and those that were used.
    """

    tenant: str
    configured: bool
    gpu_seconds_saved: float = 0.0
    budgets: list[BudgetStatus]
    last_used: int | None = None
    last_day: str | None = None
    keys: list[TenantKey]


class Tenants(msgspec.Struct, frozen=True, kw_only=True, rename={"first": "from", "last": "to"}):
    """`first`, `last`: the first and the last day. `tenants`: those with most requests first."""

    first: str
    last: str
    tenants: list[TenantRow]


async def fetch_tenants(client: RedisClient, settings: Settings, days: str, read_budgets: ReadBudgets) -> Tenants:
    """Raises ApiError (400) for wrong `days`, and RedisBackendError."""
    used = await fetch_usage(client, UsageQuery(days=days, by="day,tenant,key"))
    savings = await fetch_savings(client, int(days))
    saved: dict[str, float] = {}
    for row in savings.rows:
        saved[row.tenant] = saved.get(row.tenant, 0.0) + row.gpu_seconds_saved
    names = tenants(settings)
    budgets = await asyncio.gather(*[read_budgets(name) for name in names])
    keys = await list_keys(client, settings)
    # In a thread: a year of many keys takes seconds, in which this process could serve nobody.
    return await asyncio.to_thread(merge_tenants, used, saved, keys, dict(zip(names, budgets, strict=True)))


def merge_tenants(
    used: Usage, saved: Mapping[str, float], keys: Iterable[KeyRow], budgets: Mapping[str, list[BudgetStatus]]
) -> Tenants:
    """`used`: by day, tenant and key. `saved`: GPU seconds. `budgets`: of each tenant that can send requests."""
    rows: dict[tuple[str, str], list[UsageRow]] = {}
    for row in used.rows:
        rows.setdefault((str(row.tenant), str(row.key)), []).append(row)
    known = {(key.tenant, key.key_id): key for key in keys if key.tenant is not None}
    found: dict[str, list[TenantKey]] = {name: [] for name in budgets}
    for tenant, key_id in [*rows, *[each for each in known if each not in rows]]:
        key = known.get((tenant, key_id))
        of_key = rows.get((tenant, key_id), [])
        # A key that has ended and was not used in these days is of no interest here.
        if of_key or (key is not None and key.status == "active"):
            found.setdefault(tenant, []).append(_key(key_id, key, of_key))
    merged = [_tenant(name, own, saved.get(name, 0.0), budgets.get(name)) for name, own in found.items()]
    merged.sort(key=lambda row: (-(row.requests + row.refused), row.tenant))
    return Tenants(first=used.first, last=used.last, tenants=merged)


def _key(key_id: str, key: KeyRow | None, rows: Sequence[UsageRow]) -> TenantKey:
    named: dict[str, Any] = {"status": "no key"} if key_id == NO_KEY else {}
    if key is not None:
        named = {"name": key.name, "source": key.source, "status": key.status, "last_used": key.last_used}
    last_day = max((str(row.day) for row in rows), default=None)
    return TenantKey(**_add_up(rows), **named, key=key_id, last_day=last_day)


def _tenant(name: str, keys: list[TenantKey], saved: float, budgets: list[BudgetStatus] | None) -> TenantRow:
    return TenantRow(
        **_add_up(keys),
        tenant=name,
        configured=budgets is not None,
        gpu_seconds_saved=round(saved, 3),
        budgets=budgets or [],
        last_used=max((key.last_used for key in keys if key.last_used is not None), default=None),
        last_day=max((key.last_day for key in keys if key.last_day is not None), default=None),
        keys=sorted(keys, key=lambda key: (-(key.requests + key.refused), key.name or "", key.key)),
    )


def _add_up(rows: Iterable[UsageSums]) -> dict[str, Any]:
    """The values of UsageSums."""
    total: dict[str, Any] = {}
    refused_by: dict[str, int] = {}
    for row in rows:
        for kind in UsageSums.__struct_fields__:
            if kind != "refused_by":
                total[kind] = round(total.get(kind, 0) + getattr(row, kind), 3)
        for reason, count in row.refused_by.items():
            refused_by[reason] = refused_by.get(reason, 0) + count
    return total | {"refused_by": refused_by}
