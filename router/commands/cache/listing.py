"""`roundhouse cache ls`, and the table of entries that others print, too."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from router.commands.cache.options import (
    DocumentOption,
    ModelOption,
    RagOption,
    SortOption,
    SystemOption,
    TenantOption,
    check_sort,
)
from router.commands.console import (
    ConfigOption,
    JsonLinesOption,
    format_bytes,
    format_duration,
    load_settings,
    print_err,
    write_json,
    write_table,
)
from router.commands.redis import parse_filter, with_redis
from router.core.cache.entry_filter import MAX_PAGE_SIZE
from router.settings import DEFAULT_PATH

if TYPE_CHECKING:  # imported by the commands that need them, since they would slow all others down
    from router.store.admin.listing import EntrySummary

_WORDS: Final = 48  # characters of an answer in a table; --json has more


def ls(
    config: ConfigOption = Path(DEFAULT_PATH),
    tenant: TenantOption = None,
    model: ModelOption = None,
    system: SystemOption = None,
    rag: RagOption = None,
    document: DocumentOption = None,
    sort: SortOption = "key",
    limit: Annotated[int, typer.Option(min=1, max=MAX_PAGE_SIZE, help="Maximum number of entries.")] = 100,
    cursor: Annotated[str | None, typer.Option(help="List the entries after this one, in the same order.")] = None,
    as_json: JsonLinesOption = False,
) -> None:
    """List entries with the first words of their answers."""
    from router.store.admin.listing import list_entries

    order = check_sort(sort)
    entry_filter = parse_filter(tenant=tenant, model=model, system=system, rag=rag, document=document)
    listing = with_redis(
        load_settings(config), config, lambda client: list_entries(client, entry_filter, limit, cursor, order)
    )
    if as_json:
        for entry in listing.entries:
            write_json(entry)
    else:
        write_entries(listing.entries)
    if listing.cursor is not None:
        print_err(f"more entries: --cursor {listing.cursor}")


def write_entries(entries: "Iterable[EntrySummary]") -> None:
    """A table; nothing without an entry."""
    rows = [_row(entry) for entry in entries]
    if rows:
        titles = ("age", "left", "hits", "saved", "tokens", "memory", "task", "engine", "answer", "key")
        write_table([titles, *rows])


def _row(entry: "EntrySummary") -> tuple[str, ...]:
    left = "stale" if entry.stale else format_duration(entry.ttl)
    tokens = "?" if entry.completion_tokens is None else str(entry.completion_tokens)
    # The key stays last, where scripts look for it.
    words = entry.preview or "-"
    return (
        format_duration(entry.age),
        left,
        str(entry.hits or 0),
        format_duration(entry.saved_seconds),
        tokens,
        format_bytes(entry.bytes),
        entry.task or "?",
        entry.engine or "?",
        words if len(words) <= _WORDS else f"{words[: _WORDS - 1]}…",
        entry.key,
    )
