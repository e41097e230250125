"""The usage of tenants as administrators and tenants see it: rows by day, tenant, API key or model, and their total."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, get_args

import msgspec

from router.core.cache.entry_filter import parse_listing_filter
from router.errors import bad_request
from router.shared.accounting import ledger, usage
from router.shared.accounting.daily_sums import decode_sums, utc_day
from router.shared.accounting.retention import RETENTION_DAYS
from router.shared.accounting.usage import REFUSED
from router.store.admin.scan import BATCH_SIZE, RedisClient, execute_commands, read_redis_clock
from router.store.admin.usage_period import usage_days

Dimension = Literal["day", "tenant", "key", "model"]

DIMENSIONS: Final[tuple[Dimension, ...]] = get_args(Dimension)

_COUNTS: Final = (
    "requests", "hits", "coalesced", "prompt_tokens", "completion_tokens", "estimated_tokens", "saved_tokens",
)  # fmt: skip
_MAX_TEXT: Final = 256  # characters of a parameter


class UsageSums(msgspec.Struct, frozen=True, kw_only=True):
    """What requests used, and what the cache saved.

    - `requests`: those that were looked up in the cache or passed it by; not those that were refused before.
    - `hits`: requests served from the cache, stale ones too; `coalesced`: those that shared another one's generation.
    - `prompt_tokens`, `completion_tokens`: of generations, as engines report them. `estimated_tokens`: of generations
      for which an engine reported none. `saved_tokens`: completion tokens of hits and coalesced requests.
    - `gpu_seconds`: seconds of generation. See docs/limits.md.
    - `refused`: by a limit, a budget or a queue, before an engine was selected; `refused_by`: these by the reason.
    """

    requests: int = 0
    hits: int = 0
    coalesced: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated_tokens: int = 0
    saved_tokens: int = 0
    gpu_seconds: float = 0.0
    refused: int = 0
    refused_by: dict[str, int] = {}


class UsageRow(UsageSums, frozen=True, kw_only=True, omit_defaults=False):
    """The sums of one day, tenant, key or model, or a combination; those that rows are not divided by are UNSET.

    `day` as YYYY-MM-DD, in UTC. `key`: the id of an API key; `-` for requests without one.
    """

    day: str | msgspec.UnsetType = msgspec.UNSET
    tenant: str | msgspec.UnsetType = msgspec.UNSET
    key: str | msgspec.UnsetType = msgspec.UNSET
    model: str | msgspec.UnsetType = msgspec.UNSET


class Usage(msgspec.Struct, frozen=True, kw_only=True, rename={"first": "from", "last": "to"}):
    """`first`, `last`: the first and the last day. `rows`: the latest day first, then by the other columns."""

    first: str
    last: str
    rows: list[UsageRow]
    total: UsageSums


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What to report; None: all, or the default. `by`: one or more dimensions, with commas; see `usage_days`."""

    tenant: str | None = None
    key: str | None = None
    days: str | None = None
    first: str | None = None
    last: str | None = None
    by: str = "day"

    def dimensions(self) -> list[Dimension]:
        """Raises ApiError (400)."""
        names = self.by.split(",") if len(self.by) <= _MAX_TEXT else []
        found = [dimension for dimension in DIMENSIONS if dimension in names]
        if not found or len(found) != len(names):
            raise bad_request(
                f"`by` must be one or more of {', '.join(DIMENSIONS)}, each once.", param="by", code="invalid_query"
            )
        return found


async def fetch_usage(client: RedisClient, query: UsageQuery) -> Usage:
    """Raises ApiError (400) for a wrong query, and RedisBackendError."""
    dimensions = query.dimensions()
    if query.tenant is not None:
        parse_listing_filter({"tenant": query.tenant})
    today = utc_day((await read_redis_clock(client)).now())
    days = usage_days(today, RETENTION_DAYS, days=query.days, first=query.first, last=query.last)
    sums: dict[tuple[str, ...], dict[str, float]] = {}
    for start in range(0, len(days), BATCH_SIZE):
        some = days[start : start + BATCH_SIZE]
        pairs = [(day, query.tenant) for day in some] if query.tenant else await _active(client, some)
        for chunk_start in range(0, len(pairs), BATCH_SIZE):
            chunk = pairs[chunk_start : chunk_start + BATCH_SIZE]
            replies = await execute_commands(client, [usage.read_command(tenant, day) for day, tenant in chunk])
            for (day, tenant), reply in zip(chunk, replies, strict=True):
                for (key_id, model), amounts in decode_sums(reply or {}).items():
                    if query.key in (None, key_id):
                        values = {"day": day, "tenant": tenant, "key": key_id, "model": model}
                        _add(sums.setdefault(tuple(values[name] for name in dimensions), {}), amounts)
                await asyncio.sleep(0)  # a day of many keys takes milliseconds
    return await asyncio.to_thread(_to_usage, days, dimensions, sums)


def _to_usage(days: Sequence[str], dimensions: Sequence[Dimension], sums: Mapping[tuple[str, ...], Any]) -> Usage:
    rows = [
        UsageRow(**_known(sums[values]) | dict(zip(dimensions, values, strict=True)))
        for values in _ordered(sums, dimensions)
    ]
    total: dict[str, float] = {}
    for amounts in sums.values():
        _add(total, amounts)
    return Usage(first=days[-1], last=days[0], rows=rows, total=UsageSums(**_known(total)))


async def _active(client: RedisClient, days: Sequence[str]) -> list[tuple[str, str]]:
    """The days and tenants with requests. The savings ledger tells them, so that nothing searches among all keys."""
    replies = await execute_commands(client, [ledger.read_command(day) for day in days])
    return [
        (day, tenant)
        for day, reply in zip(days, replies, strict=True)
        for tenant in sorted({tenant for tenant, _ in decode_sums(reply or {})})
    ]


def _ordered(rows: Iterable[tuple[str, ...]], dimensions: Sequence[Dimension]) -> Iterator[tuple[str, ...]]:
    ordered = sorted(rows)
    if "day" in dimensions:  # it is the first; the sort is stable
        ordered.sort(key=lambda values: values[0], reverse=True)
    yield from ordered


def _add(sums: dict[str, float], amounts: Mapping[str, float]) -> None:
    for kind, amount in amounts.items():
        sums[kind] = sums.get(kind, 0) + amount


def _known(sums: Mapping[str, float]) -> dict[str, Any]:
    """The values of UsageSums; kinds of a later version are left out."""
    known: dict[str, Any] = {kind: round(sums[kind]) for kind in _COUNTS if kind in sums}
    refused_by = {kind.removeprefix(REFUSED): round(n) for kind, n in sorted(sums.items()) if kind.startswith(REFUSED)}
    return known | {
        "gpu_seconds": round(sums.get("gpu_seconds", 0.0), 3),
        "refused": sum(refused_by.values()),
        "refused_by": refused_by,
    }
