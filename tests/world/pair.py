"""Two routers with one engine in a world; see tests/support/router_pair.py."""

from tests.support.router_pair import ANSWER, RouterPair, pair_config
from tests.world.scenario import World


async def router_pair(world: World) -> RouterPair:
    proxy = await world.proxy()
    engine = await world.scripted_engine(*ANSWER, paced=True)
    leader = await world.router(pair_config(proxy.url, engine))
    return RouterPair(leader, await world.router(pair_config(world.redis.url, engine)), engine, proxy)
