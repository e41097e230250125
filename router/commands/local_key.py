"""The admin key that `roundhouse up` makes, so that a first look at the dashboard needs no edit of a file."""

import ipaddress
import os
import secrets
import tempfile
from pathlib import Path

from router.commands.console import fail
from router.settings import Settings


def new_key() -> str:
    return f"rh-{secrets.token_urlsafe(32)}"


def uses_local_key(settings: Settings) -> bool:
    """Only a router that no other machine reaches, and whose configuration says nothing of admin keys."""
    return not settings.auth.admin_keys and settings.auth.admin_key_file is None and _is_loopback(settings.router.host)


def make_local_key(settings: Settings) -> None:
    """Makes the file with the key if there is to be one and there is none. Exits if others can read it."""
    if not uses_local_key(settings):
        return
    path = settings.admin_key_file
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write(path, f"{new_key()}\n")
        status = path.lstat()
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    # A key that others know would give them what the loopback address keeps from other machines: the whole router.
    if status.st_mode & 0o077 or status.st_uid != os.geteuid():
        fail(f"{path}: other users can read or have made this admin key; remove the file, and `up` makes another")


def _write(path: Path, text: str) -> None:
    """At once or not at all, with the mode 0600."""
    number, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}~")  # has the mode 0600
    try:
        with os.fdopen(number, "w", encoding="ascii") as file:
            file.write(text)
        os.replace(unfinished, path)  # noqa: PTH105 - the name is no Path
    except OSError:
        Path(unfinished).unlink()
        raise


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
