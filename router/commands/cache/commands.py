"""`roundhouse cache`: lists and explains entries, and purges them."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from router.commands.cache.explain import explain
from router.commands.cache.grep import grep
from router.commands.cache.guessed_names import clear, delete
from router.commands.cache.listing import ls, write_entries
from router.commands.cache.options import DocumentOption, ModelOption, RagOption, SystemOption, TenantOption
from router.commands.cache.purge_words import FULL, describe_matches, describe_purge
from router.commands.cache.savings import savings
from router.commands.cache.transfer import export_, import_from
from router.commands.console import (
    EXIT_USAGE,
    ConfigOption,
    JsonLinesOption,
    JsonOption,
    confirm,
    fail,
    format_bytes,
    format_duration,
    load_settings,
    printable,
    progress,
    write_json,
    write_table,
)
from router.commands.redis import parse_filter, with_audit, with_redis
from router.commands.suggestions import command_group
from router.core.cache.entry_filter import MAX_PAGE_SIZE
from router.core.plural import pluralize
from router.settings import DEFAULT_PATH

if TYPE_CHECKING:  # imported by the commands that need them, since they would slow all others down
    from router.store.admin.listing import EntryDetail, StreamDetail
    from router.store.admin.scan import RedisClient
    from router.store.admin.stats import CacheStats

KeyArgument = Annotated[str, typer.Argument(help="The key, as in X-Cache-Key.")]

app = command_group("Inspect, explain, purge, export and import the cache.")
app.command(name="ls")(ls)
app.command(name="grep")(grep)
app.command(name="export")(export_)
app.command(name="import")(import_from)
app.command(name="savings")(savings)
app.command()(explain)
app.command()(delete)
app.command()(clear)


@app.command(name="stats")
def stats_command(config: ConfigOption = Path(DEFAULT_PATH), as_json: JsonOption = False) -> None:
    """Count entries, tokens and bytes, by tenant and model."""
    from router.store.admin.scan import read_redis_clock
    from router.store.admin.stats import collect_stats

    with progress("entries counted") as on_count:

        async def count(client: "RedisClient") -> "tuple[CacheStats, float]":
            return await collect_stats(client, on_count), (await read_redis_clock(client)).now()

        stats, now = with_redis(load_settings(config), config, count)
    write_json(stats) if as_json else _write_stats(stats, now)


def _write_stats(stats: "CacheStats", now: float) -> None:
    total = stats.total
    extrapolated = "" if total.measured == total.entries else f", estimated from {total.measured:,} of them"
    entries, tokens = pluralize(total.entries, "entry", "entries"), pluralize(total.tokens, "token")
    per_token = "" if total.bytes_per_token is None else f", {total.bytes_per_token:.1f} bytes per token"
    typer.echo(f"{entries} ({total.stale:,} stale), {tokens}, {format_bytes(total.bytes)}{per_token}{extrapolated}")
    if stats.oldest is not None and stats.newest is not None:
        typer.echo(
            f"the oldest is {format_duration(now - stats.oldest)} old, the newest {format_duration(now - stats.newest)}"
        )
    typer.echo(f"in progress: {pluralize(stats.claims, 'generation')}, {pluralize(stats.flights, 'shared stream')}")
    if kept := stats.responses.values():
        count, size = sum(each.count for each in kept), sum(each.bytes for each in kept)
        tenants = pluralize(len(kept), "tenant")
        typer.echo(f"kept for /v1/responses: {pluralize(count, 'response')} of {tenants}, {format_bytes(size)}")
    for server in stats.redis:
        limit = (
            f"of {format_bytes(server['max_memory'])}, {server['policy']}"
            if server["max_memory"]
            else "without maxmemory"
        )
        evicted = pluralize(server["evicted"] or 0, "key")
        typer.echo(f"redis {server['version']}: {format_bytes(server['memory'])} {limit}, {evicted} evicted")
    rows = [("tenant", "model", "entries", "stale", "tokens", "memory", "bytes per token")]
    for tenant, models in stats.tenants.items():
        for model, group in models.items():
            per_token = "-" if group.bytes_per_token is None else f"{group.bytes_per_token:.1f}"
            counts = str(group.entries), str(group.stale), str(group.tokens), format_bytes(group.bytes)
            rows.append((tenant, model, *counts, per_token))
    if len(rows) > 1:
        typer.echo()
        write_table(rows)


@app.command(name="get", help="The same as `show`.")
@app.command(name="show")
def show_command(
    key: KeyArgument,
    config: ConfigOption = Path(DEFAULT_PATH),
    as_fields: Annotated[bool, typer.Option("--fields", help="Print the raw fields instead of the text.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the text of one entry and its fields, or whatever else is stored at its key."""
    from router.store.admin.listing import fetch_detail

    entry_filter = parse_filter(key=key)
    detail = with_redis(load_settings(config), config, lambda client: fetch_detail(client, entry_filter.key or ""))
    if detail is None:
        fail(f"no entry at {key}")
    write_json(detail) if as_json else _write_entry(detail, as_fields=as_fields)


def _write_entry(detail: "EntryDetail", *, as_fields: bool) -> None:
    """A value that is not a valid entry is always written field by field."""
    entry = detail.entry
    typer.echo(entry.key)
    if detail.problem is not None:
        typer.echo(f"!! {detail.problem}")
    dropped = "never" if entry.gone_in is None else f"in {format_duration(entry.gone_in)}"
    left = "stale" if entry.stale else f"{format_duration(entry.ttl)} left"
    typer.echo(
        f"{format_duration(entry.age)} old, {left}; expires from Redis {dropped}; {format_bytes(entry.bytes)} of memory"
    )
    if len(detail.samples) > 1:
        typer.echo(f"one of {len(detail.samples)} samples:")
        write_entries(detail.samples)
    if as_fields or detail.problem is not None:
        for name, value in detail.fields.items():
            shown = printable(value)
            typer.echo(f"\n{printable(name)}:\n{shown}" if len(shown) > 100 else f"{printable(name)}: {shown}")
        return
    shown_fields = dict(detail.fields)
    if detail.text is not None:
        typer.echo(f"\n{printable(detail.text)}\n")
        # The text is a readable form of the body, which is therefore not repeated.
        shown_fields["body"] = pluralize(len(detail.fields["body"].encode()), "byte")
    if detail.stream is not None:
        shown_fields["stream"] = _describe_stream(detail.stream)
    for name, value in shown_fields.items():
        typer.echo(f"{printable(name)}: {printable(value)}")


def _describe_stream(stream: "StreamDetail") -> str:
    events = "no events" if stream.events is None else f"{pluralize(stream.events, 'byte')} of events"
    note = "" if stream.lossless else "; the body is a readable copy only"
    return f"{pluralize(stream.bytes, 'byte')}; gives {events}{note}"


@app.command(name="top")
def top_command(
    config: ConfigOption = Path(DEFAULT_PATH),
    tenant: TenantOption = None,
    limit: Annotated[int, typer.Option(min=1, max=MAX_PAGE_SIZE, help="Maximum number of entries.")] = 10,
    as_json: JsonLinesOption = False,
) -> None:
    """List the entries with the most hits."""
    from router.store.admin.stats import top_entries

    tenant_name = parse_filter(tenant=tenant).tenant
    hits = with_redis(load_settings(config), config, lambda client: top_entries(client, limit, tenant_name))
    if as_json:
        for hit in hits:
            write_json(hit)
    elif hits:
        rows = [(str(hit.hits), "gone" if hit.saved is None else str(hit.saved), hit.key) for hit in hits]
        write_table([("hits", "tokens saved", "key"), *rows])


@app.command(name="purge")
def purge_command(
    config: ConfigOption = Path(DEFAULT_PATH),
    key: Annotated[str | None, typer.Option(help="Only the entry at this key, as in X-Cache-Key.")] = None,
    tenant: TenantOption = None,
    model: ModelOption = None,
    system: SystemOption = None,
    rag: RagOption = None,
    document: DocumentOption = None,
    everything: Annotated[bool, typer.Option("--all", help="All entries.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the matching entries.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Purge entries, and generations in progress, in every router. Only what matches all of the options is purged.

    With --tenant alone, or --all, the kept responses of /v1/responses, too.
    """
    from router.shared.audit.changes import entries_purged, purge_stopped
    from router.store.admin.purge import count_entries, purge
    from router.store.admin.scan import LastCount

    entry_filter = parse_filter(key=key, tenant=tenant, model=model, system=system, rag=rag, document=document)
    if entry_filter.all != everything:
        fail("purge: give at least one filter, or only --all", EXIT_USAGE)
    settings = load_settings(config)
    must_confirm = sys.stdin.isatty() and not yes
    if dry_run or must_confirm:
        with progress("entries found") as on_count:
            matching = with_redis(settings, config, lambda client: count_entries(client, entry_filter, on_count))
        if dry_run:
            write_json({"entries": matching}) if as_json else typer.echo(
                f"{describe_matches(matching, entry_filter)} would be purged"
            )
            return
        question = f"Purge {describe_matches(matching, entry_filter)}, and matching generations in progress?"
        if not confirm(question):
            fail("nothing was purged")
    with progress("entries purged") as on_purge:
        count = LastCount(on_purge)
        result = with_redis(
            settings,
            config,
            with_audit(
                settings,
                lambda client: purge(client, entry_filter, count),
                lambda done: [entries_purged(entry_filter, done.entries, done.claims, recorded=done.recorded)],
                lambda error: [purge_stopped(entry_filter, count.value or 0, error)],
            ),
        )
    if as_json:
        write_json(result)
    else:
        typer.echo(describe_purge(result))
    if not result.recorded:
        fail(FULL)
