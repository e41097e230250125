"""Tenants: keys, a trusted proxy's header, or the default tenant; tenants share nothing."""

import asyncio
import logging
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from router.api.access.auth import hash_key
from router.core.cache.redis_keys import entry_prefix
from tests.support.purge_log import keys_except_log
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, ScriptedRouter, chat_body, router_config
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame
from tests.support.streaming_client import open_stream
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ACME, ACME_NEW, BETA = "sk-acme-secret", "sk-acme-newer", "sk-beta-secret"
ANSWER = (ROLE_FRAME + chat_frame(content="one "), chat_frame(content="two", finish="stop") + DONE_FRAME)
TENANTS = f"""
[[tenant]]
name = "acme"
keys = ["{hash_key(ACME.encode())}", "{hash_key(ACME_NEW.encode())}"]

[[tenant]]
name = "beta"
keys = ["{hash_key(BETA.encode())}"]
"""


@pytest.fixture
def by_key(redis_server: RedisServer, engines: EngineSet) -> str:
    return router_config(redis_server.url, engines.as_config(), rest=f'[auth]\nmode = "keys"\n{TENANTS}')


@pytest.fixture
def by_header(by_key: str) -> str:
    return by_key.replace('mode = "keys"', 'mode = "header"')


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_two_tenants_with_the_same_body_have_two_entries_and_two_generations(
    make_router: MakeRouter, by_key: str, engines: EngineSet, redis: Any
) -> None:
    router = await make_router(by_key)
    before = (await engines.chat.stats())["received"]
    first = [await router.chat("The sea?", headers=bearer(key)) for key in (ACME, BETA)]
    again = [await router.chat("The sea?", headers=bearer(key)) for key in (ACME, BETA, ACME_NEW)]
    assert [answer.headers["x-cache"] for answer in first + again] == ["MISS", "MISS", "HIT", "HIT", "HIT"]
    keys = [answer.headers["x-cache-key"] for answer in first]
    assert [key.split(":")[2] for key in keys] == ["acme", "beta"]
    assert (await engines.chat.stats())["received"] == before + 2

    async def both() -> bool:
        stored = await keys_except_log(redis)  # after five seconds, with sums of the requests
        return {key for key in stored if key.startswith(tuple(map(entry_prefix, ("acme", "beta"))))} == set(keys)

    await eventually(both)


@pytest.mark.parametrize(
    "headers",
    [
        {}, {"authorization": ""}, {"authorization": "Bearer"}, bearer("wrong"), bearer(hash_key(ACME.encode())),
        {"authorization": f"Basic {ACME}"}, {"authorization": ACME}, {"x-tenant-id": "acme"},
        {"x-tenant-id": "acme", **bearer("wrong")},
    ],
)  # fmt: skip
async def test_without_a_known_key_nothing_is_looked_up(
    make_router: MakeRouter, by_key: str, engines: EngineSet, redis: Any, headers: dict[str, str]
) -> None:
    router = await make_router(by_key)
    await router.chat("The sea?", headers=bearer(ACME))
    lookups, received = await _lookups(redis), (await engines.chat.stats())["received"]
    for answer in (
        await router.chat("The sea?", headers=headers),
        await router.http.get("/v1/models", headers=headers),
    ):
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["x-request-id"]
        assert "x-cache" not in answer.headers
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
    assert (await engines.chat.stats())["received"] == received
    assert await _lookups(redis) == lookups


async def _lookups(redis: Any) -> int:
    """The number of lookup commands that Redis has executed."""
    stats = await redis.info("commandstats")
    return int(stats.get("cmdstat_hmget", {}).get("calls", 0))


async def test_an_invalid_identity_is_reported_before_an_invalid_body(make_router: MakeRouter, by_key: str) -> None:
    router = await make_router(by_key)
    assert (await router.post("/v1/chat/completions", b"{")).status_code == 401


async def test_two_different_keys_are_refused(make_router: MakeRouter, by_key: str) -> None:
    router = await make_router(by_key)
    both = [("authorization", f"Bearer {ACME}"), ("authorization", f"Bearer {BETA}")]
    answer = await router.http.post("/v1/chat/completions", json=chat_body("x"), headers=both)
    assert answer.status_code == 401


async def test_a_tenant_with_a_key_cannot_name_another(make_router: MakeRouter, by_key: str) -> None:
    router = await make_router(by_key)
    answer = await router.chat("The sea?", headers={**bearer(BETA), "x-tenant-id": "acme"})
    assert answer.headers["x-cache-key"].startswith("rh:1:beta:")


async def test_a_trusted_proxy_names_the_tenant(make_router: MakeRouter, by_header: str) -> None:
    router = await make_router(by_header)
    for tenant in ("acme", "beta"):
        answer = await router.chat("The sea?", headers={"x-tenant-id": tenant})
        assert answer.headers["x-cache"] == "MISS"
        assert answer.headers["x-cache-key"].startswith(f"rh:1:{tenant}:")


@pytest.mark.parametrize("name", ["", "default", "gamma", "ACME", "acme:llama", "acme*"])
async def test_an_unknown_tenant_is_refused(make_router: MakeRouter, by_header: str, name: str) -> None:
    router = await make_router(by_header)
    answer = await router.chat("The sea?", headers={"x-tenant-id": name, **bearer(ACME)})
    assert answer.status_code == 401


async def test_without_authentication_every_client_is_the_default_tenant(router: RouterServer) -> None:
    for headers in ({}, bearer(ACME), {"x-tenant-id": "acme"}):
        answer = await router.chat("The sea?", headers=headers)
        assert answer.headers["x-cache-key"].startswith("rh:1:default:")


async def test_no_key_is_ever_written_anywhere(
    make_router: MakeRouter, by_key: str, engines: EngineSet, redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    router = await make_router(by_key)
    with caplog.at_level(logging.DEBUG):
        answers = [await router.chat("The sea?", headers=bearer(key)) for key in (ACME, "sk-unknown-secret", ACME)]
    assert [answer.status_code for answer in answers] == [200, 401, 200]
    stored = [await redis.hgetall(key) for key in await keys_except_log(redis)]
    seen = [caplog.text, str(stored), str(await redis.keys("*")), str([(a.text, a.headers) for a in answers])]
    seen += [(await router.http.get(page)).text for page in ("/metrics", "/healthz")]
    seen += [str(await engine.stats()) for engine in engines]
    assert "tenant=acme" in caplog.text
    for secret in (ACME, hash_key(ACME.encode()).removeprefix("sha256:"), "sk-unknown-secret"):
        assert secret not in "".join(seen)


# -- settings of a tenant ---------------------------------------------------------------------------------------------

OF_ITS_OWN = f"""
[[tenant]]
name = "acme"
keys = ["{hash_key(ACME.encode())}"]
ttl = "100s"
store = "deterministic"

[[tenant]]
name = "beta"
keys = ["{hash_key(BETA.encode())}"]
"""


@pytest.fixture
def of_its_own(by_key: str) -> str:
    return by_key.replace(TENANTS, OF_ITS_OWN)


async def test_a_tenants_time_to_live_is_its_own(make_router: MakeRouter, of_its_own: str, redis: Any) -> None:
    router = await make_router(of_its_own)
    for key, least, most in ((ACME, 0, 100), (BETA, 86_000, 86_400)):
        answer = await router.chat("The sea?", headers=bearer(key), temperature=0)
        entry = answer.headers["x-cache-key"]
        assert least < float(await eventually(partial(redis.hget, entry, "ttl"))) <= most
        assert await redis.ttl(entry) <= most + 3600, "and for an hour more for stale_if_error"
        hit = await router.chat("The sea?", headers=bearer(key), temperature=0)
        assert hit.headers["x-cache"] == "HIT"
        assert least < int(hit.headers["cache-status"].partition("ttl=")[2].partition(";")[0]) <= most


async def test_a_client_shortens_its_tenants_time_to_live_and_not_that_of_others(
    make_router: MakeRouter, of_its_own: str, redis: Any
) -> None:
    router = await make_router(of_its_own)
    for requested, kept in (("50", 50.0), ("5000", 100.0)):
        headers = {**bearer(ACME), "x-cache-ttl": requested}
        entry = (await router.chat(requested, headers=headers, temperature=0)).headers["x-cache-key"]
        assert float(await eventually(partial(redis.hget, entry, "ttl"))) == kept


async def test_the_store_policy_of_a_tenant_is_its_own(make_router: MakeRouter, of_its_own: str) -> None:
    router = await make_router(of_its_own)
    for key, fields, seen in (
        (ACME, {}, ["BYPASS", "BYPASS"]),
        (ACME, {"temperature": 0}, ["MISS", "HIT"]),
        (BETA, {}, ["MISS", "HIT"]),
    ):
        answers = [await router.chat("The sea?", headers=bearer(key), **fields) for _ in range(2)]
        assert [answer.headers["x-cache"] for answer in answers] == seen
        assert [answer.headers.get("x-cache-reason") for answer in answers if seen[0] == "BYPASS"] in (
            [], ["policy", "policy"],
        )  # fmt: skip


async def test_a_tenant_can_store_more_than_the_others(make_router: MakeRouter, by_key: str) -> None:
    config = by_key.replace('name = "beta"', 'name = "beta"\nstore = "all"').replace(
        "[cache]\n", '[cache]\nstore = "deterministic"\n'
    )
    router = await make_router(config)
    for key, seen in ((ACME, ["BYPASS", "BYPASS"]), (BETA, ["MISS", "HIT"])):
        answers = [await router.chat("The sea?", headers=bearer(key)) for _ in range(2)]
        assert [answer.headers["x-cache"] for answer in answers] == seen


async def test_a_tenants_flight_is_joined_by_no_other_tenant(
    redis_server: RedisServer, make_router: MakeRouter, scripted: ScriptedRouter
) -> None:
    """Neither in the same process nor in another one; nor do others receive its result."""
    rest = f'[auth]\nmode = "keys"\n{TENANTS}'
    first, engine = await scripted(*ANSWER, paced=True, rest=rest)
    table = {"scripted": ("llama", "any", engine.url)}
    routers = [first, await make_router(router_config(redis_server.url, table, rest=rest))]
    async with AsyncExitStack() as clients:
        opened = [
            clients.enter_async_context(open_stream(router, "The sea?", headers=bearer(key)))
            for router in routers for key in (ACME, BETA) for _ in range(2)
        ]  # fmt: skip
        answers = await asyncio.gather(*opened)  # with their first events, while the engine holds back the last ones
        for _ in ("acme", "beta"):
            engine.chunk_permits.release()
        await asyncio.gather(*(answer.read_to_end() for answer in answers))
    assert {answer.text for answer in answers} == {"one two"}
    assert len(engine.bodies) == 2
    for tenant in ("acme", "beta"):
        theirs = [a.headers["x-cache"] for a in answers if a.headers["x-cache-key"].startswith(f"rh:1:{tenant}:")]
        assert sorted(theirs) == ["COALESCED"] * 3 + ["MISS"]


async def test_a_log_line_has_the_id_of_the_key_and_never_the_key(
    make_router: MakeRouter, by_key: str, caplog: pytest.LogCaptureFixture
) -> None:
    router = await make_router(by_key)
    with caplog.at_level(logging.INFO):
        for key in (ACME, ACME_NEW, "wrong"):
            await router.chat("The sea?", headers=bearer(key))
    lines = [dict(word.split("=", 1) for word in text.split(" ")) for text in caplog.messages if "request=" in text]
    ids = [hash_key(key.encode()).removeprefix("sha256:")[:8] for key in (ACME, ACME_NEW)]
    assert [line.get("key_id") for line in lines] == [*ids, None]
    assert not any(secret in caplog.text for secret in (ACME, ACME_NEW, "wrong"))
