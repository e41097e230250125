"""`roundhouse top`: the routers, engines and latest requests of a deployment, live in a terminal."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from router.commands.admin_access import (
    KEY_VARIABLE,
    KeyFileOption,
    UrlOption,
    admin_key,
    prompted_key,
    router_url,
)
from router.commands.console import ConfigOption, JsonOption, fail, write_json
from router.settings import DEFAULT_PATH


def top(
    config: ConfigOption = Path(DEFAULT_PATH),
    url: UrlOption = None,
    key_file: KeyFileOption = None,
    interval: Annotated[float, typer.Option(min=0.5, max=3600, help="Seconds between two readings.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit, as without a terminal.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show routers, engines, traffic and the latest requests, live, over HTTP."""
    from router.commands.top import session  # imported here, since it would slow the other commands down

    address, key = router_url(url, config), admin_key(key_file, url, config)
    live = sys.stdout.isatty() and not once and not as_json
    try:
        snapshot = asyncio.run(session.read_once(address, key))
    except session.KeyRefusedError as error:
        if not sys.stdin.isatty():
            fail(f"{error} Set {KEY_VARIABLE} or --key-file.")
        key, snapshot = prompted_key(), None
    except session.RouterError as error:
        if not live:
            fail(str(error))
        snapshot = None  # the view says it, and tries again
    if snapshot is None and not live:
        try:
            snapshot = asyncio.run(session.read_once(address, key))
        except session.RouterError as error:
            fail(str(error))
    if live:
        raise typer.Exit(asyncio.run(session.watch(address, key, interval)))
    assert snapshot is not None
    if as_json:
        write_json(snapshot)
    else:
        session.print_snapshot(address, snapshot)
