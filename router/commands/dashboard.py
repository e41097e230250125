"""`roundhouse dashboard`: a link that signs in to the dashboard once."""

import asyncio
import sys
from pathlib import Path

import msgspec
import typer

from router.commands.admin_access import (
    KEY_VARIABLE,
    KeyFileOption,
    UrlOption,
    admin_key,
    prompted_key,
    router_url,
)
from router.commands.console import ConfigOption, JsonOption, fail, format_duration, print_err, write_json
from router.settings import DEFAULT_PATH


class SignInLink(msgspec.Struct, frozen=True):
    """As the router sends it: `path` goes after its URL; `expires_in` seconds."""

    path: str
    expires_in: int


def dashboard(
    config: ConfigOption = Path(DEFAULT_PATH),
    url: UrlOption = None,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print a link that signs in to the dashboard, once and within five minutes."""
    from router.commands.admin_client import KeyRefusedError, RouterError

    address, key = router_url(url, config), admin_key(key_file, url, config)
    if key is None and sys.stdin.isatty():
        key = prompted_key()
    try:
        link = asyncio.run(_make_link(address, key))
    except KeyRefusedError as error:
        fail(f"{error} Set {KEY_VARIABLE} or --key-file.")
    except RouterError as error:
        fail(str(error))
    if as_json:
        write_json({"url": address + link.path, "expires_in": link.expires_in})
        return
    typer.echo(address + link.path)
    print_err(f"It works once, within {format_duration(link.expires_in)}.")


async def _make_link(address: str, key: str | None) -> SignInLink:
    """Raises RouterError."""
    from router.commands.admin_client import AdminClient

    client = AdminClient(address, key, "sign-in link")
    try:
        return await client.ask("/admin/sign-in-links", SignInLink, b"")
    finally:
        await client.aclose()
