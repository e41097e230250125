"""The usage of tenants and API keys: from requests to Redis, the command, the admin API and the tenant's own page."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from router.core.api_keys import hash_key, key_id
from router.core.cache.redis_keys import savings_key, usage_key
from router.process.wiring.redis_link import ADMIN_REDIS_TIMEOUT
from router.shared.accounting import ledger, usage
from router.shared.accounting.daily_sums import days_until, decode_sums
from tests.support.cli_helpers import run_cli
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, router_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADMIN_KEY, ACME, ACME_CI, BETA = "admin-key-of-the-tests", "sk-acme-1", "sk-acme-2", "sk-beta-1"
ADMIN = {"authorization": f"Bearer {ADMIN_KEY}"}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def id_of(key: str) -> str:
    return key_id(hash_key(key.encode()))


def tables(limits: str = "") -> str:
    hashes = {key: f'"{hash_key(key.encode())}"' for key in (ACME, ACME_CI, BETA, ADMIN_KEY)}
    return (
        f'[auth]\nmode = "keys"\nadmin_keys = [{hashes[ADMIN_KEY]}]\n'
        f'[[tenant]]\nname = "acme"\nkeys = [{hashes[ACME]}, {hashes[ACME_CI]}]\n{limits}\n'
        f'[[tenant]]\nname = "beta"\nkeys = [{hashes[BETA]}]\n'
    )


@pytest.fixture
def by_key(redis_server: RedisServer, engines: EngineSet) -> str:
    limits = 'tokens_per_day = 5000\ngpu_seconds_per_month = 100\nrequests_per_minute = 60\nmodels = ["llama"]'
    return router_config(redis_server.url, engines.as_config(), rest=tables(limits))


async def test_requests_tokens_and_gpu_seconds_are_counted_by_key_when_the_router_has_stopped(
    by_key: str, redis: Any
) -> None:
    async with RouterServer(by_key) as router:
        first = await router.chat("The sea?", headers=bearer(ACME))
        assert (await router.chat("The sea?", headers=bearer(ACME_CI))).headers["x-cache"] == "HIT"
        assert (await router.chat("The sea?", headers=bearer(ACME))).headers["x-cache"] == "HIT"
        stream = await router.chat("The moon?", headers=bearer(ACME_CI), stream=True)
        assert (await router.chat("The sea?", headers=bearer("wrong"))).status_code == 401
        assert (await router.chat("The sea?", headers=bearer(ACME), model="nobody's")).status_code == 404
        gpu_seconds = (await router.metrics())['llm_gpu_seconds_total{kind="spent",model="llama",tenant="acme"}']
    assert (stream.status_code, stream.headers["x-cache"]) == (200, "MISS")
    reported = first.json()["usage"]
    day = days_until(float((await redis.time())[0]), 1)[0]
    found = decode_sums(await redis.hgetall(usage_key("acme", day)))
    mine, ci = found[id_of(ACME), "llama"], found[id_of(ACME_CI), "llama"]
    assert set(found) == {(id_of(ACME), "llama"), (id_of(ACME_CI), "llama")}
    assert (mine["requests"], mine["hits"], ci["requests"], ci["hits"]) == (2, 1, 2, 1)
    assert (mine["prompt_tokens"], mine["completion_tokens"]) == (
        reported["prompt_tokens"], reported["completion_tokens"]
    )  # fmt: skip
    assert mine["saved_tokens"] == ci["saved_tokens"] == reported["completion_tokens"], "of the key that had the hit"
    assert ci["completion_tokens"] > 0
    assert mine["gpu_seconds"] + ci["gpu_seconds"] == pytest.approx(gpu_seconds)
    assert 399 * 86400 < await redis.ttl(usage_key("acme", day)) <= 400 * 86400


async def test_a_generation_without_reported_usage_is_counted_as_an_estimate(
    make_router: MakeRouter, by_key: str, engines: EngineSet, redis: Any
) -> None:
    async with RouterServer(by_key) as router:
        for engine in (engines.chat, engines.code):
            await engine.set_faults({"fault": "error", "after": 3})
        answer = await router.chat("The sea?", headers=bearer(ACME), stream=True)
        assert "error" in answer.text
    day = days_until(float((await redis.time())[0]), 1)[0]
    found = decode_sums(await redis.hgetall(usage_key("acme", day)))[id_of(ACME), "llama"]
    assert found["estimated_tokens"] > 0
    assert "prompt_tokens" not in found


async def test_refused_requests_are_counted_by_reason_also_of_a_tenant_that_got_nothing_else(
    redis_server: RedisServer, engines: EngineSet, redis: Any, tmp_path: Path
) -> None:
    limits = "requests_per_minute = 1"
    text = router_config(redis_server.url, engines.as_config(), rest=tables(limits))
    async with RouterServer(text) as router:
        first = await router.chat("The sea?", headers=bearer(BETA))
        for status in (200, 429, 429):
            assert (await router.chat("The moon?", headers=bearer(ACME))).status_code == status
        assert (await router.chat("The sea?", headers=bearer(BETA), model="nobody's")).status_code == 404
    day = days_until(float((await redis.time())[0]), 1)[0]
    # As if another router had answered acme's first request, and lost its sums.
    await redis.delete(savings_key(day))
    for command, _ in ledger.add_commands(day, {("acme", "unknown", "refused"): 2, ("beta", "llama", "requests"): 1}):
        await redis.execute_command(*command)
    path = tmp_path / "roundhouse.toml"
    path.write_text(text)
    found = (await run_cli("usage", "--by", "tenant", "--json", "--config", path)).json()
    acme, beta = found["rows"]
    assert (acme["tenant"], acme["refused"], acme["refused_by"]) == ("acme", 2, {"requests_limit": 2})
    assert (first.status_code, beta["requests"], beta["refused"], beta["refused_by"]) == (200, 1, 0, {})
    assert (found["total"]["requests"], found["total"]["refused"]) == (2, 2)
    by_key = (await run_cli("usage", "--by", "key", "--tenant", "acme", "--config", path)).stdout.splitlines()
    assert (by_key[0].split()[-1], by_key[1].split()[0], by_key[1].split()[-1]) == ("refused", id_of(ACME), "2")
    savings = (await run_cli("cache", "savings", "--json", "--config", path)).json()
    assert {row["tenant"] for row in savings["rows"]} == {"beta"}


# -- reports ----------------------------------------------------------------------------------------------------------


async def fill(redis: Any) -> list[str]:
    """Usage of two tenants, today and yesterday, whose days it returns."""
    days = days_until(float((await redis.time())[0]), 2)
    for day, tenant, key, model, requests in (
        (days[0], "acme", "k1", "llama", 4), (days[0], "acme", "k2", "org/m", 6), (days[1], "acme", "k1", "llama", 1),
        (days[1], "beta", "k3", "llama", 5),
    ):  # fmt: skip
        sums: dict[usage.UsageAccount, float] = {
            (tenant, key, model, "requests"): requests, (tenant, key, model, "hits"): 1,
            (tenant, key, model, "completion_tokens"): 1000, (tenant, key, model, "gpu_seconds"): 1.25,
        }  # fmt: skip
        for command, _ in usage.add_commands(day, sums):
            await redis.execute_command(*command)
        for savings, _ in ledger.add_commands(day, {(tenant, model, "requests"): requests}):
            await redis.execute_command(*savings)
    return days


@pytest.fixture
def file(redis_server: RedisServer, tmp_path: Path) -> Path:
    path = tmp_path / "roundhouse.toml"
    path.write_text(router_config(redis_server.url, {"one": ("llama", "any", "http://127.0.0.1:1")}))
    return path


def requests_by(found: Any, *columns: str) -> dict[Any, int]:
    rows = {tuple(row[column] for column in columns): row["requests"] for row in found["rows"]}
    return {key[0] if len(key) == 1 else key: count for key, count in rows.items()}


async def test_the_command_shows_rows_by_day_tenant_key_or_model(redis: Any, file: Path) -> None:
    today, yesterday = await fill(redis)

    async def shown(*options: Any) -> Any:
        return (await run_cli("usage", *options, "--json", "--config", file)).json()

    assert requests_by(await shown(), "day") == {today: 10, yesterday: 6}
    assert requests_by(await shown("--by", "tenant"), "tenant") == {"acme": 11, "beta": 5}
    assert requests_by(await shown("--by", "model"), "model") == {"llama": 10, "org/m": 6}
    assert requests_by(await shown("--by", "key,day", "--tenant", "acme"), "day", "key") == {
        (today, "k1"): 4, (today, "k2"): 6, (yesterday, "k1"): 1,
    }  # fmt: skip
    assert requests_by(await shown("--key", "k1", "--by", "key"), "key") == {"k1": 5}
    assert requests_by(await shown("--days", 1, "--by", "tenant"), "tenant") == {"acme": 10}
    one = await shown("--from", yesterday, "--to", yesterday)
    assert (one["from"], one["to"]) == (yesterday, yesterday)
    assert (one["total"]["requests"], one["total"]["gpu_seconds"]) == (6, 2.5)
    assert set(one["rows"][0]) >= {"day", "requests", "saved_tokens"}
    assert "tenant" not in one["rows"][0], "only the columns that rows are divided by"


async def test_the_command_prints_a_table_with_a_total_and_refuses_what_it_does_not_understand(
    redis: Any, file: Path
) -> None:
    assert (await run_cli("usage", "--config", file)).stdout == "no usage is recorded\n"
    today, yesterday = await fill(redis)
    table = (await run_cli("usage", "--by", "day,tenant", "--config", file)).stdout.splitlines()
    assert [line.split() for line in table[1:]] == [
        [today, "acme", "10", "2", "0", "0", "2,000", "0", "0", "2.5", "0"],
        [yesterday, "acme", "1", "1", "0", "0", "1,000", "0", "0", "1.2", "0"],
        [yesterday, "beta", "5", "1", "0", "0", "1,000", "0", "0", "1.2", "0"],
        ["total", "16", "4", "0", "0", "4,000", "0", "0", "5.0", "0"],
    ]
    for options in (
        ["--by", "colour"], ["--from", "yesterday"], ["--days", 1, "--to", today], ["--days", 401], ["--tenant", "a:b"],
        ["--tenant", "\udcff"],
    ):  # fmt: skip
        refused = await run_cli("usage", *options, "--config", file)
        assert (refused.code, "Traceback" in refused.stderr) == (2, False), refused.stderr


async def test_the_admin_api_gives_the_same(make_router: MakeRouter, by_key: str, redis: Any) -> None:
    router = await make_router(by_key)
    today, _ = await fill(redis)
    assert (await router.http.get("/admin/usage")).status_code == 401
    assert (await router.http.get("/admin/usage", headers=bearer(ACME))).status_code == 401
    found = (await router.http.get("/admin/usage?by=tenant&days=2", headers=ADMIN)).json()
    assert requests_by(found, "tenant") == {"acme": 11, "beta": 5}
    assert found["to"] == today
    for query, param in (
        ("days=0", "days"), ("from=x", "from"), ("to=2026-13-01", "to"), ("by=", "by"), ("by=day,day", "by"),
        ("since=1", "since"),
    ):  # fmt: skip
        refused = await router.http.get(f"/admin/usage?{query}", headers=ADMIN)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_a_tenant_sees_its_own_usage_limits_and_what_is_left_of_its_budgets(
    make_router: MakeRouter, by_key: str, redis: Any
) -> None:
    router = await make_router(by_key)
    await fill(redis)
    answer = await router.chat("The sea?", headers=bearer(ACME))
    used = answer.json()["usage"]["total_tokens"]

    async def own() -> Any:
        found = (await router.http.get("/v1/usage?days=2&by=key", headers=bearer(ACME))).json()
        return found if found["budgets"][0]["used"] == used else None

    found = await eventually(own)
    assert (found["object"], found["tenant"]) == ("usage", "acme")
    # On a busy machine, the sums of the router may already have been added.
    assert requests_by(found, "key") | {id_of(ACME): 1} == {"k1": 5, "k2": 6, id_of(ACME): 1}
    assert found["limits"] == {"models": ["llama"], "requests_per_minute": 60}
    tokens, gpu_seconds = found["budgets"]
    assert (tokens["budget"], tokens["limit"], tokens["remaining"]) == ("tokens_per_day", 5000, 5000 - used)
    assert tokens["resets_at"].endswith("T00:00:00Z")
    spent = (await router.metrics())['llm_gpu_seconds_total{kind="spent",model="llama",tenant="acme"}']
    assert spent > 0
    assert gpu_seconds["remaining"] == pytest.approx(100 - spent, abs=0.002)
    other = (await router.http.get("/v1/usage?days=2&by=key", headers=bearer(BETA))).json()
    assert (requests_by(other, "key"), other["limits"], other["budgets"]) == ({"k3": 5}, {}, [])
    refused = await router.http.get("/v1/usage?tenant=beta", headers=bearer(ACME))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tenant")
    assert (await router.http.get("/v1/usage")).status_code == 401


async def test_without_redis_the_usage_is_not_available(
    own_redis: RedisServer, make_router: MakeRouter, engines: EngineSet
) -> None:
    await own_redis.start()
    router = await make_router(router_config(own_redis.url, engines.as_config(), rest=tables()))
    own_redis.kill()
    answer = await router.http.get("/v1/usage", headers=bearer(ACME))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "redis_down")


async def test_without_redis_an_administrator_is_told_at_once(
    own_redis: RedisServer, make_router: MakeRouter, engines: EngineSet
) -> None:
    await own_redis.start()
    router = await make_router(router_config(own_redis.url, engines.as_config(), rest=tables()))
    own_redis.freeze()

    async def is_known() -> bool:
        return bool((await router.http.get("/healthz")).json()["redis"] == "down")

    await eventually(is_known)
    async with asyncio.timeout(ADMIN_REDIS_TIMEOUT / 2):
        answer = await router.http.get("/admin/tenants", headers=ADMIN)
    own_redis.thaw()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "redis_down")


async def test_an_administrator_sees_each_tenant_with_its_keys_budgets_and_what_was_refused(
    make_router: MakeRouter, redis_server: RedisServer, engines: EngineSet, redis: Any
) -> None:
    limits = "tokens_per_day = 5000\nrequests_per_minute = 1"
    router = await make_router(router_config(redis_server.url, engines.as_config(), rest=tables(limits)))
    await fill(redis)
    request_id = (await router.chat("The sea?", headers=bearer(ACME))).headers["x-request-id"]
    assert (await router.chat("The sea?", headers=bearer(ACME_CI))).status_code == 429

    async def counted() -> Any:
        found = (await router.http.get("/admin/tenants?days=2", headers=ADMIN)).json()
        return found if found["tenants"][0]["refused"] else None

    found = await eventually(counted)
    acme, beta = found["tenants"]
    assert (acme["tenant"], acme["requests"], acme["refused_by"]) == ("acme", 12, {"requests_limit": 1})
    (budget,) = acme["budgets"]
    assert (budget["budget"], budget["limit"]) == ("tokens_per_day", 5000)
    assert 0 < budget["remaining"] < 5000
    refused = {key["key"]: key["refused"] for key in acme["keys"]}
    assert (refused[id_of(ACME_CI)], refused[id_of(ACME)], refused["k1"]) == (1, 0, 0)
    assert (beta["tenant"], beta["configured"], beta["budgets"]) == ("beta", True, [])
    assert {key["key"]: key["status"] for key in beta["keys"]} == {id_of(BETA): "active", "k3": "unknown"}
    of_key = (await router.http.get(f"/admin/requests?key={id_of(ACME)}", headers=ADMIN)).json()["requests"]
    assert [row["request_id"] for row in of_key] == [request_id]
    assert (await router.http.get("/admin/tenants?days=", headers=ADMIN)).status_code == 200
    wrong = await router.http.get("/admin/tenants?days=0", headers=ADMIN)
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "days")
    assert (await router.http.get("/admin/tenants", headers=bearer(ACME))).status_code == 401
