"""Who changes something without an admin key: a person at a command line."""

import os
import pwd
import socket


def command_line_actor() -> str:
    """Who runs this process."""
    user = user_name(os.getuid())
    # Who is root by sudo is somebody in particular; this is no proof of it.
    caller = os.environ.get("SUDO_USER")
    return _at_this_host(f"{caller} as {user}" if caller else user)


def peer_actor(connection: socket.socket) -> str:
    """Who runs the process at the other end of a Unix socket, as the kernel says; see SO_PEERCRED in unix(7)."""
    if not hasattr(socket, "SO_PEERCRED"):
        return _at_this_host(user_name(os.getuid()))  # only that user may connect to our sockets
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)  # pid, uid and gid, 4 bytes each
    return _at_this_host(user_name(int.from_bytes(credentials[4:8], "little")))


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # in a container, a user may have no name
        return f"uid {uid}"


def _at_this_host(who: str) -> str:
    return f"command line: {who}@{socket.gethostname()}"
