"""Where the router of the batches is, and the tenant's key for it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from router.commands.admin_access import UrlOption, checked_key, read_key_file, router_url
from router.commands.console import ConfigOption
from router.settings import DEFAULT_PATH
from router.settings.addresses import base_url

if TYPE_CHECKING:  # imported by the commands that need it, since it would slow all others down
    from router.commands.batch.api_client import ApiClient

KEY_VARIABLE: Final = "ROUNDHOUSE_API_KEY"

_KeyFileOption = Annotated[
    Path | None, typer.Option(help=f"A file with a key of the tenant; by default the variable {KEY_VARIABLE}.")
]


class RouterOptions(NamedTuple):
    config: ConfigOption = Path(DEFAULT_PATH)
    url: UrlOption = None
    key_file: _KeyFileOption = None

    def client(self) -> "ApiClient":
        from router.commands.batch.api_client import ApiClient

        return ApiClient(base_url(router_url(self.url, self.config)), self._key())

    def _key(self) -> str | None:
        if self.key_file is not None:
            return read_key_file(self.key_file)
        value = os.environ.get(KEY_VARIABLE)
        return checked_key(value, KEY_VARIABLE) if value else None

    def arguments(self) -> list[str]:
        """As they were given, for a command that is to reach the same router."""
        found = [] if self.config == Path(DEFAULT_PATH) else ["--config", str(self.config)]
        found += ["--url", self.url] if self.url is not None else []
        return found + (["--key-file", str(self.key_file)] if self.key_file is not None else [])
