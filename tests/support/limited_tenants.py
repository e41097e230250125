"""A router with a tenant that has limits, and one that has none."""

from collections.abc import Callable
from typing import Any

import httpx

from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, RouterServer, router_config

ACME = {"x-tenant-id": "acme"}
FREE = {"x-tenant-id": "free"}

LimitedConfig = Callable[..., str]
"""The default configuration with these limits for acme, and optionally another Redis."""


def tenant_tables(limits: str) -> str:
    return f'[auth]\nmode = "header"\n[[tenant]]\nname = "acme"\n{limits}\n[[tenant]]\nname = "free"'


def limited_config(redis_server: RedisServer, engines: EngineSet) -> LimitedConfig:
    def config(limits: str, redis: RedisServer = redis_server) -> str:
        return router_config(redis.url, engines.as_config(), rest=tenant_tables(limits))

    return config


async def ask(router: RouterServer, prompt: str = "The sea?", **fields: Any) -> httpx.Response:
    """A request of acme."""
    return await router.chat(prompt, headers=ACME, **fields)
