"""The identifier of a launcher of engines in Redis.

A launcher that was killed has not withdrawn its engines. The next one with the same state folder has the same name, so
it can announce them at once: a lock of the folder ensures that the former one has ended.
"""

import contextlib
import secrets
import socket
from pathlib import Path
from typing import Final

FILE_NAME: Final = "launcher-id"

_MAX_LENGTH: Final = 64


def launcher_id(state: Path) -> str:
    """The host's name, since the folder may be a copy, and random characters, which are stored in the folder."""
    path = state / FILE_NAME
    identity = _read(path)
    if identity is None:
        identity = secrets.token_hex(8)
        with contextlib.suppress(OSError):  # the next launcher has another name, and waits for the end of the leases
            path.write_text(f"{identity}\n")
    return f"{socket.gethostname()}:{identity}"


def _read(path: Path) -> str | None:
    try:
        identity = path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return identity if identity.isalnum() and identity.isascii() and len(identity) <= _MAX_LENGTH else None
