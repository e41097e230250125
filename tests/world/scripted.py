"""A router of a scenario whose only engine sends the bytes of a test."""

from typing import Any

from tests.support.router_server import router_config
from tests.support.scripted_engine import ScriptedEngine
from tests.world.processes import WorldRouter
from tests.world.scenario import World


async def scripted_router(
    world: World, *pieces: bytes, rest: str = "", cache: str = "", router: str = "", **options: Any
) -> tuple[WorldRouter, ScriptedEngine]:
    """`rest` is appended to the configuration; `options` are those of the engine."""
    engine = await world.scripted_engine(*pieces, **options)
    table = {"scripted": ("llama", "any", engine.url)}
    return await world.router(router_config(world.redis.url, table, rest=rest, cache=cache, router=router)), engine
