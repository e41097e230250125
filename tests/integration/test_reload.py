"""Reloading the configuration: what changes, what stays, and that no request is affected."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.api.auth import hash_key
from router.settings import parse
from tests.support.counting_engine import CountingEngine
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess, http_client
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, chat_body, router_config
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def reload(router: RouterServer, text: str) -> None:
    await router.application.reload(parse(text, {}))


def without_code(redis_server: RedisServer, engines: EngineSet, **options: str) -> str:
    """A configuration without the engine llama-code."""
    table = engines.as_config()
    del table["llama-code"]
    return router_config(redis_server.url, table, **options)


# -- the application --------------------------------------------------------------------------------------------------


async def test_models_engines_keys_and_limits_are_those_of_the_new_configuration(
    router: RouterServer, redis_server: RedisServer, engines: EngineSet
) -> None:
    rest = f'[auth]\nmode = "keys"\n[[tenant]]\nname = "acme"\nkeys = ["{hash_key(b"k")}"]\n'
    text = without_code(redis_server, engines, rest=rest, router='max_body = "1KiB"')
    await reload(router, text.replace('"llama-alias"', '"other-alias"'))
    assert (await router.chat("The sea?")).status_code == 401
    headers = {"authorization": "Bearer k"}
    answer = await router.chat("The sea?", headers=headers, model="other-alias")
    assert answer.headers["x-cache-key"].startswith("rh:1:acme:llama:")
    assert (await router.chat("The sea?", headers=headers, model="llama-alias")).status_code == 404
    assert (await router.chat("x" * 2000, headers=headers)).status_code == 413
    assert set((await router.http.get("/healthz")).json()["engines"]) == {"llama-chat", "mistral"}


async def test_stored_entries_and_counters_survive_a_reload(router: RouterServer, config: str) -> None:
    await router.chat("The sea?")
    await reload(router, config)
    assert (await router.chat("The sea?")).headers["x-cache"] == "HIT"
    counted = {name: value for name, value in (await router.metrics()).items() if name.startswith("llm_requests_total")}
    assert sum(counted.values()) == 2


async def test_a_new_tenant_is_notified_of_changes_too(
    router: RouterServer, redis_server: RedisServer, engines: EngineSet, redis: Any
) -> None:
    rest = '[auth]\nmode = "header"\n[[tenant]]\nname = "acme"\n'
    await reload(router, router_config(redis_server.url, engines.as_config(), rest=rest))
    headers = {"x-tenant-id": "acme"}
    key = (await router.chat("The sea?", headers=headers)).headers["x-cache-key"]

    async def is_local() -> bool:
        return "detail=local" in (await router.chat("The sea?", headers=headers)).headers["cache-status"]

    await eventually(is_local)
    await redis.delete(key)

    async def is_gone() -> bool:
        return (await router.chat("The sea?", headers=headers)).headers["x-cache"] == "MISS"

    await eventually(is_gone)


async def test_a_stream_in_progress_ends_under_the_old_configuration(
    router: RouterServer, redis_server: RedisServer, engines: EngineSet
) -> None:
    await engines.code.set_faults({"fault": "tps", "rate": 60})
    body = chat_body("Write a Python function that reverses a list.", stream=True, max_tokens=30)
    async with router.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.headers["x-engine"] == "llama-code"
        await reload(router, without_code(redis_server, engines))
        assert set((await router.http.get("/healthz")).json()["engines"]) == {"llama-chat", "mistral"}
        assert (await answer.aread()).endswith(b"data: [DONE]\n\n")
    again = await router.http.post("/v1/chat/completions", json=body)
    assert again.headers["x-cache"] == "HIT"


async def test_an_identical_request_joins_a_generation_that_started_before_the_reload(
    router: RouterServer, config: str, engines: EngineSet
) -> None:
    await engines.chat.set_faults({"fault": "tps", "rate": 12})
    before = (await engines.chat.stats())["received"]
    body = chat_body("The sea?", stream=True, max_tokens=75, min_tokens=75)
    async with router.http.stream("POST", "/v1/chat/completions", json=body) as first:
        await reload(router, config)
        async with router.http.stream("POST", "/v1/chat/completions", json=body) as second:
            assert second.headers["x-cache"] == "COALESCED"
            assert await second.aread() == await first.aread()
    assert (await engines.chat.stats())["received"] == before + 1


async def test_the_load_of_an_engine_that_remains_is_known(
    router: RouterServer, redis_server: RedisServer, engines: EngineSet
) -> None:
    await engines.chat.set_faults({"fault": "stall", "after": 2})
    async with router.http.stream("POST", "/v1/chat/completions", json=chat_body("The sea?", stream=True)) as answer:
        assert answer.headers["x-engine"] == "llama-chat"
        await reload(router, without_code(redis_server, engines))
        assert (await router.metrics())['llm_requests_in_flight{engine="llama-chat"}'] == 1
    await engines.chat.clear_faults()
    await engines.chat.stats(in_flight=0)

    async def idle() -> bool:
        return (await router.metrics())['llm_requests_in_flight{engine="llama-chat"}'] == 0

    await eventually(idle)


@pytest.mark.parametrize("is_removed", [False, True])
async def test_requests_of_earlier_configurations_count_for_the_limit_of_an_engine(
    redis_server: RedisServer, make_router: MakeRouter, is_removed: bool
) -> None:
    engine = CountingEngine(ROLE_FRAME, chat_frame(content="one", finish="stop") + DONE_FRAME)
    await engine.start()

    def text(max_model_len: int) -> str:
        limited = f"max_in_flight = 2\nmax_model_len = {max_model_len}\nserved_model"
        table = {"limited": ("llama", "any", engine.url)}
        return router_config(redis_server.url, table).replace("served_model", limited)

    router = await make_router(text(1000))

    async def queued(number: int) -> None:
        async def are() -> bool:
            return (await router.metrics())['llm_requests_queued{model="llama"}'] == number

        await eventually(are)

    def ask(*prompts: str) -> list[asyncio.Task[httpx.Response]]:
        return [asyncio.create_task(router.chat(prompt, stream=True)) for prompt in prompts]

    asked = ask("The sea?", "The moon?", "The sun?")
    await queued(1)
    if is_removed:
        await reload(router, router_config(redis_server.url, {"other": ("llama", "any", "http://127.0.0.1:1")}))
    await reload(router, text(2000))  # another object for the same engine
    asked += ask("The sky?", "The earth?", "The wind?")
    await queued(4)
    for _ in asked:
        engine.chunk_permits.release()
    assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200] * 6
    assert engine.most == 2
    await engine.stop()


async def test_an_engine_that_is_removed_has_no_gauges(
    router: RouterServer, redis_server: RedisServer, engines: EngineSet
) -> None:
    up = 'roundhouse_engine_up{engine="llama-code"}'
    assert (await router.metrics())[up] == 1
    await reload(router, without_code(redis_server, engines))
    assert up not in await router.metrics()


async def test_the_old_configuration_is_closed_when_its_last_request_ends(
    router: RouterServer, config: str, redis: Any
) -> None:
    async def connections() -> int:
        return len([c for c in await redis.client_list() if c["name"] == "roundhouse"])

    await router.chat("The sea?")
    # The pipeline, the listener, and the admin client, which connects on first use.
    await eventually(connections)
    before = 3
    for _ in range(3):
        await reload(router, config)

    async def serves_old_configuration() -> bool:
        return await connections() <= before

    await eventually(serves_old_configuration)


async def test_a_configuration_that_fails_to_start_changes_nothing(
    router: RouterServer, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: object) -> None:
        raise OSError("no more files")

    with monkeypatch.context() as patched:
        patched.setattr("router.application.Runtime.start", fail)
        with pytest.raises(OSError, match="no more files"):
            await reload(router, config)
    assert (await router.chat("The sea?")).status_code == 200


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def serve(tmp_path: Path, redis: Any) -> Iterator[Any]:
    started: list[RouterProcess] = []

    async def start(text: str) -> RouterProcess:
        started.append(RouterProcess(tmp_path, text))
        started[-1].start()
        await started[-1].wait_until_ready()
        return started[-1]

    yield start
    for served in started:
        served.kill()


async def models(served: RouterProcess) -> list[str]:
    async with http_client(served.url) as http:
        return [model["id"] for model in (await http.get("/v1/models")).json()["data"]]


@pytest.mark.parametrize("workers", [1, 2])
async def test_sighup_reads_the_file_again_and_no_request_is_lost(serve: Any, config: str, workers: int) -> None:
    served = await serve(config.replace("[router]", f"[router]\nworkers = {workers}"))
    lost: list[object] = []
    sent = 0
    stop = asyncio.Event()

    async def ask(number: int) -> None:
        nonlocal sent
        async with http_client(served.url) as http:
            while not stop.is_set():
                sent += 1
                try:
                    answer = await http.post("/v1/chat/completions", json=chat_body(f"{number} {sent % 50}?"))
                    if answer.status_code != 200:
                        lost.append(answer.text)
                except httpx.HTTPError as error:
                    lost.append(error)

    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(ask(number))
        for name in ("one", "two", "three"):
            served.write_config(
                config.replace("[router]", f"[router]\nworkers = {workers}").replace("llama-alias", name)
            )
            served.process.send_signal(signal.SIGHUP)

            async def is_known_everywhere(name: str = name) -> bool:
                return all([name in await models(served) for _ in range(6)])

            await eventually(is_known_everywhere)
        stop.set()
    assert lost == []
    assert sent > 10


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("bad", "messages"),
    [
        ("[router", ["not valid TOML"]),
        ("[routr]\n[auth]\nmode = 'key'", ["routr: ", "auth.mode: 'key' is none of ", "model is missing"]),
        (None, ["No such file"]),
    ],
)
async def test_an_invalid_file_is_refused_with_a_line_for_each_mistake_and_the_old_one_remains(
    serve: Any, config: str, workers: int, bad: str | None, messages: list[str]
) -> None:
    served = await serve(config.replace("[router]", f"[router]\nworkers = {workers}"))
    served.write_config(bad)
    served.process.send_signal(signal.SIGHUP)
    refused = "the configuration is invalid; the previous one stays in effect"
    await eventually(lambda: served.log.read_text().count(refused) == len(messages))
    lines = [line for line in served.log.read_text().splitlines() if refused in line]
    assert [message in line for message, line in zip(messages, lines, strict=True)] == [True] * len(messages)
    assert "llama-alias" in await models(served)
    if workers == 2:  # a worker that must be replaced now does not need the file either
        before = served.worker_pids()
        served.kill_worker(before.copy().pop())
        await eventually(lambda: len(now := served.worker_pids()) == 2 and now != before)
        await served.wait_until_ready()


async def test_a_setting_that_needs_a_restart_is_reported_and_remains(serve: Any, config: str) -> None:
    served = await serve(config)
    served.write_config(
        config.replace("[router]", '[router]\nworkers = 3\nlog_format = "json"\nhost = "0.0.0.0"\nkeep_alive = "620s"')
    )
    served.process.send_signal(signal.SIGHUP)
    await eventually(lambda: "the new configuration is in effect" in served.log.read_text())
    for name in ("workers", "log_format", "host", "keep_alive"):
        assert f"router.{name}: a change needs a restart" in served.log.read_text()
    assert "router.port" not in served.log.read_text()
    assert served.worker_pids() == set()
