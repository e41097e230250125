"""Finds a port for a new engine."""

import socket
from collections.abc import Collection
from typing import Final

from engines.process import StartError

_TRIED: Final = 1000


def free_port(host: str, first: int, taken: Collection[int]) -> int:
    """The first free port from `first` on that is not in `taken`: near the configured one, as firewalls expect.

    The system's choice would be among the ports of outgoing connections, one of which could have it when the engine is
    restarted. Raises StartError.
    """
    for port in range(first, min(first + _TRIED, 1 << 16)):
        if port in taken:
            continue
        try:
            with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
                return port
        except OSError:
            continue
    raise StartError(f"no port of {host} from {first} on is free")
