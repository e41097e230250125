"""A router with a tenant that has limits, and one that has none."""

from typing import Any

import httpx

from tests.support.router_server import RouterClient

ACME = {"x-tenant-id": "acme"}
FREE = {"x-tenant-id": "free"}


def tenant_tables(limits: str) -> str:
    """The configuration of both, with these limits for acme."""
    return f'[auth]\nmode = "header"\n[[tenant]]\nname = "acme"\n{limits}\n[[tenant]]\nname = "free"'


async def ask(router: RouterClient, prompt: str = "The sea?", **fields: Any) -> httpx.Response:
    """A request of acme."""
    return await router.chat(prompt, headers=ACME, **fields)
