"""`roundhouse dashboard`: a link that signs in to the dashboard once."""

from pathlib import Path

import msgspec
import typer

from router.commands.admin_access import KeyFileOption, UrlOption, router_url
from router.commands.ask_router import ask_router
from router.commands.console import ConfigOption, JsonOption, format_duration, print_err, write_json
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
    link = ask_router(
        "/admin/sign-in-links", SignInLink, "sign-in link", url=url, key_file=key_file, config=config, question=b""
    )
    address = router_url(url, config)
    if as_json:
        write_json({"url": address + link.path, "expires_in": link.expires_in})
        return
    typer.echo(address + link.path)
    print_err(f"It works once, within {format_duration(link.expires_in)}.")
