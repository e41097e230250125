"""`roundhouse cache savings`: what the cache saved, by day and tenant."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from router.commands.cache.options import TenantOption
from router.commands.console import ConfigOption, JsonOption, load_settings, printable, write_json
from router.commands.redis import with_redis
from router.settings import DEFAULT_PATH
from router.shared.accounting.retention import RETENTION_DAYS

if TYPE_CHECKING:  # imported by the command, since they would slow all others down
    from rich.table import Table

    from router.store.admin.savings import Savings, SavingsSums

_WIDTH = 200  # columns of an output that is not a terminal, so that no cell is cut


def savings(
    config: ConfigOption = Path(DEFAULT_PATH),
    days: Annotated[int, typer.Option(min=1, max=RETENTION_DAYS, help="Days, today included, in UTC.")] = 30,
    tenant: TenantOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what requests cost and what the cache saved, by day and tenant."""
    from router.store.admin.savings import fetch_savings

    found = with_redis(load_settings(config), config, lambda client: fetch_savings(client, days, tenant))
    if as_json:
        write_json(found)
    elif found.rows:
        _write_table(_make_table(found))
    else:
        typer.echo("no requests are recorded")


def _make_table(found: "Savings") -> "Table":
    from rich import box
    from rich.table import Table

    from router.store.admin.savings import SavingsSums, add_up

    table = Table(box=box.SIMPLE_HEAD, show_footer=True)
    table.add_column("day", "total")
    table.add_column("tenant")
    titles = ("requests", "hits", "coalesced", "tokens saved", "GPU time spent", "saved", "energy spent", "saved")
    for title, total in zip(titles, _cells(found.total), strict=True):
        table.add_column(title, total, justify="right")
    groups: dict[tuple[str, str], list[SavingsSums]] = {}
    for row in found.rows:
        groups.setdefault((row.day, row.tenant), []).append(row)
    for (day, tenant), rows in groups.items():
        table.add_row(day, _literal(tenant), *_cells(add_up(rows)))
    return table


def _write_table(table: "Table") -> None:
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    console.print(table)


def _literal(text: str) -> str:
    from rich.markup import escape

    return escape(printable(text))


def _cells(sums: "SavingsSums") -> list[str]:
    share = f" ({sums.hits / sums.requests:.0%})" if sums.requests else ""
    counts = [f"{sums.requests:,}", f"{sums.hits:,}{share}", f"{sums.coalesced:,}", f"{sums.saved_tokens:,}"]
    times = [_format_seconds(seconds) for seconds in (sums.gpu_seconds_spent, sums.gpu_seconds_saved)]
    return [*counts, *times, *[_format_joules(joules) for joules in (sums.joules_spent, sums.joules_saved)]]


def _format_seconds(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} h" if seconds >= 3600 else f"{seconds:,.1f} s"


def _format_joules(joules: float | None) -> str:
    """In watt-hours; `?` is unknown."""
    if joules is None:
        return "?"
    watt_hours = joules / 3600
    return f"{watt_hours / 1000:,.2f} kWh" if watt_hours >= 1000 else f"{watt_hours:,.2f} Wh"
