"""Draining and resuming engines: what they still serve, who is notified, and what holds while Redis is down."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from router.api.auth import hash_key
from router.core.cache.redis_keys import DRAINS_KEY
from tests.support.cli_helpers import CommandResult, run_cli
from tests.support.gated_proxy import GatedProxy
from tests.support.ports import free_port
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, chat_body, router_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADMIN = {"authorization": "Bearer admin-key"}
REST = f'[auth]\nadmin_keys = ["{hash_key(b"admin-key")}"]\n'


@pytest.fixture
def text(redis_server: RedisServer, engines: EngineSet) -> str:
    return router_config(redis_server.url, engines.as_config(), rest=REST)


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(text: str, make_router: MakeRouter) -> RouterServer:
    return await make_router(text)


async def post(router: RouterServer, engine: str, what: str) -> Any:
    answer = await router.http.post(f"/admin/engines/{engine}/{what}", headers=ADMIN)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def drained(router: RouterServer) -> set[str]:
    answer = await router.http.get("/admin/engines", headers=ADMIN)
    return {engine["name"] for engine in answer.json()["engines"] if engine["drained"]}


async def engine_of(router: RouterServer, prompt: str) -> str:
    answer = await router.chat(prompt)
    return answer.headers["x-engine"] if answer.status_code == 200 else answer.json()["error"]["code"]


async def test_the_listing_shows_the_state_of_each_engine(guarded: RouterServer, engines: EngineSet) -> None:
    async def listing() -> Any:
        listed = (await guarded.http.get("/admin/engines", headers=ADMIN)).json()["engines"]
        return listed[0]["running"] is not None and listed

    listed = await eventually(listing)
    assert [engine["name"] for engine in listed] == ["llama-chat", "llama-code", "mistral"]
    assert listed[0] == {
        "name": "llama-chat", "model": "llama", "task": "chat", "url": engines.chat.url, "up": True, "drained": False,
        "in_flight": 0, "running": 0.0, "waiting": 0.0, "kv_cache_usage": listed[0]["kv_cache_usage"],
    }  # fmt: skip


async def test_a_drained_engine_gets_no_new_work_until_it_is_resumed(guarded: RouterServer) -> None:
    assert await engine_of(guarded, "The sea?") == "llama-chat"
    response = await post(guarded, "llama-chat", "drain")
    assert (response["engine"]["drained"], response["everywhere"]) == (True, True)
    assert await engine_of(guarded, "The moon?") == "llama-code"
    response = await post(guarded, "llama-chat", "resume")
    assert (response["engine"]["drained"], response["everywhere"]) == (False, True)
    assert await engine_of(guarded, "The sun?") == "llama-chat"


async def test_draining_twice_is_the_same_as_draining_once(guarded: RouterServer, redis: Any) -> None:
    await post(guarded, "llama-chat", "drain")
    since = await redis.hgetall(DRAINS_KEY)
    await post(guarded, "llama-chat", "drain")
    assert await redis.hgetall(DRAINS_KEY) == since
    await post(guarded, "llama-chat", "resume")
    await post(guarded, "llama-chat", "resume")
    assert await drained(guarded) == set()


async def test_generations_of_a_drained_engine_continue_to_their_end(guarded: RouterServer, engines: EngineSet) -> None:
    await engines.chat.set_faults({"fault": "tps", "rate": 60})
    body = chat_body("The sea?", stream=True, max_tokens=20)
    async with guarded.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        response = await post(guarded, "llama-chat", "drain")
        assert response["engine"]["in_flight"] == 1
        assert (await answer.aread()).endswith(b"data: [DONE]\n\n")

    async def idle() -> bool:
        listed = (await guarded.http.get("/admin/engines", headers=ADMIN)).json()["engines"]
        return bool(listed[0]["in_flight"] == 0)

    await eventually(idle)


async def test_a_model_whose_engines_are_all_drained_is_not_ready_and_is_named(guarded: RouterServer) -> None:
    assert (await guarded.http.get("/readyz")).status_code == 200
    for engine in ("llama-chat", "llama-code"):
        await post(guarded, engine, "drain")
    ready = await guarded.http.get("/readyz")
    assert (ready.status_code, ready.text) == (503, "not ready: all engines of the model llama are drained\n")
    answer = await guarded.chat("The sea?")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_engine")
    assert "drained" in answer.json()["error"]["message"]
    assert (await guarded.chat("The sea?", model="mistral")).status_code == 200
    assert (await guarded.http.get("/healthz")).json()["reason"] is None
    await post(guarded, "mistral", "drain")
    health = (await guarded.http.get("/healthz")).json()
    assert (health["status"], health["reason"]) == ("degraded", "all engines are drained")


async def test_every_router_is_notified_at_once_and_one_that_starts_later_knows(
    guarded: RouterServer, text: str, make_router: MakeRouter
) -> None:
    other = await make_router(text)
    await post(guarded, "llama-chat", "drain")
    await eventually(lambda: drained(other))
    assert await drained(await make_router(text)) == {"llama-chat"}
    await post(other, "llama-chat", "resume")

    async def resumed() -> bool:
        return not await drained(guarded)

    await eventually(resumed)


async def test_an_unknown_engine_is_404(guarded: RouterServer, redis: Any) -> None:
    for what in ("drain", "resume"):
        answer = await guarded.http.post(f"/admin/engines/nobody/{what}", headers=ADMIN)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_such_engine")
    assert not await redis.exists(DRAINS_KEY)


async def test_emptying_redis_resumes_no_engine(guarded: RouterServer, redis: Any) -> None:
    await post(guarded, "llama-chat", "drain")
    reply = await redis.hgetall(DRAINS_KEY)
    await redis.flushall()
    await eventually(lambda: redis.exists(DRAINS_KEY))
    assert await redis.hgetall(DRAINS_KEY) == reply
    assert await drained(guarded) == {"llama-chat"}


async def test_a_drain_that_redis_has_evicted_is_known_to_a_router_that_starts_later(
    guarded: RouterServer, text: str, make_router: MakeRouter, redis: Any
) -> None:
    await post(guarded, "llama-chat", "drain")
    await redis.delete(DRAINS_KEY)
    await eventually(lambda: redis.exists(DRAINS_KEY))
    assert await drained(await make_router(text)) == {"llama-chat"}


async def test_an_engine_resumed_while_a_router_was_disconnected_stays_resumed_when_redis_was_emptied(
    own_redis: RedisServer, engines: EngineSet, make_router: MakeRouter
) -> None:
    await own_redis.start()
    async with GatedProxy(own_redis) as proxy:
        away = await make_router(router_config(proxy.url, engines.as_config(), rest=REST))
        there = await make_router(router_config(own_redis.url, engines.as_config(), rest=REST))
        await post(there, "llama-chat", "drain")
        await eventually(lambda: drained(away))
        proxy.block("listening", "commands")
        await post(there, "llama-chat", "resume")
        await own_redis.command("FLUSHALL")
        await eventually(lambda: own_redis.command("EXISTS", DRAINS_KEY))
        assert await drained(away) == {"llama-chat"}
        proxy.unblock("listening", "commands")

        async def resumed() -> bool:
            return not await drained(away)

        await eventually(resumed)
        assert await drained(there) == set()


async def test_a_router_that_reconnects_restores_the_drains_of_an_emptied_redis(
    own_redis: RedisServer, engines: EngineSet, make_router: MakeRouter
) -> None:
    await own_redis.start()
    text = router_config(own_redis.url, engines.as_config(), rest=REST)
    one = await make_router(text)
    await post(one, "llama-chat", "drain")
    own_redis.kill()
    await one.application.reload(one.application.settings)
    await own_redis.start()
    await eventually(lambda: own_redis.command("EXISTS", DRAINS_KEY))
    assert await drained(one) == await drained(await make_router(text)) == {"llama-chat"}


async def test_each_change_has_a_later_time_than_the_one_before_even_if_the_clock_is_set_back(
    guarded: RouterServer, redis: Any
) -> None:
    await redis.hset(DRAINS_KEY, "llama-chat", "drained 9000000000000")
    await eventually(lambda: drained(guarded))
    await post(guarded, "llama-chat", "resume")
    assert await redis.hget(DRAINS_KEY, "llama-chat") == "resumed 9000000000001"
    await redis.flushall()
    await eventually(lambda: redis.exists(DRAINS_KEY))
    await post(guarded, "llama-chat", "drain")
    assert await redis.hget(DRAINS_KEY, "llama-chat") == "drained 9000000000002"


async def test_a_key_of_the_wrong_type_changes_nothing(guarded: RouterServer, redis: Any) -> None:
    await redis.set(DRAINS_KEY, "nonsense")
    response = await post(guarded, "llama-chat", "drain")
    assert (response["engine"]["drained"], response["everywhere"]) == (True, False)
    assert await engine_of(guarded, "The sea?") == "llama-code"


async def test_without_redis_the_last_state_remains_and_a_local_change_applies_locally(
    own_redis: RedisServer, engines: EngineSet, make_router: MakeRouter
) -> None:
    await own_redis.start()
    text = router_config(own_redis.url, engines.as_config(), rest=REST)
    one, other = await make_router(text), await make_router(text)
    await post(one, "llama-chat", "drain")
    await eventually(lambda: drained(other))
    own_redis.freeze()
    response = await post(one, "llama-code", "drain")
    assert (response["engine"]["drained"], response["everywhere"]) == (True, False)
    assert await drained(one) == {"llama-chat", "llama-code"}
    response = await post(one, "llama-chat", "resume")
    assert (response["engine"]["drained"], response["everywhere"]) == (False, False)
    assert await engine_of(one, "The sea?") == "llama-chat"
    assert await drained(other) == {"llama-chat"}
    await one.application.reload(one.application.settings)
    assert await drained(one) == {"llama-code"}, "another configuration does not forget it"
    own_redis.thaw()

    async def all_agree() -> bool:
        return await drained(one) == await drained(other) == {"llama-code"}

    await eventually(all_agree)


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "roundhouse.toml"
    path.write_text(text)
    return path


async def command(file: Path, *words: object) -> CommandResult:
    return await run_cli("engines", *words, "--config", file)


async def test_the_command_drains_and_resumes_in_running_routers(guarded: RouterServer, file: Path) -> None:
    result = await command(file, "drain", "llama-chat")
    assert (result.code, result.stdout, result.stderr) == (0, "llama-chat is drained\n", "")
    await eventually(lambda: drained(guarded))
    rows = (await command(file, "list", "--json")).json_lines()
    assert [(row["name"], row["up"], row["drained"]) for row in rows] == [
        ("llama-chat", True, True), ("llama-code", True, False), ("mistral", True, False),
    ]  # fmt: skip
    listing = (await command(file, "list")).stdout.splitlines()
    assert listing[0].split()[:4] == ["engine", "model", "task", "state"]
    assert "up, drained" in listing[1]
    result = await command(file, "resume", "llama-chat", "--json")
    assert result.json() == {"engine": "llama-chat", "drained": False}

    async def resumed() -> bool:
        return not await drained(guarded)

    await eventually(resumed)


async def test_the_command_waits_until_the_engine_is_idle(
    guarded: RouterServer, file: Path, engines: EngineSet
) -> None:
    await engines.chat.set_faults({"fault": "stall", "after": 2})
    body = chat_body("The sea?", stream=True)
    async with guarded.http.stream("POST", "/v1/chat/completions", json=body):
        result = await command(file, "drain", "llama-chat", "--wait", "--timeout", 1, "--json")
        assert (result.code, result.json()["idle"]) == (1, False)
        assert result.stderr.splitlines() == [
            "llama-chat: 1 running or waiting",
            "roundhouse: engine llama-chat did not become idle within 1s; it stays drained",
        ]  # fmt: skip
        waiting = asyncio.ensure_future(command(file, "drain", "llama-chat", "--wait"))
        await eventually(lambda: drained(guarded))
    result = await waiting
    assert (result.code, result.stdout) == (0, "llama-chat is drained and idle\n")


async def test_an_engine_that_is_down_is_idle(redis_server: RedisServer, redis: Any, tmp_path: Path) -> None:
    path = tmp_path / "down.toml"
    path.write_text(router_config(redis_server.url, {"gone": ("llama", "any", f"http://127.0.0.1:{free_port()}")}))
    result = await command(path, "drain", "gone", "--wait")
    assert (result.code, result.stdout) == (0, "gone is drained and idle\n")
    assert "down, drained" in (await command(path, "list")).stdout


async def test_an_unknown_engine_name_is_a_usage_error(file: Path, redis: Any) -> None:
    result = await command(file, "drain", "llama")
    assert result.code == 2
    assert result.stderr == (f"roundhouse: {file}: no engine 'llama'; engines: llama-chat, llama-code, mistral\n")
    assert not await redis.exists(DRAINS_KEY)


async def test_without_redis_the_command_fails_with_one_clear_line(tmp_path: Path, engines: EngineSet) -> None:
    path = tmp_path / "alone.toml"
    path.write_text(router_config(f"unix://{tmp_path}/none.sock", engines.as_config()))
    for words in (["list"], ["drain", "mistral"], ["resume", "mistral"]):
        result = await command(path, *words)
        assert (result.code, len(result.stderr.splitlines())) == (1, 1)
        assert "Redis does not answer" in result.stderr
