"""Tells a service manager that the router is ready: systemd's Type=notify, or any other that sets NOTIFY_SOCKET.

Source: sd_notify(3).
"""

import logging
import os
import socket
from collections.abc import Mapping
from typing import Final

log = logging.getLogger("roundhouse.server")

SOCKET_VARIABLE: Final = "NOTIFY_SOCKET"


def notify_ready(environment: Mapping[str, str] = os.environ) -> None:
    """Does nothing without the variable. A message that cannot be sent is logged: the manager then gives up waiting."""
    path = environment.get(SOCKET_VARIABLE)
    if not path:
        return
    # A leading @ is an abstract socket, which no file system shows.
    address = f"\0{path[1:]}" if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.connect(address)
            sender.send(b"READY=1")
    except OSError as error:
        log.warning("the service manager cannot be told that the router is ready: %s: %s", path, error.strerror)
