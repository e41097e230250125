"""API keys in Redis: created and revoked at once at every router, without a reload and without a command a request."""

import logging
from typing import Any

import pytest

from router.core.api_keys import KeyRecord, encode_record, hash_key
from router.core.cache.redis_keys import KEYS_RECORDS_KEY
from tests.support.key_routers import (
    ADMIN_KEY,
    CONFIGURED_KEY,
    KEYS_CONFIG,
    create,
    listed,
    revoke,
    statuses,
    use,
)
from tests.support.router_server import router_config
from tests.support.waiting import eventually
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario


async def configure(world: World, rest: str = KEYS_CONFIG) -> str:
    engine = await world.engine()
    return router_config(world.redis.url, {"one": ("llama", "any", engine.url)}, rest=rest)


async def start(world: World) -> WorldRouter:
    return await world.router(await configure(world))


async def start_pair(world: World) -> tuple[WorldRouter, WorldRouter]:
    text = await configure(world)
    return await world.router(text), await world.router(text)


@scenario
async def test_a_key_is_valid_at_every_router_once_it_is_created_and_at_none_once_it_is_revoked(world: World) -> None:
    pair = await start_pair(world)
    for number in range(20):  # any request that a router let in between would be seen
        made = await create(pair[0].http, f"ci-{number}")
        assert made["routers"] == {"confirmed": 2, "unconfirmed": []}
        assert await statuses(made["key"], *pair) == [200, 200]
        revoked = (await revoke(pair[1].http, made["key_id"])).raise_for_status().json()
        assert revoked["routers"] == {"confirmed": 2, "unconfirmed": []}
        assert await statuses(made["key"], *pair) == [401, 401]


@scenario
async def test_redis_has_only_the_hash_of_a_key_and_no_log_line_has_more_than_its_id(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    router = await start(world)
    with caplog.at_level(logging.DEBUG):
        made = await create(router.http)
        answer = await use(router.http, made["key"])
        await revoke(router.http, "ci")
    contents = await world.redis.client.hgetall(KEYS_RECORDS_KEY)
    metrics = (await router.http.get("/metrics")).text
    for seen in (str(contents), caplog.text, metrics, str(answer.headers)):
        assert made["key"] not in seen
        assert made["key"][3:] not in seen
    assert f"key_id={made['key_id']}" in caplog.text
    assert f"created the key {made['key_id']} (ci) of the tenant acme" in caplog.text


@scenario
async def test_a_request_costs_no_command_for_its_key(world: World) -> None:
    router = await start(world)
    made = await create(router.http)
    await use(router.http, made["key"])
    reads: list[list[bytes]] = []
    world.redis.model.observe = lambda _, words: reads.append(words) if KEYS_RECORDS_KEY.encode() in words else None
    for _ in range(30):
        assert (await use(router.http, made["key"])).headers["x-cache"] == "HIT"
    assert len(reads) <= 2  # of the periodic comparison of versions


@scenario
async def test_keys_are_listed_with_their_use_and_their_state(world: World) -> None:
    pair = await start_pair(world)
    made = await create(pair[0].http, expires="90d")
    other = await create(pair[0].http, "laptop", "beta")
    await revoke(pair[0].http, other["key_id"])
    await use(pair[1].http, made["key"])
    await use(pair[1].http, CONFIGURED_KEY)
    for router in pair:
        router.application._runtime.services.records.stored_keys.flush_used()

    async def all_uses_are_known() -> bool:  # those of both routers
        rows = (await listed(pair[0].http)).values()
        return [row["name"] for row in rows if row["last_used"] is None] == ["laptop"]

    await eventually(all_uses_are_known)
    rows = await listed(pair[0].http)
    shown = {
        (row["role"], row["tenant"], row["name"], row["source"], row["status"], row["last_used"] is not None)
        for row in rows.values()
    }
    assert shown == {
        ("admin", None, None, "configuration", "active", True),
        ("tenant", "acme", None, "configuration", "active", True),
        ("tenant", "acme", "ci", "redis", "active", True),
        ("tenant", "beta", "laptop", "redis", "revoked", False),
    }
    assert rows[made["key_id"]]["expires"] - rows[made["key_id"]]["created"] == pytest.approx(90 * 86400)
    assert ADMIN_KEY not in str(rows)


@scenario
async def test_the_key_of_a_tenant_that_leaves_the_configuration_is_refused(world: World) -> None:
    keys_config = await configure(world)
    router = await world.router(keys_config)
    made = await create(router.http, tenant="beta")
    assert await statuses(made["key"], router) == [200]
    without_beta = keys_config.replace('[[tenant]]\nname = "beta"\n', "")
    await router.reload(without_beta)
    assert await statuses(made["key"], router) == [401]
    assert (await listed(router.http))[made["key_id"]]["status"] == "no tenant"
    await router.reload(keys_config)
    assert await statuses(made["key"], router) == [200]


@scenario
async def test_a_reload_keeps_the_keys_and_leaves_no_process_to_wait_for(world: World) -> None:
    keys_config = await configure(world)
    router = await world.router(keys_config)
    made = await create(router.http)
    for number in range(3):
        await router.reload(keys_config + f"requests_per_minute = {1000 + number}\n")
        assert await statuses(made["key"], router) == [200]
    await eventually(lambda: not router.application._retiring)
    assert (await revoke(router.http, "ci")).json()["routers"] == {"confirmed": 1, "unconfirmed": []}
    assert await statuses(made["key"], router) == [401]


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"tenant": "gamma"}, 400, "no_tenant"),
        ({"name": ""}, 400, "invalid_name"),
        ({"name": "x" * 65}, 400, "invalid_name"),
        ({"name": "deadbeef"}, 400, "invalid_name"),
        ({"name": "a\nb"}, 400, "invalid_name"),
        ({"expires": "59s"}, 400, "invalid_expiry"),
        ({"expires": "3651d"}, 400, "invalid_expiry"),
        ({"expires": "soon"}, 400, "invalid_expiry"),
        ({"expires": 5}, 400, "invalid_key_request"),
        ({"role": "admin"}, 400, "invalid_key_request"),
        ({"name": "taken"}, 409, "key_exists"),
    ],
)
@scenario
async def test_a_key_that_cannot_be_made_is_an_error_with_a_code(
    world: World, fields: dict[str, Any], status: int, code: str
) -> None:
    router = await start(world)
    await create(router.http, "taken")
    body = {"tenant": "acme", "name": "ci", **fields}
    answer = await router.http.post("/admin/keys", json=body, headers={"authorization": f"Bearer {ADMIN_KEY}"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


@scenario
async def test_only_an_administrator_creates_lists_and_revokes(world: World) -> None:
    router = await start(world)
    made = await create(router.http)
    headers = {"authorization": f"Bearer {made['key']}"}
    answers = [
        await router.http.get("/admin/keys", headers=headers),
        await router.http.post("/admin/keys", json={"tenant": "acme", "name": "x"}, headers=headers),
        await router.http.delete(f"/admin/keys/{made['key_id']}", headers=headers),
    ]
    assert [answer.status_code for answer in answers] == [401, 401, 401]
    assert await statuses(made["key"], router) == [200]


@scenario
async def test_a_key_that_cannot_be_revoked_is_an_error_that_says_why(world: World) -> None:
    router = await start(world)
    for tenant in ("acme", "beta"):
        await create(router.http, "ci", tenant)
    configured = next(row["key_id"] for row in (await listed(router.http)).values() if row["role"] == "tenant")
    for id_or_name, status, code in (
        ("ci", 409, "ambiguous_key"), ("none", 404, "no_such_key"), (configured, 409, "key_is_configured"),
    ):  # fmt: skip
        answer = await revoke(router.http, id_or_name)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    first = (await revoke(router.http, "ci", "?tenant=beta")).raise_for_status().json()
    again = (await revoke(router.http, first["key_id"])).raise_for_status().json()
    assert again["revoked"] == first["revoked"]
    last = (await revoke(router.http, "ci")).raise_for_status().json()
    assert last["tenant"] == "acme"
    by_name = (await revoke(router.http, "ci")).raise_for_status().json()
    assert (by_name["key_id"], by_name["revoked"]) == (last["key_id"], last["revoked"]), "it may be repeated by name"


@scenario
async def test_a_key_that_is_in_the_configuration_too_is_not_called_revoked(world: World) -> None:
    keys_config = await configure(world)
    router = await world.router(keys_config)
    record = KeyRecord(hash=hash_key(CONFIGURED_KEY.encode()), tenant="acme", name="moved", created=1)
    await world.redis.client.hset(KEYS_RECORDS_KEY, record.id, encode_record(record))
    for id_or_name in (record.id, "moved"):
        answer = await revoke(router.http, id_or_name)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "key_is_configured")
    assert await statuses(CONFIGURED_KEY, router) == [200]
    text = keys_config.replace(record.hash, hash_key(b"another"))
    await router.reload(text)
    assert await statuses(CONFIGURED_KEY, router) == [200], "by the record in Redis"
    assert (await revoke(router.http, "moved")).status_code == 200
    assert await statuses(CONFIGURED_KEY, router) == [401]


@scenario
async def test_a_name_may_be_used_again_once_its_key_is_revoked(world: World) -> None:
    router = await start(world)
    old = await create(router.http)
    await revoke(router.http, "ci")
    new = await create(router.http)
    assert await statuses(old["key"], router) + await statuses(new["key"], router) == [401, 200]


@scenario
async def test_a_router_without_a_mode_refuses_all_requests_while_redis_has_keys(world: World) -> None:
    world.expected_errors.append("auth.mode is not set")
    config = await configure(world, rest="")
    open_router, router = await world.router(config), await world.router(config + KEYS_CONFIG)
    assert (await open_router.chat("The sea?")).status_code == 200
    made = await create(router.http)
    assert made["routers"]["confirmed"] == 1

    async def is_closed() -> bool:
        return (await open_router.chat("The sea?")).status_code == 503

    await eventually(is_closed)
    answer = await use(open_router.http, made["key"])
    assert answer.json()["error"]["code"] == "auth_mode_unset"
    assert "auth.mode is not set" in open_router.application.engine_count().closed
    ready, health = await open_router.http.get("/readyz"), await open_router.http.get("/healthz")
    assert (ready.status_code, "auth.mode is not set" in ready.text) == (503, True)
    assert (health.status_code, health.json()["status"]) == (503, "unhealthy")
    assert "auth.mode is not set" in health.json()["reason"]
    said_open = await world.router(config + '\n[auth]\nmode = "open"\n')
    assert (await said_open.chat("The sea?")).status_code == 200
