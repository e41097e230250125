"""The savings ledger as administrators see it: a row for each day, tenant and model, and their totals."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from router.shared.accounting.daily_sums import days_until, decode_sums
from router.shared.accounting.ledger import read_command
from router.store.admin.scan import RedisClient, execute_commands, read_redis_clock


class SavingsSums(msgspec.Struct, frozen=True, kw_only=True):
    """What requests cost and what the cache saved.

    - `hits`: requests served from the cache, stale ones too; `coalesced`: those that shared another one's generation.
    - `saved_tokens`: completion tokens of both. `gpu_seconds`: seconds of generation. See docs/operating.md.
    - `joules_spent`, `joules_saved`: None where no engine's power was known.
    """

    requests: int = 0
    hits: int = 0
    coalesced: int = 0
    saved_tokens: int = 0
    gpu_seconds_spent: float = 0.0
    gpu_seconds_saved: float = 0.0
    joules_spent: float | None = None
    joules_saved: float | None = None


class SavingsRow(SavingsSums, frozen=True, kw_only=True):
    """`day` as YYYY-MM-DD, in UTC."""

    day: str
    tenant: str
    model: str


class Savings(msgspec.Struct, frozen=True, kw_only=True):
    """`rows`: the latest day first; a day without requests has none."""

    rows: list[SavingsRow]
    total: SavingsSums


async def fetch_savings(client: RedisClient, days: int, tenant: str | None = None) -> Savings:
    """The savings of today and the `days` - 1 days before, in UTC. Raises RedisBackendError."""
    names = days_until((await read_redis_clock(client)).now(), days)
    replies = await execute_commands(client, [read_command(day) for day in names])
    rows = [
        SavingsRow(day=day, tenant=name, model=model, **_sums(sums))
        for day, reply in zip(names, replies, strict=True)
        for (name, model), sums in decode_sums(reply or {}).items()
        if tenant in (None, name) and sums.keys() != {"refused"}  # a tenant that was only refused saves nothing
    ]
    return Savings(rows=rows, total=add_up(rows))


def add_up(rows: Iterable[SavingsSums]) -> SavingsSums:
    totals: dict[str, float] = {}
    for row in rows:
        for kind in SavingsSums.__struct_fields__:
            amount = getattr(row, kind)
            if amount is not None:
                totals[kind] = totals.get(kind, 0) + amount
    return SavingsSums(**_sums(totals))


def _sums(sums: Mapping[str, float]) -> dict[str, Any]:
    """The values of SavingsSums; kinds of a later version are left out."""
    fields = {field.name: field.type for field in msgspec.structs.fields(SavingsSums)}
    return {kind: round(sums[kind]) if fields[kind] is int else round(sums[kind], 3) for kind in fields if kind in sums}
