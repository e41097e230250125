"""The admin key that `roundhouse up` makes, so that a first look at the dashboard needs no edit of a file."""

import contextlib
import errno
import ipaddress
import os
import secrets
import stat
import tempfile
from pathlib import Path

from router.commands.console import fail
from router.process.pid_file import pid_file_path, running_pid
from router.settings import Settings
from router.settings.key_file import MAX_KEY_BYTES, is_key


def new_key() -> str:
    return f"rh-{secrets.token_urlsafe(32)}"


def uses_local_key(settings: Settings) -> bool:
    """Only a router that no other machine reaches, and whose configuration says nothing of admin keys."""
    return not settings.auth.admin_keys and settings.auth.admin_key_file is None and _is_loopback(settings.router.host)


def make_local_key(settings: Settings) -> None:
    """Makes the file with the key if there is to be one and there is none. Exits if it cannot be used."""
    if not uses_local_key(settings):
        return
    path = settings.admin_key_file
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # A router that runs has read the key of its file: another key would be refused.
        if not os.path.lexists(path) and running_pid(pid_file_path(settings)) is None:
            _write(path, f"{new_key()}\n")
        problem = _problem(path)
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    if problem is not None:
        fail(f"{path}: {problem}; remove the file, and `up` makes another")


def _problem(path: Path) -> str | None:
    """Why a file is no admin key, in words; None if it is one, or if a router that runs has lost its file."""
    try:
        # Not blocking: a FIFO has no reader.
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except PermissionError:
        return "another user has made this admin key"
    except OSError as error:
        return "a symbolic link is no admin key" if error.errno == errno.ELOOP else str(error.strerror)
    with os.fdopen(file, "rb") as opened:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            return "this is no regular file"
        # A key that others know would give them what the loopback address keeps from other machines: the whole router.
        if status.st_mode & 0o077 or status.st_uid != os.geteuid():
            return "other users can read or have made this admin key"
        return None if is_key(opened.read(MAX_KEY_BYTES + 1).strip()) else "there is no key in it"


def _write(path: Path, text: str) -> None:
    """At once or not at all, with the mode 0600; the key of another `up` that was first stays."""
    number, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}~")  # has the mode 0600
    try:
        with os.fdopen(number, "w", encoding="ascii") as file:
            file.write(text)
        with contextlib.suppress(FileExistsError):
            os.link(unfinished, path)
    finally:
        Path(unfinished).unlink()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
