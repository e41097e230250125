"""GPU seconds, energy and the savings ledger, from requests to Redis, the command and the admin API."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from router.api.access.auth import hash_key
from router.core.cache.redis_keys import savings_key
from router.shared.accounting.daily_sums import days_until, decode_sums
from router.shared.accounting.ledger import add_commands
from router.shared.engines.announcements import AnnouncedEngine, write_command
from tests.support.cli_helpers import run_cli
from tests.support.redis_process import RedisServer
from tests.support.router_server import LLAMA, EngineSet, MakeRouter, RouterServer, router_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADMIN_KEY = "admin-key-of-the-tests"
LABELS = 'kind="{}",model="llama",tenant="default"'


def gpu_seconds(kind: str) -> str:
    return f"llm_gpu_seconds_total{{{LABELS.format(kind)}}}"


def joules(kind: str) -> str:
    return f"llm_energy_joules_total{{{LABELS.format(kind)}}}"


async def today(redis: Any) -> list[str]:
    """Today by Redis' clock, and yesterday."""
    return days_until(float((await redis.time())[0]), 2)


async def ledger(redis: Any) -> dict[str, float]:
    """The sums of the default tenant at llama; those of two days if midnight passes during the test."""
    sums: dict[str, float] = {}
    for day in await today(redis):
        for kind, amount in decode_sums(await redis.hgetall(savings_key(day))).get(("default", "llama"), {}).items():
            sums[kind] = sums.get(kind, 0) + amount
    return sums


@pytest.mark.parametrize("stream", [False, True])
async def test_a_hit_saves_the_seconds_that_its_generation_took(
    router: RouterServer, redis: Any, engines: EngineSet, stream: bool
) -> None:
    await engines.chat.set_faults({"fault": "ttft", "ms": 200})
    missed = (await router.chat("The sea?", stream=stream)).headers
    assert missed["x-cache"] == "MISS"
    metrics = await router.metrics()
    spent = metrics[gpu_seconds("spent")]
    took = int(await eventually(lambda: redis.hget(missed["x-cache-key"], "generation_ms"))) / 1000
    assert 0.2 <= took <= spent + 0.001 < 10
    assert gpu_seconds("saved") not in metrics
    for _ in range(3):
        assert (await router.chat("The sea?", stream=stream)).headers["x-cache"] == "HIT"
    metrics = await router.metrics()
    assert metrics[gpu_seconds("spent")] == spent
    assert metrics[gpu_seconds("saved")] == pytest.approx(3 * took)
    assert joules("spent") not in metrics, "the engine's power is unknown"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_joins_a_generation_saves_its_seconds_also_from_another_process(
    make_router: MakeRouter, config: str, engines: EngineSet, stream: bool
) -> None:
    first, second = await make_router(config), await make_router(config)
    await engines.chat.set_faults({"fault": "ttft", "ms": 400})
    body = {"model": "llama", "messages": [{"role": "user", "content": "The sea?"}], "stream": stream}
    before = (await engines.chat.stats())["received"]
    async with first.http.stream("POST", "/v1/chat/completions", json=body) as leader:
        await engines.chat.stats(received=before + 1) if not stream else None
        answer = await second.chat("The sea?", stream=stream)
        await leader.aread()
    assert answer.headers["x-cache"] in ("COALESCED", "HIT")
    spent = (await first.metrics())[gpu_seconds("spent")]
    metrics = await second.metrics()
    assert gpu_seconds("spent") not in metrics, "the leader's process counts it"
    # Both are read from the clock, one after the other, and the saved ones in milliseconds.
    assert 0.4 <= metrics[gpu_seconds("saved")] <= spent + 0.001


async def test_a_failed_attempt_at_another_engine_is_not_part_of_the_seconds(
    router: RouterServer, engines: EngineSet
) -> None:
    await engines.chat.set_faults({"fault": "status", "code": 500, "times": 1}, {"fault": "ttft", "ms": 1})
    assert (await router.chat("The sea?")).status_code == 200
    assert (await router.chat("The sea?")).headers["x-cache"] == "HIT"
    metrics = await router.metrics()
    assert sum(value for name, value in metrics.items() if name.startswith("llm_retries_total")) >= 1
    assert metrics[gpu_seconds("saved")] <= metrics[gpu_seconds("spent")] + 0.01


async def test_energy_is_counted_at_an_engine_whose_launcher_reports_its_power(
    router: RouterServer, redis: Any, engines: EngineSet
) -> None:
    engine = AnnouncedEngine(
        name="llama-chat", model="llama", task="chat", url=engines.chat.url, served_model=LLAMA, power_watts=300.0
    )  # fmt: skip
    await redis.execute_command(*write_command("test", [engine]))
    catalog = router.application._runtime.catalog
    await eventually(lambda: catalog.engines["llama-chat"].announced is not None)
    await engines.chat.set_faults({"fault": "ttft", "ms": 200})
    for _ in range(2):
        await router.chat("The sea?")
    metrics = await router.metrics()
    assert metrics[joules("spent")] == pytest.approx(300 * metrics[gpu_seconds("spent")], rel=0.05)
    assert metrics[joules("saved")] == pytest.approx(300 * metrics[gpu_seconds("saved")], rel=0.05)
    await redis.execute_command(*write_command("test", [replace(engine, power_watts=None)]))
    engine_ = catalog.engines["llama-chat"]
    await eventually(lambda: engine_.announced is not None and engine_.announced.power_watts is None)
    await router.chat("The moon?")
    after = await router.metrics()
    assert after[joules("spent")] == metrics[joules("spent")]
    assert after[gpu_seconds("spent")] > metrics[gpu_seconds("spent")]


async def test_the_ledger_has_what_the_metrics_have_when_the_router_has_stopped(
    config: str, redis: Any, engines: EngineSet
) -> None:
    async with RouterServer(config) as router:
        for prompt in ("The sea?", "The sea?", "The sea?", "The moon?"):
            await router.chat(prompt)
        await router.chat("hello", model="nobody's")
        metrics = await router.metrics()
    saved = metrics[f"llm_tokens_total{{{LABELS.format('saved')}}}"]
    assert await ledger(redis) == pytest.approx(
        {
            "requests": 4, "hits": 2, "saved_tokens": saved, "gpu_seconds_spent": metrics[gpu_seconds("spent")],
            "gpu_seconds_saved": metrics[gpu_seconds("saved")],
        },
    )  # fmt: skip
    assert saved > 0


async def test_sums_of_an_outage_are_added_when_redis_is_back(
    own_redis: RedisServer, engines: EngineSet, make_router: MakeRouter
) -> None:
    await own_redis.start()
    router = await make_router(router_config(own_redis.url, engines.as_config()))
    own_redis.kill()
    for number in range(3):
        assert (await router.chat(f"Question {number}")).headers["x-cache"] == "BYPASS"
    await own_redis.start()

    async def added() -> bool:
        keys = await own_redis.command("KEYS", savings_key("*"))
        found = [decode_sums(await own_redis.command("HGETALL", key)) for key in keys]
        return sum(sums["default", "llama"]["requests"] for sums in found) == 3

    await eventually(added)


# -- the command and the admin API ------------------------------------------------------------------------------------


@pytest.fixture
def file(redis_server: RedisServer, tmp_path: Path) -> Path:
    path = tmp_path / "roundhouse.toml"
    path.write_text(router_config(redis_server.url, {"one": ("llama", "any", "http://127.0.0.1:1")}))
    return path


async def fill(redis: Any) -> list[str]:
    """Sums of two tenants; today and yesterday, which it returns."""
    days = await today(redis)
    for day, tenant, model, requests in ((days[0], "acme", "llama", 4), (days[0], "acme", "org/mistral", 6),
                                         (days[1], "other", "llama", 5)):  # fmt: skip
        for command, _ in add_commands(day, {
            (tenant, model, "requests"): requests, (tenant, model, "hits"): requests // 2,
            (tenant, model, "saved_tokens"): 1000, (tenant, model, "gpu_seconds_spent"): 12.5,
            (tenant, model, "gpu_seconds_saved"): 3600.0,
            **({(tenant, model, "joules_saved"): 7200.0} if tenant == "acme" else {}),
        }):  # fmt: skip
            await redis.execute_command(*command)
    return days


async def test_the_command_shows_a_row_for_each_day_and_tenant_and_their_totals(redis: Any, file: Path) -> None:
    days = await fill(redis)
    shown = await run_cli("cache", "savings", "--config", file)
    assert (shown.code, shown.stderr) == (0, "")
    rows = [line.split("  ") for line in shown.stdout.splitlines() if line.strip() and "──" not in line]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells == [
        ["day", "tenant", "requests", "hits", "coalesced", "tokens saved", "GPU time spent", "saved", "energy spent",
         "saved"],
        [days[0], "acme", "10", "5 (50%)", "0", "2,000", "25.0 s", "2.0 h", "?", "4.00 Wh"],
        [days[1], "other", "5", "2 (40%)", "0", "1,000", "12.5 s", "1.0 h", "?", "?"],
        ["total", "15", "7 (47%)", "0", "3,000", "37.5 s", "3.0 h", "?", "4.00 Wh"],
    ]  # fmt: skip


async def test_the_command_can_be_limited_to_days_and_a_tenant(redis: Any, file: Path) -> None:
    await fill(redis)
    one_day = (await run_cli("cache", "savings", "--days", 1, "--json", "--config", file)).json()
    assert {row["tenant"] for row in one_day["rows"]} == {"acme"}
    assert {row["model"] for row in one_day["rows"]} == {"llama", "org/mistral"}
    assert one_day["total"]["requests"] == 10
    other = (await run_cli("cache", "savings", "--tenant", "other", "--json", "--config", file)).json()
    assert [(row["requests"], row["joules_saved"]) for row in other["rows"]] == [(5, None)]
    assert (
        await run_cli("cache", "savings", "--tenant", "nobody", "--config", file)
    ).stdout == "no requests are recorded\n"
    assert (await run_cli("cache", "savings", "--days", 401, "--config", file)).code == 2


async def test_the_admin_api_gives_the_same(redis: Any, redis_server: RedisServer, make_router: MakeRouter) -> None:
    auth = f'[auth]\nadmin_keys = ["{hash_key(ADMIN_KEY.encode())}"]'
    engine = {"one": ("llama", "any", "http://127.0.0.1:1")}
    router = await make_router(router_config(redis_server.url, engine, rest=auth))
    await fill(redis)
    assert (await router.http.get("/admin/cache/savings")).status_code == 401
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    answer = (await router.http.get("/admin/cache/savings?days=2", headers=headers)).json()
    assert (answer["total"]["requests"], len(answer["rows"])) == (15, 3)
    assert answer["total"]["joules_spent"] is None
    acme = (await router.http.get("/admin/cache/savings?tenant=acme", headers=headers)).json()
    assert acme["total"]["gpu_seconds_saved"] == 7200
    for days in ("0", "401", "x", "-1", "1e1", "99999999999"):
        refused = await router.http.get(f"/admin/cache/savings?days={days}", headers=headers)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "days")
