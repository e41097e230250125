"""`roundhouse keys`: creates API keys and their hashes, lists them, and revokes those that live in Redis."""

import getpass
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from router.commands.console import (
    EXIT_FAILED,
    EXIT_USAGE,
    ConfigOption,
    JsonLinesOption,
    JsonOption,
    fail,
    format_duration,
    load_settings,
    output_problem,
    print_err,
    write_json,
    write_table,
)
from router.commands.local_key import new_key
from router.commands.redis import record_change, with_redis
from router.commands.suggestions import command_group
from router.commands.termination import cancelled_by_signals
from router.core.api_keys import KeyRecord, hash_key, key_id
from router.core.plural import pluralize
from router.errors import ApiError
from router.settings import DEFAULT_PATH, Settings

if TYPE_CHECKING:  # imported by the commands, since it would slow all others down
    from router.store.admin.key_confirmation import Confirmation
    from router.store.admin.keys import KeyRow, NewKey, RevokedKey
    from router.store.admin.scan import RedisClient

MAX_KEY_BYTES: Final = 4096
"""Bytes; a longer key would risk the limits on request headers."""

app = command_group("Create, list and revoke API keys.")


@app.command()
def new(
    tenant: Annotated[str | None, typer.Option(help="Store the key's hash in Redis, for this tenant.")] = None,
    name: Annotated[str | None, typer.Option(help="The key's name, with --tenant.")] = None,
    expires: Annotated[str | None, typer.Option(help="After this time, such as 90d, with --tenant.")] = None,
    config: ConfigOption = Path(DEFAULT_PATH),
    as_json: JsonOption = False,
) -> None:
    """Make a key.

    With --tenant, it is valid at once at all routers, and only it is printed. Without, the first line is the key, which
    is stored nowhere; the second is its hash, for the configuration.
    """
    if tenant is not None:
        _create_in_redis(config, tenant, name, expires, as_json=as_json)
        return
    if name is not None or expires is not None:
        fail("--name and --expires: only possible with --tenant", EXIT_USAGE)
    key = new_key()
    hash_ = hash_key(key.encode())
    fields = {"key": key, "hash": hash_, "key_id": key_id(hash_)}
    problem = output_problem(lambda: write_json(fields) if as_json else typer.echo(f"{key}\n{hash_}"))
    if problem is not None:
        fail(f"{problem}: the key is not shown, and stored nowhere")
    if not as_json and sys.stdout.isatty():
        print_err(
            "The first line is the key. Give it to its owner; it is not stored. The second is its hash, for `keys` of a"
        )
        print_err("[[tenant]], or `admin_keys` of [auth].")


def _create_in_redis(config: Path, tenant: str, name: str | None, expires: str | None, *, as_json: bool) -> None:
    from router.shared.audit.changes import key_created
    from router.store.admin.keys import create_key, parse_expiry

    if name is None:
        fail("--name: is required with --tenant", EXIT_USAGE)
    settings = load_settings(config)
    try:
        expires_in = parse_expiry(expires)
    except ApiError as error:
        fail(f"--expires: {error.message}", EXIT_USAGE)

    made: list[str] = []

    async def on_written(record: KeyRecord) -> None:
        made.append(record.id)
        await record_change(settings, key_created(record))

    async def create(client: "RedisClient") -> "NewKey":
        with cancelled_by_signals():
            return await create_key(
                client, settings, tenant=tenant, name=name, expires_in=expires_in, on_written=on_written
            )

    try:
        created = with_redis(settings, config, create)
    except (typer.Exit, KeyboardInterrupt, SystemExit):  # while the routers were to confirm it
        for id_ in made:
            print_err(f"roundhouse: {_lost(id_, config)}")
        raise
    problem = output_problem(lambda: write_json(created) if as_json else typer.echo(created.key))
    if problem is not None:
        fail(f"{problem}: {_lost(created.key_id, config)}")
    if not as_json:
        end = "never expires" if expires_in is None else f"expires in {format_duration(expires_in)}"
        print_err(f"The key {created.key_id} ({created.name}) of {created.tenant} {end}. Only its hash is stored.")
    if created.routers.unconfirmed:
        print_err(_unconfirmed(created.routers))


def _lost(id_: str, config: Path) -> str:
    undo = shlex.join(["roundhouse", "keys", "revoke", id_, "--config", str(config)])
    return f"the key {id_} is made, and cannot be shown again; revoke it: {undo}"


@app.command()
def create(
    tenant: Annotated[str | None, typer.Option(help="The tenant of the key.")] = None,
    name: Annotated[str | None, typer.Option(help="The key's name, with --tenant.")] = None,
) -> None:
    """Show the `new` command that makes a key. Makes none itself."""
    options = ["--tenant", tenant, "--name", name or "NAME"] if tenant is not None else []
    fail(f"no key was made; to make one: {shlex.join(['roundhouse', 'keys', 'new', *options])}", EXIT_USAGE)


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(metavar="ID|NAME", help="The key's id or name; see `roundhouse keys list`.")],
    tenant: Annotated[str | None, typer.Option(help="The key's tenant, if several have one of this name.")] = None,
    config: ConfigOption = Path(DEFAULT_PATH),
    as_json: JsonOption = False,
) -> None:
    """Revoke a key that lives in Redis; every router refuses it at once."""
    from router.shared.audit.changes import key_revoked
    from router.store.admin.keys import revoke_key

    settings = load_settings(config)

    async def revoke_at_redis(client: "RedisClient") -> "RevokedKey":
        return await revoke_key(
            client, settings, key, tenant, lambda record: record_change(settings, key_revoked(record))
        )

    revoked = with_redis(settings, config, revoke_at_redis)
    if as_json:
        write_json(revoked)
    else:
        confirmed = pluralize(revoked.routers.confirmed, "router process", "router processes")
        typer.echo(f"revoked {revoked.key_id} ({revoked.name}) of {revoked.tenant}; {confirmed} confirmed it")
    if revoked.routers.unconfirmed:
        fail(_unconfirmed(revoked.routers), EXIT_FAILED)


def _unconfirmed(routers: "Confirmation") -> str:
    return f"not confirmed by {', '.join(routers.unconfirmed)}: applied there as soon as the process reaches Redis"


@app.command(name="hash")
def hash_(
    key: Annotated[
        str | None,
        typer.Argument(
            help="The key. If omitted, it is read from a prompt or standard input, hidden from other users."
        ),
    ] = None,
) -> None:
    """Print a key's hash, for the configuration."""
    if key is not None:
        raw_key = key.encode("utf-8", "surrogateescape")
    elif sys.stdin.isatty():
        raw_key = getpass.getpass("Key: ").encode("utf-8", "surrogateescape")
    else:
        raw_key = sys.stdin.buffer.read(MAX_KEY_BYTES + 1)
    raw_key = raw_key.strip()
    if not raw_key or len(raw_key) > MAX_KEY_BYTES or len(raw_key.splitlines()) > 1:
        fail(f"expected one key of at most {MAX_KEY_BYTES} bytes", EXIT_USAGE)
    typer.echo(hash_key(raw_key))


@app.command(name="list")
def list_(config: ConfigOption = Path(DEFAULT_PATH), as_json: JsonLinesOption = False) -> None:
    """List the keys of the configuration and of Redis: their ids, which log lines have as `key_id`, and last use."""
    rows = _fetch_rows(load_settings(config), config)
    if as_json:
        for row in rows:
            write_json(row)
        return
    now = time.time()
    titles = ("key id", "role", "tenant", "name", "in", "status", "created", "expires", "last used")
    write_table([titles, *[_cells(row, now) for row in rows]])


def _fetch_rows(settings: Settings, config: Path) -> "list[KeyRow]":
    """Those of the configuration alone while Redis does not answer."""
    from router.store.admin.keys import configured_keys, list_keys

    try:
        return with_redis(settings, config, lambda client: list_keys(client, settings))
    except typer.Exit:  # the reason is printed
        print_err("The keys in Redis, and when keys were last used, are unknown.")
        return configured_keys(settings)


def _cells(row: "KeyRow", now: float) -> tuple[str, ...]:
    expires = _day(row.expires) if row.expires is not None else "never"
    used = f"{format_duration(now - row.last_used)} ago" if row.last_used is not None else "-"
    created = _day(row.created) if row.created is not None else "-"
    return row.key_id, row.role, row.tenant or "-", row.name or "-", row.source, row.status, created, expires, used


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(at))
