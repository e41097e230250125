"""`roundhouse cache`: what the cache holds, why a request hits or misses, and forgetting."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from router.commands.console import (
    WRONG_USE,
    Config,
    Json,
    JsonLines,
    agrees,
    amount,
    fail,
    printable,
    progress,
    say,
    settings_of,
    size,
    span,
    write_json,
    write_table,
)
from router.commands.options import Document, Model, Rag, System, Tenant
from router.commands.redis import narrowed, with_redis
from router.commands.transfer import export_, import_from
from router.core.cache.entry_filter import MAX_PAGE
from router.core.types import DEFAULT_TENANT, Endpoint
from router.settings import DEFAULT_PATH, Settings

if TYPE_CHECKING:  # what only one of these commands needs would slow all others down
    from router.flow.explain import Explanation, Question
    from router.store.admin.listing import Listed, Shown, ShownStream
    from router.store.admin.purge_record import Replicas
    from router.store.admin.scan import Client
    from router.store.admin.stats import Stats

Key = Annotated[str, typer.Argument(help="The key, as in X-Cache-Key.")]

app = typer.Typer(help="Look into the cache, explain it, and make it forget.", no_args_is_help=True)
app.command(name="export")(export_)
app.command(name="import")(import_from)


@app.command(name="stats")
def stats_command(config: Config = Path(DEFAULT_PATH), as_json: Json = False) -> None:
    """Say how much there is of what."""
    from router.store.admin.scan import redis_clock
    from router.store.admin.stats import stats

    with progress("entries counted") as counted:

        async def count(client: "Client") -> "tuple[Stats, float]":
            return await stats(client, counted), (await redis_clock(client)).now()

        told, now = with_redis(settings_of(config), config, count)
    write_json(told) if as_json else _write_stats(told, now)


def _write_stats(told: "Stats", now: float) -> None:
    """`now` in seconds since the epoch, by Redis' clock."""
    total = told.total
    reckoned = "" if total.measured == total.entries else f", reckoned from {total.measured:,} of them"
    entries, tokens = amount(total.entries, "entry", "entries"), amount(total.tokens, "token")
    per_token = "" if total.bytes_per_token is None else f", {total.bytes_per_token:.1f} bytes per token"
    typer.echo(f"{entries} ({total.stale:,} stale), {tokens}, {size(total.bytes)}{per_token}{reckoned}")
    if told.oldest is not None and told.newest is not None:
        typer.echo(f"the oldest is {span(now - told.oldest)} old, the newest {span(now - told.newest)}")
    typer.echo(f"in the making: {amount(told.claims, 'claim')}, {amount(told.flights, 'flight')}")
    for server in told.redis:
        bound = f"of {size(server['max_memory'])}, {server['policy']}" if server["max_memory"] else "without a bound"
        evicted = amount(server["evicted"] or 0, "key")
        typer.echo(f"redis {server['version']}: {size(server['memory'])} {bound}, {evicted} evicted")
    rows = [("tenant", "model", "entries", "stale", "tokens", "memory", "bytes per token")]
    for tenant, models in told.tenants.items():
        for model, group in models.items():
            per_token = "-" if group.bytes_per_token is None else f"{group.bytes_per_token:.1f}"
            counts = str(group.entries), str(group.stale), str(group.tokens), size(group.bytes)
            rows.append((tenant, model, *counts, per_token))
    if len(rows) > 1:
        typer.echo()
        write_table(rows)


@app.command()
def ls(
    config: Config = Path(DEFAULT_PATH),
    tenant: Tenant = None,
    model: Model = None,
    system: System = None,
    rag: Rag = None,
    document: Document = None,
    limit: Annotated[int, typer.Option(min=1, max=MAX_PAGE, help="How many.")] = 100,
    cursor: Annotated[str | None, typer.Option(help="Those after this key.")] = None,
    as_json: JsonLines = False,
) -> None:
    """List entries in the order of their keys."""
    from router.store.admin.listing import page

    scope = narrowed(tenant=tenant, model=model, system=system, rag=rag, document=document)
    found = with_redis(settings_of(config), config, lambda client: page(client, scope, limit, cursor))
    if as_json:
        for entry in found.entries:
            write_json(entry)
    elif found.entries:
        heads = ("age", "left", "tokens", "memory", "task", "engine", "key")
        write_table([heads, *[_row(entry) for entry in found.entries]])
    if found.cursor is not None:
        say(f"There are more: --cursor {found.cursor}")


def _row(entry: "Listed") -> tuple[str, ...]:
    left = "stale" if entry.stale else span(entry.ttl)
    tokens = "?" if entry.completion_tokens is None else str(entry.completion_tokens)
    return span(entry.age), left, tokens, size(entry.bytes), entry.task or "?", entry.engine or "?", entry.key


@app.command(name="show")
def show_command(
    key: Key,
    config: Config = Path(DEFAULT_PATH),
    as_fields: Annotated[
        bool, typer.Option("--fields", help="Every field as it stands, in place of the text.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the text of one entry and what it holds beside it, or what else stands at its key."""
    from router.store.admin.listing import show

    scope = narrowed(key=key)
    shown = with_redis(settings_of(config), config, lambda client: show(client, scope.key or ""))
    if shown is None:
        fail(f"there is no entry {key}")
    write_json(shown) if as_json else _write_shown(shown, as_fields=as_fields)


def _write_shown(shown: "Shown", *, as_fields: bool) -> None:
    """What is no entry is always written as it stands."""
    entry = shown.entry
    typer.echo(entry.key)
    if shown.problem is not None:
        typer.echo(f"!! {shown.problem}")
    gone = "never" if entry.gone_in is None else f"in {span(entry.gone_in)}"
    left = "stale" if entry.stale else f"{span(entry.ttl)} left"
    typer.echo(f"{span(entry.age)} old, {left}; Redis drops it {gone}; {size(entry.bytes)} of memory")
    if as_fields or shown.problem is not None:
        for name, value in shown.fields.items():
            plain = printable(value)
            typer.echo(f"\n{printable(name)}:\n{plain}" if len(plain) > 100 else f"{printable(name)}: {plain}")
        return
    described = dict(shown.fields)
    if shown.text is not None:
        typer.echo(f"\n{printable(shown.text)}\n")
        described["body"] = f"{len(shown.fields['body'].encode()):,} bytes"
    if shown.stream is not None:
        described["stream"] = _described(shown.stream)
    for name, value in described.items():
        typer.echo(f"{printable(name)}: {printable(value)}")


def _described(stream: "ShownStream") -> str:
    events = "no events" if stream.events is None else f"{stream.events:,} bytes of events"
    beside = "" if stream.lossless else "; the body is only for people to read"
    return f"{stream.bytes:,} bytes; gives {events}{beside}"


@app.command(name="top")
def top_command(
    config: Config = Path(DEFAULT_PATH),
    tenant: Tenant = None,
    limit: Annotated[int, typer.Option(min=1, max=MAX_PAGE, help="How many.")] = 10,
    as_json: JsonLines = False,
) -> None:
    """List the entries that were hit the most."""
    from router.store.admin.stats import top

    of = narrowed(tenant=tenant).tenant
    hits = with_redis(settings_of(config), config, lambda client: top(client, limit, of))
    if as_json:
        for hit in hits:
            write_json(hit)
    elif hits:
        rows = [(str(hit.hits), "gone" if hit.saved is None else str(hit.saved), hit.key) for hit in hits]
        write_table([("hits", "tokens saved", "key"), *rows])


@app.command(name="purge")
def purge_command(
    config: Config = Path(DEFAULT_PATH),
    key: Annotated[str | None, typer.Option(help="The entry at this key, as in X-Cache-Key.")] = None,
    tenant: Tenant = None,
    model: Model = None,
    system: System = None,
    rag: Rag = None,
    document: Document = None,
    everything: Annotated[bool, typer.Option("--all", help="All there is.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be forgotten.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Forget answers, in every router, and those that are being given now. What is named must hold, all of it."""
    from router.store.admin.purge import count, purge

    scope = narrowed(key=key, tenant=tenant, model=model, system=system, rag=rag, document=document)
    if scope.all != everything:
        fail("purge: name what to forget, or say --all and nothing else", WRONG_USE)
    settings = settings_of(config)
    asked = sys.stdin.isatty() and not yes
    if dry_run or asked:
        with progress("entries found") as found:
            matching = with_redis(settings, config, lambda client: count(client, scope, found))
        if dry_run:
            write_json({"entries": matching}) if as_json else typer.echo(
                f"{amount(matching, 'entry', 'entries')} would be forgotten"
            )
            return
        question = f"Forget {amount(matching, 'entry', 'entries')}, and what is in the making?"
        if not agrees(question):
            fail("nothing was forgotten")
    with progress("entries forgotten") as gone:
        purged = with_redis(settings, config, lambda client: purge(client, scope, gone))
    if as_json:
        write_json(purged)
    else:
        forgot = f"forgot {amount(purged.entries, 'entry', 'entries')} and {amount(purged.claims, 'claim')}"
        typer.echo(forgot + _replicated(purged.replicas))


def _replicated(replicas: "Replicas | None") -> str:
    if replicas is None:
        return "; it is not known which replicas have the record of it"
    if not replicas.connected:
        return ""
    return f"; {replicas.acknowledged} of {amount(replicas.connected, 'replica')} have the record of it"


@app.command()
def explain(
    file: Annotated[Path, typer.Argument(help="The request's body as JSON; - is standard input.")] = Path("-"),
    config: Config = Path(DEFAULT_PATH),
    tenant: Annotated[str, typer.Option(help="Whose request it is.")] = DEFAULT_TENANT,
    path: Annotated[str, typer.Option(help="Where it is sent to.")] = Endpoint.CHAT.value,
    as_json: Json = False,
) -> None:
    """Say whether a request would hit, and if not, in what it differs from the nearest entry of its tenant."""
    from router.flow.explain import Question

    settings = settings_of(config)
    body = _body(file, settings.router.max_body)
    told = with_redis(settings, config, lambda client: _explain(settings, client, Question(body, tenant, path)))
    write_json(told) if as_json else _write_explanation(told)


async def _explain(settings: Settings, client: "Client", question: "Question") -> "Explanation":
    from router.app import build_catalog, build_explainer, build_reader

    return await build_explainer(settings, build_reader(settings, build_catalog(settings)), client).explain(question)


def _body(file: Path, limit: int) -> msgspec.Raw:
    if str(file) == "-":
        if sys.stdin.isatty():
            say("reading the request's body from standard input; end with Ctrl-D")
        body = sys.stdin.buffer.read(limit + 1)
    else:
        try:
            with file.open("rb") as opened:
                body = opened.read(limit + 1)
        except OSError as error:
            fail(f"{file}: {error.strerror}", WRONG_USE)
    if len(body) > limit:
        fail(f"{file}: the body has more than {limit} bytes (router.max_body)", WRONG_USE)
    return msgspec.Raw(body)


def _write_explanation(told: "Explanation") -> None:
    reason = f" ({told.reason})" if told.reason else ""
    typer.echo(f"{told.result.value}{reason}: {told.why}")
    typer.echo(told.key)
    write_table([("part", "value", "made of"), *[(part.part, part.value, part.made_of) for part in told.parts]])
    typer.echo(f"task {told.task}, model {told.model}")
    if told.documents:
        typer.echo(f"documents: {', '.join(told.documents)}")
    if told.entry is not None:
        typer.echo(f"at the key: {told.state}, {span(told.entry.age)} old, made by {told.entry.engine or '?'}")
    near = told.nearest
    if near is not None and near.key is not None:
        typer.echo(f"nearest: {near.key}")
        for part, words in zip(near.differs, told.differs, strict=True):
            typer.echo(f"  differs in {part}: {words}")
    if near is not None:
        rest = "" if near.everything else "; there are more"
        typer.echo(f"{amount(near.looked_at, 'entry', 'entries')} of the tenant compared{rest}")
