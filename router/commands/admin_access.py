"""Where a running router is, and the administrator's key for it."""

import getpass
import os
from pathlib import Path
from typing import Annotated, Final

import typer

from router.commands.console import EXIT_USAGE, fail, load_access_settings, print_err
from router.process.pid_file import pid_file_path, running_pid
from router.settings import DEFAULT_PATH, Settings
from router.settings.addresses import is_http_url
from router.settings.key_file import is_key

KEY_VARIABLE: Final = "ROUNDHOUSE_ADMIN_KEY"
_MAX_KEY_BYTES: Final = 4096
_DEFAULT_URL: Final = "http://127.0.0.1:8080"
_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}

UrlOption = Annotated[str | None, typer.Option(help="The router's URL; by default that of the configuration file.")]
KeyFileOption = Annotated[
    Path | None,
    typer.Option(
        help=f"A file with an admin key; by default the variable {KEY_VARIABLE}, the key that `up` made, or a prompt."
    ),
]


def router_url(url: str | None, config: Path) -> str:
    if url is None:
        if not config.exists() and config == Path(DEFAULT_PATH):
            return _DEFAULT_URL
        router = load_access_settings(config).router
        host = _ANY_ADDRESS.get(router.host, router.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{router.port}"
    if not is_http_url(url):
        fail("--url: expected http://HOST:PORT or https://HOST:PORT, without a user and password", EXIT_USAGE)
    return url.rstrip("/")


def admin_key(key_file: Path | None, url: str | None, config: Path) -> str | None:
    """That of the option, else of the variable, else of the file that `roundhouse up` makes; None if there is none.

    The last one is only for the running router of the configuration: with `url`, another one would get its key.
    """
    if key_file is None and (value := os.environ.get(KEY_VARIABLE)):
        return checked_key(value, KEY_VARIABLE)
    if key_file is None:
        # Whoever is asked by `--url` may be anybody.
        return _key_of_this_machine(config) if url is None else None
    return read_key_file(key_file)


def read_key_file(path: Path) -> str:
    """The key in the file of the option --key-file. Exits if there is none."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_KEY_BYTES + 1)
    except OSError as error:
        fail(f"--key-file: {path}: {error.strerror}", EXIT_USAGE)
    return checked_key(raw.decode("utf-8", "surrogateescape"), "--key-file")


def _key_of_this_machine(config: Path) -> str | None:
    has_file = config.exists() or config != Path(DEFAULT_PATH)
    settings = load_access_settings(config) if has_file else Settings()
    if settings.auth.admin_keys and settings.auth.admin_key_file is None:
        return None  # the key that `up` made before counts no more
    try:
        # While our router does not run, any program of this machine can listen at its port, and would get the key.
        if running_pid(pid_file_path(settings)) is None:
            return None
        key = settings.admin_key_file.read_bytes().strip()
    except OSError as error:
        if settings.auth.admin_key_file is not None or not isinstance(error, FileNotFoundError):
            print_err(f"roundhouse: without an admin key: {settings.admin_key_file}: {error.strerror}")
        return None
    return key.decode("ascii") if is_key(key) else None


def prompted_key() -> str:
    return checked_key(getpass.getpass("Admin key: "), "the key")


def checked_key(text: str, place: str) -> str:
    """A key that can stand in a header; no message repeats it."""
    key = text.strip()
    if not key or len(key) > _MAX_KEY_BYTES or not key.isascii() or not key.isprintable() or " " in key:
        fail(f"{place}: expected one key of at most {_MAX_KEY_BYTES} ASCII characters", EXIT_USAGE)
    return key
