"""The engines of a configuration and those announced in Redis, as commands reach them without a router."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from router.commands.redis import with_redis
from router.settings import Settings

if TYPE_CHECKING:  # imported by the commands that need them, since they would slow all others down
    from router.upstream.engine import Engine


def with_announced(settings: Settings, config: Path) -> tuple[Settings, set[str]]:
    """The settings with the announced engines, and the names of the drained engines."""
    from router.shared.engines.announcements import decode_fleet, read_held_command
    from router.shared.engines.drains import decode_drains, read_drains_command
    from router.store.admin.scan import execute_commands
    from router.upstream.announced_engines import with_fleet

    drains, announced = with_redis(
        settings, config, lambda client: execute_commands(client, [read_drains_command(), read_held_command()])
    )
    drained = {name for name, state in decode_drains(drains or {}).items() if state.drained}
    return with_fleet(settings, decode_fleet(announced)), drained


def engine_names(settings: Settings) -> list[str]:
    from router.upstream.configured_catalog import build_catalog

    return list(build_catalog(settings).engines)


async def probe_engines(settings: Settings, is_selected: Callable[[str], bool]) -> "list[Engine]":
    from router.net.client.transport import HTTPTransport
    from router.upstream.catalog import Catalog
    from router.upstream.client import EngineClient
    from router.upstream.configured_catalog import build_catalog
    from router.upstream.probe import EngineProbe

    engines = [engine for engine in build_catalog(settings).engines.values() if is_selected(engine.name)]
    client = EngineClient(HTTPTransport(), connect_timeout=settings.timeouts.connect)
    try:
        await EngineProbe(Catalog([], engines), client).check()
    finally:
        await client.aclose()
    return engines
