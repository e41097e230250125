"""The request to `roundhouse up` to restart one of its engines; engines/control.py serves it."""

import socket
from pathlib import Path
from typing import Final

import msgspec

_MAX_REPLY: Final = 64 << 10  # bytes
_STOPPED: Final = "`roundhouse up` was stopped"


class _Reply(msgspec.Struct):
    error: str | None


def is_up_running(control_socket: Path) -> bool:
    """Whether a `roundhouse up` with this socket runs on this machine."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(control_socket))
        except OSError:
            return False
    return True


def request_restart(control_socket: Path, engine: str, timeout: float) -> str | None:
    """Returns when the engine is ready again: None, or why it is not.

    Raises TimeoutError after `timeout` seconds without a reply; the restart then goes on.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(str(control_socket))
            connection.sendall(msgspec.json.encode({"restart": engine}) + b"\n")
            reply = b""
            while not reply.endswith(b"\n") and len(reply) < _MAX_REPLY:
                data = connection.recv(4096)
                if not data:
                    return _STOPPED
                reply += data
        except TimeoutError:
            raise
        except OSError:
            return _STOPPED
    return msgspec.json.decode(reply, type=_Reply).error
