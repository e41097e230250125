"""Routers whose tenants' keys live in Redis, and the requests that tests of keys make."""

from typing import Any, Final

import httpx

from router.api.access.auth import hash_key
from tests.support.router_server import RouterClient, chat_body

ADMIN_KEY: Final = "sk-keys-admin"
CONFIGURED_KEY: Final = "sk-acme-configured"
KEYS_CONFIG: Final = f"""
[auth]
mode = "keys"
admin_keys = ["{hash_key(ADMIN_KEY.encode())}"]

[[tenant]]
name = "acme"
keys = ["{hash_key(CONFIGURED_KEY.encode())}"]

[[tenant]]
name = "beta"
"""
_ADMIN: Final = {"authorization": f"Bearer {ADMIN_KEY}"}


async def create(http: httpx.AsyncClient, name: str = "ci", tenant: str = "acme", **fields: Any) -> dict[str, Any]:
    """The response to the creation of a key, over HTTP."""
    body = {"tenant": tenant, "name": name, **fields}
    return dict((await http.post("/admin/keys", json=body, headers=_ADMIN)).raise_for_status().json())


async def revoke(http: httpx.AsyncClient, id_or_name: str, query: str = "") -> httpx.Response:
    return await http.delete(f"/admin/keys/{id_or_name}{query}", headers=_ADMIN)


async def listed(http: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
    """The keys by their ids."""
    rows = (await http.get("/admin/keys", headers=_ADMIN)).raise_for_status().json()["keys"]
    return {row["key_id"]: row for row in rows}


async def use(http: httpx.AsyncClient, key: str, prompt: str = "The sea?") -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return await http.post("/v1/chat/completions", json=chat_body(prompt, max_tokens=2), headers=headers)


async def statuses(key: str, *routers: RouterClient) -> list[int]:
    """Those of one request to each router."""
    return [(await use(router.http, key)).status_code for router in routers]
