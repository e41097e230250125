"""`roundhouse usage`: what tenants and their API keys have used."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from router.commands.console import ConfigOption, JsonOption, load_settings, write_json, write_table
from router.commands.redis import with_redis
from router.settings import DEFAULT_PATH
from router.shared.accounting.retention import RETENTION_DAYS

if TYPE_CHECKING:  # imported by the command, since they would slow all others down
    from router.store.admin.usage import Dimension, Usage, UsageSums

_TITLES = (
    "requests", "hits", "coalesced", "prompt tokens", "completion", "estimated", "saved", "GPU seconds", "refused",
)  # fmt: skip


def usage(
    config: ConfigOption = Path(DEFAULT_PATH),
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None,
    key: Annotated[str | None, typer.Option(help="Only the API key with this id; see `roundhouse keys list`.")] = None,
    days: Annotated[
        int | None, typer.Option(min=1, max=RETENTION_DAYS, help="Days, today included, in UTC.  [default: 30]")
    ] = None,
    first: Annotated[str | None, typer.Option("--from", help="The first day, such as 2026-01-31.")] = None,
    last: Annotated[str | None, typer.Option("--to", help="The last day.  [default: today]")] = None,
    by: Annotated[str, typer.Option(help="Rows by day, tenant, key or model, or several with commas.")] = "day",
    as_json: JsonOption = False,
) -> None:
    """Show the requests, tokens and GPU seconds of tenants and their API keys."""
    from router.store.admin.usage import UsageQuery, fetch_usage

    query = UsageQuery(
        tenant=tenant, key=key, days=str(days) if days is not None else None, first=first, last=last, by=by
    )
    found = with_redis(load_settings(config), config, lambda client: fetch_usage(client, query))
    if as_json:
        write_json(found)
    elif found.rows:
        write_table(_table(found, query.dimensions()))
    else:
        typer.echo("no usage is recorded")


def _table(found: "Usage", dimensions: "list[Dimension]") -> list[tuple[str, ...]]:
    rows = [(*[str(getattr(row, name)) for name in dimensions], *_cells(row)) for row in found.rows]
    total = ("total", *[""] * (len(dimensions) - 1), *_cells(found.total))
    return [(*dimensions, *_TITLES), *rows, total]


def _cells(sums: "UsageSums") -> list[str]:
    counts = [
        sums.requests, sums.hits, sums.coalesced, sums.prompt_tokens, sums.completion_tokens, sums.estimated_tokens,
        sums.saved_tokens,
    ]  # fmt: skip
    return [*[f"{count:,}" for count in counts], f"{sums.gpu_seconds:,.1f}", f"{sums.refused:,}"]
