"""A request for a model without a running engine waits until one is started for it."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from router.api.access.auth import hash_key
from router.shared.engines.announcements import AnnouncedEngine, write_command
from tests.support.on_demand import QUEUED, Launcher, queued, with_wake
from tests.support.router_server import MISTRAL, router_config
from tests.support.router_server import with_fallback as fall_back
from tests.support.scripted_engine import ScriptedEngine
from tests.support.streaming_client import open_stream
from tests.support.waiting import eventually
from tests.world.http import PORT
from tests.world.processes import WorldEngine, WorldRouter
from tests.world.redis import WorldRedis
from tests.world.scenario import PROBED, World, scenario

WAKES = 'llm_engine_wakes_total{{model="llama",result="{}"}}'
AT_ONCE = '[timeouts]\nqueue = "100ms"'
"""The first comment comes after the time for which requests usually wait."""


def at(engine: WorldEngine) -> dict[str, tuple[str, str, str]]:
    return {"llama-0": ("llama", "any", engine.url)}


def sleeping_config(redis: WorldRedis, engine: WorldEngine, wake: str = "60s", **tables: str) -> str:
    return with_wake(router_config(redis.url, at(engine), **tables), wake)


async def has_queued(count: int, *routers: WorldRouter) -> None:
    async def are() -> bool:
        return await queued(*routers) == count

    await eventually(are)


async def ask_in_order(router: WorldRouter, *prompts: str, **fields: Any) -> list[asyncio.Task[httpx.Response]]:
    """Sends requests, each once the one before it is in the queue."""
    before = int(await queued(router))
    asked = []
    for number, prompt in enumerate(prompts, 1):
        asked.append(asyncio.create_task(router.chat(prompt, **fields)))
        await has_queued(before + number, router)
    return asked


async def prompts_at(engine: WorldEngine) -> list[str]:
    return [body["messages"][-1]["content"] for body in await bodies_at(engine)]


async def bodies_at(engine: WorldEngine) -> list[dict[str, Any]]:
    bodies = [request["body"] for request in (await engine.stats())["requests"]]
    return [json.loads(body) if isinstance(body, str) else body for body in bodies]


# -- engines at an address of the configuration -----------------------------------------------------------------------


@scenario
async def test_requests_wait_for_the_engine_that_is_started_for_them_and_are_answered_in_their_order(
    world: World,
) -> None:
    engine = await world.engine(running=False)
    text = sleeping_config(world.redis, engine).replace("served_model", "max_in_flight = 1\nserved_model")
    router = await world.router(text)
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


@scenario
async def test_nothing_is_generated_for_a_client_that_has_left_while_it_waited(world: World) -> None:
    engine = await world.engine(running=False)
    router = await world.router(sleeping_config(world.redis, engine))
    left, stays = await ask_in_order(router, "The sea?", "The moon?")
    left.cancel()
    await has_queued(1, router)
    await engine.start()
    assert (await stays).status_code == 200
    assert await prompts_at(engine) == ["The moon?"]
    assert (await router.metrics())[WAKES.format("left")] == 1


@scenario
async def test_equal_requests_at_two_routers_wait_together_and_share_one_generation(world: World) -> None:
    engine = await world.engine(running=False)
    text = sleeping_config(world.redis, engine)
    first, second = await world.router(text), await world.router(text)
    asked = await ask_in_order(first, "The sea?")
    asked.append(asyncio.create_task(second.chat("The sea?")))
    asked.append(asyncio.create_task(second.chat("The moon?")))
    await has_queued(2, first, second)
    await asyncio.sleep(2.5)  # longer than a lease on a generation, which its leader has to renew while it waits
    async with Launcher(engine, first, second):
        answers = await asyncio.gather(*asked)
        assert [answer.status_code for answer in answers] == [200, 200, 200]
        assert answers[0].json()["choices"] == answers[1].json()["choices"]
        assert sorted(await prompts_at(engine)) == ["The moon?", "The sea?"]


@scenario
async def test_a_request_goes_on_waiting_when_the_router_of_an_equal_one_stops(world: World) -> None:
    engine = await world.engine(running=False)
    text = sleeping_config(world.redis, engine)
    second = await world.router(text)
    first = await world.router(text)
    (refused,) = await ask_in_order(first, "The sea?")
    follower = asyncio.create_task(second.chat("The sea?"))
    await eventually(lambda: first.application._runtime.has_followers)

    async def end_events() -> None:
        first.application.end_events()

    await first.run_inside(end_events())
    assert (await refused).json()["error"]["code"] == "stopping"
    await first.stop()
    await has_queued(1, second)
    await engine.start()
    assert (await follower).status_code == 200


@scenario
async def test_a_request_that_finds_its_engine_gone_waits_for_the_next_one(world: World) -> None:
    engine = await world.engine(running=False)
    await engine.start()
    router = await world.router(sleeping_config(world.redis, engine))
    assert (await router.chat("The sea?")).status_code == 200
    engine.kill()  # the router notices it at the next request at the latest
    (asked,) = await ask_in_order(router, "The moon?")
    async with Launcher(engine, router):
        assert (await asked).status_code == 200


@scenario
async def test_a_request_outlasts_an_engine_that_dies_in_its_start(world: World) -> None:
    engine = await world.engine(running=False)
    router = await world.router(sleeping_config(world.redis, engine))
    (asked,) = await ask_in_order(router, "The sea?")
    # It listens, and does not answer the router's check; then it is gone.
    dying = await asyncio.start_server(lambda _, writer: None, engine.name, PORT)
    await asyncio.sleep(PROBED)
    dying.close()
    assert not asked.done()
    async with Launcher(engine, router):
        assert (await asked).status_code == 200


@pytest.mark.parametrize("requests", [1, 8])  # the failures of eight open its breaker
@scenario
async def test_requests_outlast_an_engine_that_dies_with_them_after_its_start(world: World, requests: int) -> None:
    engine = await world.engine(running=False)
    router = await world.router(sleeping_config(world.redis, engine))
    asked = await ask_in_order(router, *[f"The sea {number}?" for number in range(requests)])
    dying = ScriptedEngine(hold=True)
    await dying.start(PORT, host=engine.name)
    await eventually(lambda: len(dying.bodies) == requests)
    await dying.die()
    await has_queued(requests, router)
    await engine.start()
    answers = await asyncio.gather(*asked)
    assert [answer.status_code for answer in answers] == [200] * requests


@scenario
async def test_a_request_without_room_in_the_queue_fails_at_once_if_the_fallback_is_down_too(world: World) -> None:
    engine = await world.engine(running=False)
    both = at(engine) | {"mistral": ("mistral", "any", "http://nowhere:8000")}
    text = fall_back(router_config(world.redis.url, both)).replace("fallback =", 'wake = "60s"\nfallback =')
    text = text.replace("served_model", "max_in_flight = 1\nserved_model", 1)
    router = await world.router(text)
    asked = await ask_in_order(router, *[f"The sea {number}?" for number in range(16)])
    answer = await asyncio.wait_for(router.chat("The moon?"), 10)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_full")
    assert int(answer.headers["retry-after"]) >= 1
    for each in asked:
        each.cancel()
    await has_queued(0, router)


@scenario
async def test_a_request_whose_engine_dies_after_a_reload_waits_for_the_engine_of_the_new_configuration(
    world: World,
) -> None:
    engine = await world.engine(running=False)
    await engine.start()
    text = sleeping_config(world.redis, engine)
    router = await world.router(text)
    engine.freeze()
    asked = asyncio.create_task(router.chat("The sea?"))

    async def is_sent() -> bool:
        return (await router.metrics()).get('llm_requests_in_flight{engine="llama-0"}') == 1

    await eventually(is_sent)
    await router.reload(text + "\n[breaker]\nfailures = 7\n")  # a new object for each engine
    engine.kill()
    await has_queued(1, router)
    async with Launcher(engine, router):
        assert (await asked).status_code == 200


@scenario
async def test_a_request_for_a_model_that_a_reload_removes_does_not_wait_for_it_any_longer(world: World) -> None:
    engine = await world.engine(running=False)
    mistral = await world.engine(MISTRAL)
    router = await world.router(sleeping_config(world.redis, engine))
    (asked,) = await ask_in_order(router, "The sea?")
    others = {"mistral": ("mistral", "any", mistral.url)}
    await router.reload(router_config(world.redis.url, others))
    answer = await asyncio.wait_for(asked, 10)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


# -- engines that announce themselves ---------------------------------------------------------------------------------


# -- what the client sees ---------------------------------------------------------------------------------------------


@scenario
async def test_a_stream_that_finds_its_engine_gone_gets_comments_while_it_waits_for_the_next_one(world: World) -> None:
    engine = await world.engine(running=False)
    await engine.start()
    router = await world.router(sleeping_config(world.redis, engine, rest=AT_ONCE))
    engine.kill()  # the router believes that it is up
    async with open_stream(router, "The sea?") as raw:
        await engine.start()
        received = await raw.read_to_end()
    assert received.startswith(b": waiting for an engine of llama to start, ")
    assert received.endswith(b"data: [DONE]\n\n")


@scenario
async def test_a_stream_whose_engine_takes_long_for_the_first_token_gets_no_comments(world: World) -> None:
    engine = await world.engine(running=False)
    await engine.start()
    router = await world.router(sleeping_config(world.redis, engine, rest=AT_ONCE))
    engine.freeze()
    asked = asyncio.create_task(router.chat("The sea?", stream=True))
    await asyncio.sleep(0.5)  # longer than until the first comment
    engine.thaw()
    answer = await asked
    assert answer.headers["x-engine"] == "llama-0"
    assert answer.text.startswith("data: ")


@scenario
async def test_a_stream_that_has_had_comments_ends_with_an_error_event_if_no_engine_starts(world: World) -> None:
    engine = await world.engine(running=False)
    router = await world.router(sleeping_config(world.redis, engine, wake="500ms", rest=AT_ONCE))
    answer = await router.chat("The sea?", stream=True)
    assert answer.status_code == 200
    comment, event = answer.text.split("\n\n", 1)
    assert comment.startswith(": waiting for")
    assert event.startswith("data: ")
    assert '"code":"engine_starting"' in event
    assert "[DONE]" not in event


@scenario
async def test_a_stream_that_fails_before_its_first_comment_has_the_status_of_its_error(world: World) -> None:
    engine = await world.engine(running=False)
    router = await world.router(sleeping_config(world.redis, engine, wake="300ms"))
    assert (await router.chat("The sea?", stream=True)).status_code == 503


@scenario
async def test_a_client_that_does_not_want_to_wait_gets_503_at_once(world: World) -> None:
    engine = await world.engine(running=False)
    router = await world.router(sleeping_config(world.redis, engine))
    (waiting,) = await ask_in_order(router, "The sea?")
    answer = await router.chat("The sea?", headers={"prefer": "respond-async, wait=0"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_starting")
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert (await router.chat("The sea?", headers={"prefer": "wait=1"})).status_code == 503
    metrics = await router.metrics()
    assert (metrics[WAKES.format("declined")], metrics[WAKES.format("timeout")]) == (2, 0)
    await engine.start()
    assert (await waiting).status_code == 200


@scenario
async def test_the_fallback_answers_at_once_unless_the_client_prefers_to_wait(world: World) -> None:
    engine = await world.engine(running=False)
    mistral = await world.engine(MISTRAL)
    both = at(engine) | {"mistral": ("mistral", "any", mistral.url)}
    text = fall_back(router_config(world.redis.url, both)).replace(
        'fallback = "mistral"', 'fallback = "mistral"\nwake = "60s"'
    )
    router = await world.router(text)
    assert (await router.chat("The sea?")).headers["x-fallback"] == "mistral"
    assert (await router.metrics())[WAKES.format("fallback")] == 1
    (waiting,) = await ask_in_order(router, "The sea?", headers={"prefer": "wait=30"})
    impatient = await router.chat("The sea?", headers={"prefer": "wait=1"})
    assert impatient.headers["x-fallback"] == "mistral"
    await engine.start()
    answer = await waiting
    assert answer.headers["x-engine"] == "llama-0"
    assert "x-fallback" not in answer.headers


@scenario
async def test_fields_that_a_draft_would_not_support_are_kept_while_the_engine_sleeps(world: World) -> None:
    engine = await world.engine(running=False)
    router = await world.router(sleeping_config(world.redis, engine))
    (asked,) = await ask_in_order(router, "The sea?", min_p=0.1)
    await engine.start()
    answer = await asked
    assert answer.status_code == 200
    assert "x-adjusted" not in answer.headers
    assert (await bodies_at(engine))[0]["min_p"] == 0.1


# -- operation --------------------------------------------------------------------------------------------------------


@scenario
async def test_a_router_whose_models_sleep_is_ready_and_healthy_and_says_so_in_its_metrics(world: World) -> None:
    engine = await world.engine(running=False)
    router = await world.router(sleeping_config(world.redis, engine))
    assert (await router.http.get("/readyz")).status_code == 200
    health = await router.http.get("/healthz")
    assert (health.status_code, health.json()["status"]) == (200, "healthy")
    assert health.json()["engines"]["llama-0"]["asleep"] is True
    metrics = await router.metrics()
    assert metrics['roundhouse_engine_asleep{engine="llama-0"}'] == 1
    assert metrics['roundhouse_engine_up{engine="llama-0"}'] == 0
    awake = await world.router(router_config(world.redis.url, at(engine)))
    assert (await awake.http.get("/readyz")).status_code == 503
    assert 'roundhouse_engine_asleep{engine="llama-0"}' not in await awake.metrics()


@scenario
async def test_an_engine_is_not_asleep_any_more_when_a_reload_ends_that_its_model_waits_for_starts(
    world: World,
) -> None:
    engine = await world.engine(running=False)
    router = await world.router(sleeping_config(world.redis, engine))
    await router.reload(router_config(world.redis.url, at(engine)))
    metrics = await router.metrics()
    assert metrics['roundhouse_engine_up{engine="llama-0"}'] == 0
    assert 'roundhouse_engine_asleep{engine="llama-0"}' not in metrics  # else no alert fires for it


@scenario
async def test_nobody_waits_for_an_engine_that_an_operator_has_drained(world: World) -> None:
    engine = await world.engine(running=False)
    rest = f'[auth]\nadmin_keys = ["{hash_key(b"admin")}"]'
    router = await world.router(sleeping_config(world.redis, engine, rest=rest))
    headers = {"authorization": "Bearer admin"}
    drained = await router.http.post("/admin/engines/llama-0/drain", headers=headers)
    assert drained.status_code == 200
    answer = await router.chat("The sea?")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_engine")


@scenario
async def test_an_engine_that_takes_too_long_gives_503_with_a_retry_after_that_follows_from_earlier_starts(
    world: World,
) -> None:
    engine, redis = await world.engine(running=False), world.redis.client
    await redis.rpush("rh:1:router:starts:llama", "20", "25", "30")
    router = await world.router(sleeping_config(world.redis, engine, wake="500ms"))
    answer = await router.chat("The sea?")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "engine_starting"
    assert 20 <= int(answer.headers["retry-after"]) <= 25
    metrics = await router.metrics()
    assert metrics[WAKES.format("timeout")] == 1
    assert metrics[QUEUED] == 0


@scenario
async def test_how_long_a_start_took_is_stored_for_all_routers(world: World) -> None:
    engine, redis = await world.engine(running=False), world.redis.client
    router = await world.router(sleeping_config(world.redis, engine))
    asked = await ask_in_order(router, "The sea?", "The moon?")
    async with Launcher(engine, router):
        await asyncio.gather(*asked)
        starts = await eventually(lambda: redis.lrange("rh:1:router:starts:llama", 0, -1))
    (seconds,) = map(float, starts)
    assert seconds > 0
    assert await redis.ttl("rh:1:router:starts:llama") > 86400


@scenario
async def test_requests_wait_on_while_another_router_tests_the_engine_that_has_started(world: World) -> None:
    engine, redis = await world.engine(running=False), world.redis.client
    router = await world.router(sleeping_config(world.redis, engine))
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


@scenario
async def test_a_request_waits_on_while_other_engines_come_and_the_configuration_is_reloaded(world: World) -> None:
    engine, redis = await world.engine(running=False), world.redis.client
    mistral = await world.engine(MISTRAL)
    both = at(engine) | {"mistral": ("mistral", "any", mistral.url)}
    text = with_wake(router_config(world.redis.url, both)).replace("served_model", "max_in_flight = 1\nserved_model", 1)
    router = await world.router(text)
    (first,) = await ask_in_order(router, "The sea?")
    other = AnnouncedEngine(name="new", model="mistral", task="any", url=mistral.url, served_model=MISTRAL)
    await redis.execute_command(*write_command("test", [other]))

    async def has_new() -> bool:
        return "new" in (await router.http.get("/healthz")).json()["engines"]

    await eventually(has_new)
    assert await queued(router) == 1
    (second,) = await ask_in_order(router, "The moon?")
    await router.reload(text + "\n[breaker]\nfailures = 7\n")  # gives every engine a new object
    (third,) = await ask_in_order(router, "The sun?")
    assert await queued(router) == 3
    async with Launcher(engine, router):
        answers = await asyncio.gather(first, second, third)
        assert [answer.status_code for answer in answers] == [200, 200, 200]
        assert await prompts_at(engine) == ["The sea?", "The moon?", "The sun?"]
