"""`cache delete` and `cache clear`: names that people guess for `cache purge`, which alone deletes.

They show what would be purged and the command that does it. Their exit code is 2, so that no script takes them for it.
"""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from router.commands.cache.options import TenantOption
from router.commands.cache.purge_words import describe_matches
from router.commands.console import EXIT_USAGE, ConfigOption, fail, load_settings, progress
from router.commands.redis import parse_filter, with_redis
from router.settings import DEFAULT_PATH

if TYPE_CHECKING:
    from router.core.cache.entry_filter import EntryFilter


def delete(
    key: Annotated[str, typer.Argument(help="The key, as in X-Cache-Key.")], config: ConfigOption = Path(DEFAULT_PATH)
) -> None:
    """Show what `purge --key KEY` would purge. Changes nothing."""
    _show(config, parse_filter(key=key), ["--key", key])


def clear(config: ConfigOption = Path(DEFAULT_PATH), tenant: TenantOption = None) -> None:
    """Show what `purge --all` would purge, or of one tenant. Changes nothing."""
    _show(config, parse_filter(tenant=tenant), ["--tenant", tenant] if tenant is not None else ["--all"])


def _show(config: Path, entry_filter: "EntryFilter", options: list[str]) -> None:
    from router.store.admin.purge import count_entries

    with progress("entries found") as on_count:
        matching = with_redis(
            load_settings(config), config, lambda client: count_entries(client, entry_filter, on_count)
        )
    # The line is to be copied, so it has what makes it purge in the same Redis.
    if config != Path(DEFAULT_PATH):
        options = [*options, "--config", str(config)]
    typer.echo(f"{describe_matches(matching, entry_filter)} would be purged")
    fail(f"nothing was purged; to purge: roundhouse cache purge {shlex.join(options)}", EXIT_USAGE)
