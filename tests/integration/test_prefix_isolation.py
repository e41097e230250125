"""A tenant cannot learn another's prompts from an engine's prefix cache; tenants of a group share it."""

from typing import Any

import httpx
import pytest

from router.api.access.auth import hash_key
from router.core.endpoints.requests.cache_salt import derive_salts
from tests.support.redis_process import RedisServer
from tests.support.router_server import LLAMA, MakeRouter, RouterServer, router_config
from tests.support.simulated_engine import SimulatedEngine

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEYS = {name: f"sk-{name}" for name in ("acme", "beta", "gamma", "delta")}
SECRET = "The merger with Globex is to be announced on the third of March at noon, at nine dollars a share. " * 3
PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]


def text(redis_url: str, engine: SimulatedEngine) -> str:
    """acme and beta are alone, gamma and delta share."""
    groups = {"gamma": "family", "delta": "family"}
    tenants = "".join(
        f'[[tenant]]\nname = "{name}"\nkeys = ["{hash_key(key.encode())}"]\n'
        + (f'group = "{groups[name]}"\n' if name in groups else "")
        for name, key in KEYS.items()
    )
    return router_config(redis_url, {"llama": ("llama", "any", engine.url)}, rest=f'[auth]\nmode = "keys"\n\n{tenants}')


async def ask(router: RouterServer, path: str, tenant: str, prompt: str = SECRET, **fields: Any) -> httpx.Response:
    chat = {
        "/v1/completions": {"prompt": prompt},
        "/v1/responses": {"input": prompt},
    }.get(path, {"messages": [{"role": "user", "content": prompt}]})
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    body = {"model": "llama", limit: 8, **chat, **fields}
    answer = await router.post(path, body, authorization=f"Bearer {KEYS[tenant]}", cache_control="no-store")
    assert answer.status_code == 200, answer.text
    return answer


async def cached(engine: SimulatedEngine, *requests: Any) -> list[float]:
    """How many tokens of each prompt the engine has found in its prefix cache."""
    cached_tokens = []
    for request in requests:
        before = await engine.metric("prefix_cache_hits_total")
        await request
        cached_tokens.append(await engine.metric("prefix_cache_hits_total") - before)
    return cached_tokens


@pytest.mark.parametrize("path", PATHS)
async def test_the_guess_of_another_tenant_finds_no_cached_token(
    redis_server: RedisServer, make_router: MakeRouter, path: str
) -> None:
    async with SimulatedEngine(LLAMA, max_model_len=4096) as engine:
        router = await make_router(text(redis_server.url, engine))
        first, own, guess, forged = await cached(
            engine,
            ask(router, path, "acme"),
            ask(router, path, "acme", SECRET + "And then?"),
            ask(router, path, "beta"),
            ask(router, path, "beta", cache_salt=derive_salts({"acme": None, "beta": None})["acme"]),
        )
        assert (first, guess, forged) == (0, 0, 0)
        assert own >= 32, "a tenant hits its own prefixes"
        await cached(engine, ask(router, path, "acme", cache_salt="mine"))
        mine, other = await cached(
            engine, ask(router, path, "acme", cache_salt="mine"), ask(router, path, "beta", cache_salt="mine")
        )
        assert mine >= 32
        assert 0 <= other <= mine, "beta has no prefixes with that salt"
        assert other == 0


async def test_tenants_of_a_group_share_prefixes(redis_server: RedisServer, make_router: MakeRouter) -> None:
    async with SimulatedEngine(LLAMA, max_model_len=4096) as engine:
        router = await make_router(text(redis_server.url, engine))
        path = PATHS[0]
        first, shared, apart = await cached(
            engine, ask(router, path, "gamma"), ask(router, path, "delta"), ask(router, path, "acme")
        )
        assert (first, apart) == (0, 0)
        assert shared >= 32


async def test_the_salt_reaches_no_client(redis_server: RedisServer, make_router: MakeRouter) -> None:
    async with SimulatedEngine(LLAMA, max_model_len=4096) as engine:
        router = await make_router(text(redis_server.url, engine))
        salt = derive_salts({"acme": None, "beta": None})["acme"]
        for path in PATHS:
            answer = await ask(router, path, "acme", stream=True)
            assert salt not in answer.text
        bodies = [request["body"] for request in (await engine.stats())["requests"]]
        assert [salt in body for body in bodies] == [True] * len(PATHS)


async def test_a_router_with_one_tenant_sends_no_salt(redis_server: RedisServer, make_router: MakeRouter) -> None:
    async with SimulatedEngine(LLAMA, max_model_len=4096) as engine:
        router = await make_router(router_config(redis_server.url, {"llama": ("llama", "any", engine.url)}))
        await router.chat("The sea?")
        assert "cache_salt" not in (await engine.stats())["requests"][-1]["body"]
