"""The default configuration of a scenario: three engines, of two models, and a router."""

from tests.support.router_server import router_config
from tests.world.processes import WorldEngines, WorldRouter
from tests.world.scenario import World


async def default_router(world: World, **options: str) -> tuple[WorldRouter, WorldEngines]:
    """`options` are texts of the configuration, see `router_config`."""
    engines = await world.engines()
    return await world.router(router_config(world.redis.url, engines.as_config(), **options)), engines
