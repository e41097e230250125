"""`roundhouse cache grep`: finds entries by the text of their answers, and purges them."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from router.commands.cache.listing import write_entries
from router.commands.cache.options import ModelOption, SortOption, TenantOption, check_sort
from router.commands.cache.purge_words import FULL, describe_purge
from router.commands.console import (
    ConfigOption,
    JsonOption,
    confirm,
    fail,
    format_bytes,
    load_settings,
    print_err,
    progress,
    write_json,
)
from router.commands.redis import parse_filter, with_audit, with_redis
from router.core.cache.entry_filter import MAX_PAGE_SIZE, EntryFilter
from router.core.plural import pluralize
from router.settings import DEFAULT_PATH, Settings

if TYPE_CHECKING:  # imported by the command, since they would slow all others down
    from router.store.admin.grep import Found, GrepResult
    from router.store.admin.purge import PurgeResult
    from router.store.admin.scan import RedisClient


def grep(
    text: Annotated[str, typer.Argument(help="The text to find, in any case. White space matches any white space.")],
    config: ConfigOption = Path(DEFAULT_PATH),
    tenant: TenantOption = None,
    model: ModelOption = None,
    sort: SortOption = "age",
    max_entries: Annotated[int, typer.Option(min=1, help="Maximum number of entries searched.")] = 100_000,
    do_purge: Annotated[bool, typer.Option("--purge", help="Purge all matches, in every router.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --purge: only show what would be purged.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Find entries by the text of their answers, and purge them."""
    from msgspec.structs import replace

    from router.store.admin.grep import Bounds, describe_found, search_answers

    order = check_sort(sort)
    entry_filter = parse_filter(tenant=tenant, model=model)
    settings = load_settings(config)

    async def search(client: "RedisClient") -> "tuple[Found, GrepResult]":
        found = await search_answers(client, entry_filter, text, Bounds(entries=max_entries), on_search)
        return found, await describe_found(client, found, order, MAX_PAGE_SIZE)

    # Two connections: a person may take longer to confirm than Redis keeps one that is idle.
    with progress("entries searched") as on_search:
        found, result = with_redis(settings, config, search)
    if not as_json:
        write_entries(result.entries)
        _write_summary(result, would_purge=do_purge and dry_run)
    if do_purge and not dry_run and result.matches:
        question = f"Purge {pluralize(result.matches, 'entry', 'entries')}, and generations in progress at their keys?"
        if sys.stdin.isatty() and not yes and not confirm(question):
            fail("nothing was purged")
        purged = _purge(settings, config, entry_filter, text, found)
        result = replace(result, purge=purged)
        if not as_json:
            typer.echo(describe_purge(purged))
    if as_json:
        write_json(result)
    # Each failure comes after the result, which a program needs all the same.
    if result.purge is not None and not result.purge.recorded:
        fail(FULL)
    if do_purge and not result.everything:
        fail("not all entries were searched, so more may match; repeat it with a larger --max-entries")


def _purge(settings: Settings, config: Path, scope: EntryFilter, text: str, found: "Found") -> "PurgeResult":
    from router.shared.audit.changes import Change, entries_purged, purge_stopped
    from router.store.admin.grep import purge_found
    from router.store.admin.scan import LastCount

    with progress("entries purged") as on_purge:
        count = LastCount(on_purge)

        def stopped(error: BaseException) -> list[Change]:
            return [purge_stopped(scope, count.value, error, text=text)] if count.value is not None else []

        audited = with_audit(
            settings,
            lambda client: purge_found(client, found, count),
            lambda done: [entries_purged(scope, done.entries, done.claims, recorded=done.recorded, text=text)],
            stopped,
        )
        return with_redis(settings, config, audited)


def _write_summary(result: "GrepResult", *, would_purge: bool) -> None:
    matches = pluralize(result.matches, "entry", "entries")
    # On standard error: standard output has the table, which may be empty.
    searched = f"{result.looked_at:,} searched ({format_bytes(result.bytes)})"
    skipped = f", {result.skipped:,} without a readable answer" if result.skipped else ""
    bound = "" if result.everything else "; there are more entries, which --max-entries includes"
    print_err(f"{matches} of {searched}{skipped} {'would be purged' if would_purge else 'found'}{bound}")
