"""What a router process sees of the engines, read from Redis."""

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from router.shared.status.status_documents import EngineRow

if TYPE_CHECKING:
    from router.store.admin.scan import RedisClient

_FIRST_SNAPSHOTS: Final = 1.2
"""Seconds after which every process has seen that someone watches, and has published: it looks once a second."""

_POLL_INTERVAL: Final = 0.1


class RouterView(msgspec.Struct, frozen=True):
    """`process`: its host and process id. `engines`: by name."""

    process: str = ""
    engines: Mapping[str, EngineRow] = {}


async def read_router_view(client: "RedisClient") -> RouterView:
    """That of the process which has run for the longest time; an empty one if there is none, or Redis refuses."""
    from router.net.redis.errors import RedisBackendError
    from router.shared.status import router_snapshots
    from router.store.admin.scan import execute_commands, read_redis_clock

    deadline = time.monotonic() + _FIRST_SNAPSHOTS
    try:
        now = (await read_redis_clock(client)).now()
        await execute_commands(client, [router_snapshots.watch_command()])
        while True:
            (reply,) = await execute_commands(client, [router_snapshots.read_command()])
            snapshots = router_snapshots.live_snapshots(router_snapshots.decode_snapshots(reply), now)
            if snapshots or time.monotonic() > deadline:
                break
            await asyncio.sleep(_POLL_INTERVAL)
    except RedisBackendError:  # the engines are listed nevertheless
        return RouterView()
    oldest = min(snapshots, key=lambda each: (each.router.started_at, each.router.id), default=None)
    if oldest is None:
        return RouterView()
    rows = {engine.name: engine for engine in oldest.engines}
    return RouterView(f"{oldest.router.host}:{oldest.router.pid}", rows)
