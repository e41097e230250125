"""`roundhouse keys`: creates API keys, their hashes for the configuration, and lists the ids that stand in logs."""

import getpass
import secrets
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from router.api.auth import hash_key, key_id
from router.commands.console import (
    EXIT_USAGE,
    ConfigOption,
    JsonOption,
    fail,
    load_settings,
    print_err,
    write_json,
    write_table,
)
from router.settings import DEFAULT_PATH

MAX_KEY_BYTES: Final = 4096
"""Bytes; a longer key would risk the limits on request headers."""

app = typer.Typer(help="Create API keys and their hashes for the configuration.", no_args_is_help=True)


@app.command()
def new(as_json: JsonOption = False) -> None:
    """Make a key: the first line is the key, which is stored nowhere; the second is its hash, for the configuration."""
    key = "rh-" + secrets.token_urlsafe(32)
    if as_json:
        write_json({"key": key, "hash": hash_key(key.encode()), "key_id": key_id(hash_key(key.encode()))})
        return
    typer.echo(key)
    typer.echo(hash_key(key.encode()))
    if sys.stdout.isatty():
        print_err(
            "The first line is the key. Give it to its owner; it is not stored. The second is its hash, for `keys` of a"
        )
        print_err("[[tenant]], or `admin_keys` of [auth].")


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
def list_(config: ConfigOption = Path(DEFAULT_PATH), as_json: JsonOption = False) -> None:
    """List the ids of the configured keys, which log lines have as `key_id`: the first digits of their hashes."""
    settings = load_settings(config)
    rows = [(key_id(key), "admin", "") for key in settings.auth.admin_keys]
    rows += [(key_id(key), "tenant", tenant.name) for tenant in settings.tenant for key in tenant.keys]
    if as_json:
        write_json([{"key_id": id_, "role": role, "tenant": tenant or None} for id_, role, tenant in rows])
    else:
        write_table([("key id", "role", "tenant"), *rows])
