"""A request for a model without a running engine waits until one is started for it."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from router.api.auth import hash_key
from router.settings import parse
from router.shared.announcements import AnnouncedEngine, write_command
from tests.support.on_demand import QUEUED, Launcher, SleepingEngine, queued, with_wake
from tests.support.redis_process import RedisServer
from tests.support.router_process import ROUNDHOUSE, RouterProcess, http_client
from tests.support.router_server import LLAMA, EngineSet, MakeRouter, RouterServer, chat_body, router_config
from tests.support.router_server import with_fallback as fall_back
from tests.support.scripted_engine import ScriptedEngine
from tests.support.streaming_client import open_stream
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

WAKES = 'llm_engine_wakes_total{{model="llama",result="{}"}}'
AT_ONCE = '[timeouts]\nqueue = "100ms"'
"""The first comment comes after the time for which requests usually wait."""


@pytest_asyncio.fixture(loop_scope="session")
async def engine() -> AsyncIterator[SleepingEngine]:
    engine = SleepingEngine()
    yield engine
    await engine.stop()


def sleeping_config(redis: RedisServer, engine: SleepingEngine, wake: str = "60s", **tables: str) -> str:
    return with_wake(router_config(redis.url, engine.as_config(), **tables), wake)


def without_engine(redis: RedisServer, **tables: str) -> str:
    """A configuration whose model llama has only the engines that announce themselves."""
    text = router_config(redis.url, {"llama-0": ("llama", "any", "http://127.0.0.1:1")}, **tables)
    return with_wake(text[: text.index("[[engine]]")] + tables.get("rest", ""))


@asynccontextmanager
async def announcing(folder: Path, config: str) -> AsyncIterator[None]:
    """`roundhouse engines announce` of the engines of a configuration."""
    file = folder / "pod.toml"
    file.write_text(config)
    process = await asyncio.create_subprocess_exec(
        *ROUNDHOUSE, "engines", "announce", "-c", str(file), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


class DyingEngine(ScriptedEngine):
    """An engine that answers checks and no requests, until it dies."""

    def __init__(self) -> None:
        super().__init__(hold=True)
        self._writers: list[asyncio.StreamWriter] = []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        await super()._serve(reader, writer)

    async def die(self) -> None:
        await self.stop()
        for writer in self._writers:
            writer.close()


async def has_queued(count: int, *routers: RouterServer) -> None:
    async def are() -> bool:
        return await queued(*routers) == count

    await eventually(are)


async def ask_in_order(router: RouterServer, *prompts: str, **fields: Any) -> list[asyncio.Task[httpx.Response]]:
    """Sends requests, each once the one before it is in the queue."""
    before = int(await queued(router))
    asked = []
    for number, prompt in enumerate(prompts, 1):
        asked.append(asyncio.create_task(router.chat(prompt, **fields)))
        await has_queued(before + number, router)
    return asked


async def prompts_at(engine: SleepingEngine) -> list[str]:
    return [body["messages"][-1]["content"] for body in await bodies_at(engine)]


async def bodies_at(engine: SleepingEngine) -> list[dict[str, Any]]:
    bodies = [request["body"] for request in (await engine.stats())["requests"]]
    return [json.loads(body) if isinstance(body, str) else body for body in bodies]


# -- engines at an address of the configuration -----------------------------------------------------------------------


async def test_requests_wait_for_the_engine_that_is_started_for_them_and_are_answered_in_their_order(
    redis_server: RedisServer, make_router: MakeRouter, engine: SleepingEngine
) -> None:
    text = sleeping_config(redis_server, engine).replace("served_model", "max_in_flight = 1\nserved_model")
    router = await make_router(text)
    prompts = ["The sea?", "The moon?", "The sun?"]
    asked = await ask_in_order(router, *prompts)
    async with Launcher(engine, router, waiting=3):
        answers = await asyncio.gather(*asked)
        assert [answer.status_code for answer in answers] == [200, 200, 200]
        assert await prompts_at(engine) == prompts
        metrics = await router.metrics()
    assert metrics[WAKES.format("started")] == 3
    assert metrics['llm_engine_wake_seconds_count{model="llama"}'] == 3
    assert metrics[QUEUED] == 0


async def test_an_engine_that_takes_too_long_gives_503_with_a_retry_after_that_follows_from_earlier_starts(
    redis_server: RedisServer, make_router: MakeRouter, engine: SleepingEngine, redis: Any
) -> None:
    await redis.rpush("rh:1:router:starts:llama", "20", "25", "30")
    router = await make_router(sleeping_config(redis_server, engine, wake="500ms"))
    answer = await router.chat("The sea?")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "engine_starting"
    assert 20 <= int(answer.headers["retry-after"]) <= 25
    metrics = await router.metrics()
    assert metrics[WAKES.format("timeout")] == 1
    assert metrics[QUEUED] == 0


async def test_how_long_a_start_took_is_stored_for_all_routers(
    redis_server: RedisServer, make_router: MakeRouter, engine: SleepingEngine, redis: Any
) -> None:
    router = await make_router(sleeping_config(redis_server, engine))
    asked = await ask_in_order(router, "The sea?", "The moon?")
    async with Launcher(engine, router):
        await asyncio.gather(*asked)
        starts = await eventually(lambda: redis.lrange("rh:1:router:starts:llama", 0, -1))
    (seconds,) = map(float, starts)
    assert seconds > 0
    assert await redis.ttl("rh:1:router:starts:llama") > 86400


async def test_nothing_is_generated_for_a_client_that_has_left_while_it_waited(
    redis_server: RedisServer, make_router: MakeRouter, engine: SleepingEngine
) -> None:
    router = await make_router(sleeping_config(redis_server, engine))
    left, stays = await ask_in_order(router, "The sea?", "The moon?")
    left.cancel()
    await has_queued(1, router)
    await engine.start()
    assert (await stays).status_code == 200
    assert await prompts_at(engine) == ["The moon?"]
    assert (await router.metrics())[WAKES.format("left")] == 1


async def test_equal_requests_at_two_routers_wait_together_and_share_one_generation(
    redis_server: RedisServer, make_router: MakeRouter, engine: SleepingEngine
) -> None:
    text = sleeping_config(redis_server, engine)
    first, second = await make_router(text), await make_router(text)
    asked = await ask_in_order(first, "The sea?")
    asked.append(asyncio.create_task(second.chat("The sea?")))
    asked.append(asyncio.create_task(second.chat("The moon?")))
    await has_queued(2, first, second)
    # Longer than a lease on a generation, which its leader has to renew while it waits.
    waited = asyncio.get_running_loop().time() + 2.5
    await eventually(lambda: asyncio.get_running_loop().time() > waited)
    async with Launcher(engine, first, second):
        answers = await asyncio.gather(*asked)
        assert [answer.status_code for answer in answers] == [200, 200, 200]
        assert answers[0].json()["choices"] == answers[1].json()["choices"]
        assert sorted(await prompts_at(engine)) == ["The moon?", "The sea?"]


async def test_a_request_goes_on_waiting_when_the_router_of_an_equal_one_stops(
    redis_server: RedisServer, make_router: MakeRouter, engine: SleepingEngine
) -> None:
    text = sleeping_config(redis_server, engine)
    second = await make_router(text)
    async with RouterServer(text) as first:
        (refused,) = await ask_in_order(first, "The sea?")
        follower = asyncio.create_task(second.chat("The sea?"))

        async def follows() -> bool:
            return first.application._runtime.has_followers

        await eventually(follows)
        first.application.end_events()
        assert (await refused).json()["error"]["code"] == "stopping"
    await has_queued(1, second)
    await engine.start()
    assert (await follower).status_code == 200


async def test_a_request_that_finds_its_engine_gone_waits_for_the_next_one(
    redis_server: RedisServer, make_router: MakeRouter, engine: SleepingEngine
) -> None:
    await engine.start()
    router = await make_router(sleeping_config(redis_server, engine))
    assert (await router.chat("The sea?")).status_code == 200
    await engine.kill()  # the router notices it at the next request at the latest
    (asked,) = await ask_in_order(router, "The moon?")
    async with Launcher(engine, router):
        assert (await asked).status_code == 200


async def test_a_request_outlasts_an_engine_that_dies_in_its_start(
    redis_server: RedisServer, make_router: MakeRouter, engine: SleepingEngine
) -> None:
    router = await make_router(sleeping_config(redis_server, engine))
    (asked,) = await ask_in_order(router, "The sea?")
    # It listens, and does not answer the router's check; then it is gone.
    dying = await asyncio.start_server(lambda _, writer: None, "127.0.0.1", engine.fixed_port)
    await eventually(lambda: bool(dying.sockets))
    dying.close()
    assert not asked.done()
    async with Launcher(engine, router):
        assert (await asked).status_code == 200


@pytest.mark.parametrize("requests", [1, 8])  # the failures of eight open its breaker
async def test_requests_outlast_an_engine_that_dies_with_them_after_its_start(
    redis_server: RedisServer, make_router: MakeRouter, engine: SleepingEngine, requests: int
) -> None:
    router = await make_router(sleeping_config(redis_server, engine))
    asked = await ask_in_order(router, *[f"The sea {number}?" for number in range(requests)])
    dying = DyingEngine()
    await dying.start(engine.fixed_port)
    await eventually(lambda: len(dying.bodies) == requests)
    await dying.die()
    await has_queued(requests, router)
    await engine.start()
    answers = await asyncio.gather(*asked)
    assert [answer.status_code for answer in answers] == [200] * requests


async def test_requests_wait_on_while_another_router_tests_the_engine_that_has_started(
    redis_server: RedisServer, make_router: MakeRouter, engine: SleepingEngine, redis: Any
) -> None:
    router = await make_router(sleeping_config(redis_server, engine))
    (seconds, microseconds) = await redis.time()
    half_open = {"failures": 0, "until": seconds + microseconds / 1e6, "pressed": None}
    await redis.set("rh:1:breaker:llama-0", json.dumps(half_open))

    async def is_half_open() -> bool:
        return (await router.metrics()).get('roundhouse_breaker_state{engine="llama-0"}') == 1

    await eventually(is_half_open)
    await redis.set("rh:1:breaker:llama-0:probe", "another router", px=60_000)
    prompts = ["The sea?", "The moon?", "The sun?"]
    asked = await ask_in_order(router, *prompts)
    await engine.start()

    async def is_up() -> bool:
        return (await router.metrics())['roundhouse_engine_up{engine="llama-0"}'] == 1

    await eventually(is_up)
    assert await queued(router) >= 2
    await redis.set("rh:1:breaker:llama-0", json.dumps({"failures": 0, "until": None, "pressed": None}))
    await redis.delete("rh:1:breaker:llama-0:probe")
    answers = await asyncio.gather(*asked)
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert await redis.llen("rh:1:router:starts:llama") == 1


async def test_a_request_without_room_in_the_queue_fails_at_once_if_the_fallback_is_down_too(
    redis_server: RedisServer, make_router: MakeRouter, engine: SleepingEngine
) -> None:
    both = engine.as_config() | {"mistral": ("mistral", "any", "http://127.0.0.1:1")}
    text = fall_back(router_config(redis_server.url, both)).replace("fallback =", 'wake = "60s"\nfallback =')
    text = text.replace("served_model", "max_in_flight = 1\nserved_model", 1)
    router = await make_router(text)
    asked = await ask_in_order(router, *[f"The sea {number}?" for number in range(16)])
    answer = await asyncio.wait_for(router.chat("The moon?"), 10)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_full")
    assert int(answer.headers["retry-after"]) >= 1
    for each in asked:
        each.cancel()
    await has_queued(0, router)


async def test_a_request_whose_engine_dies_after_a_reload_waits_for_the_engine_of_the_new_configuration(
    redis_server: RedisServer, make_router: MakeRouter, engine: SleepingEngine
) -> None:
    await engine.start()
    text = sleeping_config(redis_server, engine)
    router = await make_router(text)
    engine.freeze()
    asked = asyncio.create_task(router.chat("The sea?"))

    async def is_sent() -> bool:
        return (await router.metrics()).get('llm_requests_in_flight{engine="llama-0"}') == 1

    await eventually(is_sent)
    await router.application.reload(parse(text + "\n[breaker]\nfailures = 7\n", {}))  # a new object for each engine
    await engine.kill()
    await has_queued(1, router)
    async with Launcher(engine, router):
        assert (await asked).status_code == 200


async def test_a_request_for_a_model_that_a_reload_removes_does_not_wait_for_it_any_longer(
    redis_server: RedisServer, make_router: MakeRouter, engine: SleepingEngine, engines: EngineSet
) -> None:
    router = await make_router(sleeping_config(redis_server, engine))
    (asked,) = await ask_in_order(router, "The sea?")
    mistral = {"mistral": engines.as_config()["mistral"]}
    await router.application.reload(parse(router_config(redis_server.url, mistral), {}))
    answer = await asyncio.wait_for(asked, 10)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


# -- engines that announce themselves ---------------------------------------------------------------------------------


async def test_a_request_for_a_model_without_any_engine_is_answered_by_the_one_that_announces_itself(
    redis_server: RedisServer, make_router: MakeRouter, engine: SleepingEngine, tmp_path: Path
) -> None:
    router = await make_router(without_engine(redis_server))
    assert (await router.http.get("/readyz")).status_code == 200
    prompts = ["The sea?", "The moon?"]
    asked = await ask_in_order(router, *prompts)
    config = router_config(redis_server.url, engine.as_config("pod-3"))
    async with Launcher(engine, router), announcing(tmp_path, config):
        answers = await asyncio.wait_for(asyncio.gather(*asked), 60)
        assert [(answer.status_code, answer.headers["x-engine"]) for answer in answers] == [(200, "pod-3")] * 2
        assert await prompts_at(engine) == prompts


async def test_a_request_waits_on_while_other_engines_come_and_the_configuration_is_reloaded(
    redis_server: RedisServer, redis: Any, make_router: MakeRouter, engine: SleepingEngine, engines: EngineSet
) -> None:
    both = engine.as_config() | {"mistral": engines.as_config()["mistral"]}
    text = with_wake(router_config(redis_server.url, both)).replace(
        "served_model", "max_in_flight = 1\nserved_model", 1
    )
    router = await make_router(text)
    (first,) = await ask_in_order(router, "The sea?")
    other = AnnouncedEngine(
        name="new", model="mistral", task="any", url=engines.mistral.url, served_model=router_served("mistral")
    )
    await redis.execute_command(*write_command("test", [other]))

    async def has_new() -> bool:
        return "new" in (await router.http.get("/healthz")).json()["engines"]

    await eventually(has_new)
    assert await queued(router) == 1
    (second,) = await ask_in_order(router, "The moon?")
    await router.application.reload(parse(text + "\n[breaker]\nfailures = 7\n", {}))  # gives every engine a new object
    (third,) = await ask_in_order(router, "The sun?")
    assert await queued(router) == 3
    async with Launcher(engine, router):
        answers = await asyncio.gather(first, second, third)
        assert [answer.status_code for answer in answers] == [200, 200, 200]
        assert await prompts_at(engine) == ["The sea?", "The moon?", "The sun?"]


def router_served(model: str) -> str:
    return {"llama": LLAMA, "mistral": "mistralai/Mistral-Simulated"}[model]


# -- what the client sees ---------------------------------------------------------------------------------------------


async def test_a_stream_gets_comments_while_it_waits_which_the_client_of_openai_ignores(
    redis_server: RedisServer, make_router: MakeRouter, engine: SleepingEngine
) -> None:
    router = await make_router(sleeping_config(redis_server, engine, rest=AT_ONCE))
    async with open_stream(router, "The sea?") as raw:
        assert raw.status == 200  # which is sent with the first comment
        assert "x-request-id" in raw.headers
        assert "x-engine" not in raw.headers
        http = DefaultAsyncHttpxClient(verify=False, trust_env=False)
        async with AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0, http_client=http) as openai:
            asked = asyncio.create_task(
                openai.chat.completions.create(
                    model="llama", messages=[{"role": "user", "content": "The moon?"}], stream=True
                )
            )
            stream = await asked  # with the status, so before there is an engine
            assert await queued(router) == 2
            await engine.start()
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
        received = await raw.read_to_end()
    assert text
    assert received.startswith(b": waiting for an engine of llama to start, ")
    assert received.endswith(b"data: [DONE]\n\n")


async def test_a_stream_that_finds_its_engine_gone_gets_comments_while_it_waits_for_the_next_one(
    redis_server: RedisServer, make_router: MakeRouter, engine: SleepingEngine
) -> None:
    await engine.start()
    router = await make_router(sleeping_config(redis_server, engine, rest=AT_ONCE))
    await engine.kill()  # the router believes that it is up
    async with open_stream(router, "The sea?") as raw:
        await engine.start()
        received = await raw.read_to_end()
    assert received.startswith(b": waiting for an engine of llama to start, ")
    assert received.endswith(b"data: [DONE]\n\n")


async def test_a_stream_whose_engine_takes_long_for_the_first_token_gets_no_comments(
    redis_server: RedisServer, make_router: MakeRouter, engine: SleepingEngine
) -> None:
    await engine.start()
    router = await make_router(sleeping_config(redis_server, engine, rest=AT_ONCE))
    engine.freeze()
    asked = asyncio.create_task(router.chat("The sea?", stream=True))
    later = asyncio.get_running_loop().time() + 0.5  # longer than until the first comment: there is no event
    await eventually(lambda: asyncio.get_running_loop().time() > later)
    engine.thaw()
    answer = await asked
    assert answer.headers["x-engine"] == "llama-0"
    assert answer.text.startswith("data: ")


async def test_a_stream_that_has_had_comments_ends_with_an_error_event_if_no_engine_starts(
    redis_server: RedisServer, make_router: MakeRouter, engine: SleepingEngine
) -> None:
    router = await make_router(sleeping_config(redis_server, engine, wake="500ms", rest=AT_ONCE))
    answer = await router.chat("The sea?", stream=True)
    assert answer.status_code == 200
    comment, event = answer.text.split("\n\n", 1)
    assert comment.startswith(": waiting for")
    assert event.startswith("data: ")
    assert '"code":"engine_starting"' in event
    assert "[DONE]" not in event


async def test_a_stream_that_fails_before_its_first_comment_has_the_status_of_its_error(
    redis_server: RedisServer, make_router: MakeRouter, engine: SleepingEngine
) -> None:
    router = await make_router(sleeping_config(redis_server, engine, wake="300ms"))
    assert (await router.chat("The sea?", stream=True)).status_code == 503


async def test_a_client_that_does_not_want_to_wait_gets_503_at_once(
    redis_server: RedisServer, make_router: MakeRouter, engine: SleepingEngine
) -> None:
    router = await make_router(sleeping_config(redis_server, engine))
    (waiting,) = await ask_in_order(router, "The sea?")
    answer = await router.chat("The sea?", headers={"prefer": "respond-async, wait=0"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_starting")
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert (await router.chat("The sea?", headers={"prefer": "wait=1"})).status_code == 503
    metrics = await router.metrics()
    assert (metrics[WAKES.format("declined")], metrics[WAKES.format("timeout")]) == (2, 0)
    await engine.start()
    assert (await waiting).status_code == 200


async def test_the_fallback_answers_at_once_unless_the_client_prefers_to_wait(
    redis_server: RedisServer, make_router: MakeRouter, engine: SleepingEngine, engines: EngineSet
) -> None:
    both = engine.as_config() | {"mistral": engines.as_config()["mistral"]}
    text = fall_back(router_config(redis_server.url, both)).replace(
        'fallback = "mistral"', 'fallback = "mistral"\nwake = "60s"'
    )
    router = await make_router(text)
    assert (await router.chat("The sea?")).headers["x-fallback"] == "mistral"
    assert (await router.metrics())[WAKES.format("fallback")] == 1
    (waiting,) = await ask_in_order(router, "The sea?", headers={"prefer": "wait=30"})
    impatient = await router.chat("The sea?", headers={"prefer": "wait=1"})
    assert impatient.headers["x-fallback"] == "mistral"
    await engine.start()
    answer = await waiting
    assert answer.headers["x-engine"] == "llama-0"
    assert "x-fallback" not in answer.headers


async def test_fields_that_a_draft_would_not_support_are_kept_while_the_engine_sleeps(
    redis_server: RedisServer, make_router: MakeRouter, engine: SleepingEngine
) -> None:
    router = await make_router(sleeping_config(redis_server, engine))
    (asked,) = await ask_in_order(router, "The sea?", min_p=0.1)
    await engine.start()
    answer = await asked
    assert answer.status_code == 200
    assert "x-adjusted" not in answer.headers
    assert (await bodies_at(engine))[0]["min_p"] == 0.1


# -- operation --------------------------------------------------------------------------------------------------------


async def test_a_router_whose_models_sleep_is_ready_and_healthy_and_says_so_in_its_metrics(
    redis_server: RedisServer, make_router: MakeRouter, engine: SleepingEngine
) -> None:
    router = await make_router(sleeping_config(redis_server, engine))
    assert (await router.http.get("/readyz")).status_code == 200
    health = await router.http.get("/healthz")
    assert (health.status_code, health.json()["status"]) == (200, "healthy")
    assert health.json()["engines"]["llama-0"]["asleep"] is True
    metrics = await router.metrics()
    assert metrics['roundhouse_engine_asleep{engine="llama-0"}'] == 1
    assert metrics['roundhouse_engine_up{engine="llama-0"}'] == 0
    awake = await make_router(router_config(redis_server.url, engine.as_config()))
    assert (await awake.http.get("/readyz")).status_code == 503
    assert 'roundhouse_engine_asleep{engine="llama-0"}' not in await awake.metrics()


async def test_an_engine_is_not_asleep_any_more_when_a_reload_ends_that_its_model_waits_for_starts(
    redis_server: RedisServer, make_router: MakeRouter, engine: SleepingEngine
) -> None:
    router = await make_router(sleeping_config(redis_server, engine))
    await router.application.reload(parse(router_config(redis_server.url, engine.as_config()), {}))
    metrics = await router.metrics()
    assert metrics['roundhouse_engine_up{engine="llama-0"}'] == 0
    assert 'roundhouse_engine_asleep{engine="llama-0"}' not in metrics  # else no alert fires for it


async def test_nobody_waits_for_an_engine_that_an_operator_has_drained(
    redis_server: RedisServer, make_router: MakeRouter, engine: SleepingEngine
) -> None:
    rest = f'[auth]\nadmin_keys = ["{hash_key(b"admin")}"]'
    router = await make_router(sleeping_config(redis_server, engine, rest=rest))
    headers = {"authorization": "Bearer admin"}
    drained = await router.http.post("/admin/engines/llama-0/drain", headers=headers)
    assert drained.status_code == 200
    answer = await router.chat("The sea?")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_engine")


async def test_a_router_that_stops_sends_its_waiting_clients_elsewhere_at_once(
    redis_server: RedisServer, redis: Any, engine: SleepingEngine, tmp_path: Path
) -> None:
    served = RouterProcess(tmp_path, sleeping_config(redis_server, engine, router='grace = "30s"'))
    served.start()
    try:
        await served.wait_until_ready()
        async with http_client(served.url) as http:
            asked = asyncio.create_task(http.post("/v1/chat/completions", json=chat_body("The sea?"), timeout=30))

            async def waits() -> bool:
                return f"{QUEUED} 1.0" in (await http.get("/metrics")).text

            await eventually(waits)
            os.kill(served.process.pid, signal.SIGTERM)
            answer = await asyncio.wait_for(asked, 15)  # half of the grace period
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "stopping")
        assert answer.headers["retry-after"] == "1"
        assert await asyncio.to_thread(served.process.wait, 15) == 0
    finally:
        served.kill()
