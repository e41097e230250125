"""Engines have a concurrency limit; further requests wait in a bounded queue, for a bounded time."""

import asyncio
import logging
from typing import Any

import httpx
import pytest

from router.api.access.auth import hash_key
from router.flow.attempts.admission import max_queue_length
from tests.support.router_server import LLAMA, MISTRAL, router_config, with_fallback
from tests.support.scripted_engine import ScriptedEngine
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame, chat_text
from tests.support.streaming_client import open_stream
from tests.support.waiting import eventually
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

ANSWER = (ROLE_FRAME + chat_frame(content="one "), chat_frame(content="two", finish="stop") + DONE_FRAME)
TENANTS = '[auth]\nmode = "header"\n[[tenant]]\nname = "acme"\n[[tenant]]\nname = "beta"\n'
ACME, BETA = {"x-tenant-id": "acme"}, {"x-tenant-id": "beta"}
QUEUED = 'llm_requests_queued{model="llama"}'

Asked = asyncio.Future[httpx.Response]


def bounded(text: str, places: int) -> str:
    return text.replace("served_model", f"max_in_flight = {places}\nserved_model")


class Setting:
    """A router whose only engine has a limit, and continues a response on command."""

    def __init__(self, router: WorldRouter, engine: ScriptedEngine) -> None:
        self.router = router
        self.engine = engine

    def ask(self, prompt: str, **fields: Any) -> Asked:
        return asyncio.ensure_future(self.router.chat(prompt, stream=True, **fields))

    async def started_requests(self, count: int) -> list[str]:
        """The prompts that the engine has received, once there are `count`."""
        await eventually(lambda: len(self.engine.bodies) >= count)
        assert len(self.engine.bodies) == count
        return [prompt_of(body) for body in self.engine.bodies]

    async def queued(self, count: int) -> None:
        async def are() -> bool:
            return (await self.router.metrics()).get(QUEUED, 0) == count

        await eventually(are)

    def finish(self, answers: int = 1) -> None:
        for _ in range(answers):
            self.engine.chunk_permits.release()


def prompt_of(body: bytes) -> str:
    return body.partition(b'"content":"')[2].partition(b'"')[0].decode()


async def setting(world: World, places: int = 1, *, rest: str = "", cache: str = "") -> Setting:
    engine = await world.scripted_engine(*ANSWER, paced=True)
    table = {"scripted": ("llama", "any", engine.url)}
    text = bounded(router_config(world.redis.url, table, rest=rest, cache=cache), places)
    return Setting(await world.router(text), engine)


# -- slots and their order --------------------------------------------------------------------------------------------


@scenario
async def test_an_engine_never_exceeds_its_limit_and_queued_requests_are_served_in_order(world: World) -> None:
    here = await setting(world, places=2)
    requests = []
    for number in range(6):
        requests.append(here.ask(f"{number}?"))
        await (here.started_requests(number + 1) if number < 2 else here.queued(number - 1))
    for done in range(1, 7):
        assert await here.started_requests(min(6, done + 1)) == [f"{number}?" for number in range(min(6, done + 1))]
        here.finish()
    assert [chat_text(await answer) for answer in requests] == ["one two"] * 6
    await here.queued(0)


@scenario
async def test_json_and_streams_wait_in_the_same_queue(world: World) -> None:
    engine = await world.engine(tokens_per_second=400)
    text = router_config(world.redis.url, {"one": ("llama", "any", engine.url)})
    router = await world.router(bounded(text, 3))
    answers = await asyncio.gather(*(router.chat(f"{n}?", stream=n % 2 == 0) for n in range(12)))
    assert [answer.status_code for answer in answers] == [200] * 12
    assert (await engine.metrics())['vllm:num_requests_running{engine="0",model_name="' + LLAMA + '"}'] == 0
    assert (await router.metrics())[QUEUED] == 0


@scenario
async def test_an_engine_with_a_free_slot_is_used_before_a_request_waits(world: World) -> None:
    chat = await world.engine()
    code = await world.engine()
    table = {"llama-chat": ("llama", "chat", chat.url), "llama-code": ("llama", "code", code.url)}
    router = await world.router(bounded(router_config(world.redis.url, table), 1))
    await chat.set_faults({"fault": "stall", "after": 3})
    async with open_stream(router, "The sea?") as first:
        assert first.headers["x-engine"] == "llama-chat"
        answer = await router.chat("The land?")
        assert (answer.headers["x-engine"], answer.headers["x-task"]) == ("llama-code", "chat")


@scenario
async def test_a_waiting_request_takes_the_first_free_slot_of_any_engine(world: World) -> None:
    chat = await world.engine()
    code = await world.engine()
    table = {"llama-chat": ("llama", "chat", chat.url), "llama-code": ("llama", "code", code.url)}
    router = await world.router(bounded(router_config(world.redis.url, table), 1))
    for engine in (chat, code):
        await engine.set_faults({"fault": "stall", "after": 3, "match": "hold"})

    async def one_is_queued() -> bool:
        return (await router.metrics())[QUEUED] == 1

    async with open_stream(router, "hold 1"):
        async with open_stream(router, "hold 2") as second:
            assert second.headers["x-engine"] == "llama-code"
            waiting = asyncio.ensure_future(router.chat("The sea?"))
            await eventually(one_is_queued)
        answer = await waiting
        assert (answer.status_code, answer.headers["x-engine"]) == (200, "llama-code")


@scenario
async def test_a_tenant_with_one_request_is_served_before_the_rest_of_a_tenant_that_filled_the_queue(
    world: World,
) -> None:
    here = await setting(world, rest=TENANTS)
    requests = [here.ask("a0?", headers=ACME)]
    await here.started_requests(1)
    for number in range(1, 6):
        requests.append(here.ask(f"a{number}?", headers=ACME))
        await here.queued(number)
    requests.append(here.ask("b?", headers=BETA))
    await here.queued(6)
    here.finish(7)
    await asyncio.gather(*requests)
    assert await here.started_requests(7) == ["a0?", "b?", "a1?", "a2?", "a3?", "a4?", "a5?"]


@scenario
async def test_an_engine_that_fails_passes_its_slot_to_the_next_request(world: World) -> None:
    engine = await world.engine(ttft=0.05)
    text = router_config(world.redis.url, {"one": ("llama", "any", engine.url)})
    router = await world.router(bounded(text, 1))
    await engine.set_faults({"fault": "status", "code": 500, "times": 2}, {"fault": "drop", "after": 2, "times": 1})
    requests = [router.chat(f"{n}?", stream=n % 2 == 0) for n in range(8)]
    answers = await asyncio.gather(*requests)
    assert {answer.status_code for answer in answers} <= {200, 502}
    assert [answer.status_code for answer in answers].count(200) >= 5
    health = (await router.http.get("/healthz")).json()
    assert health["engines"]["one"]["in_flight"] == 0


@scenario
async def test_a_model_without_a_free_slot_in_time_is_replaced_by_its_fallback(world: World) -> None:
    llama = await world.engine()
    mistral = await world.engine(MISTRAL)
    table = {"one": ("llama", "any", llama.url), "other": ("mistral", "any", mistral.url)}
    text = bounded(router_config(world.redis.url, table, rest='[timeouts]\nqueue = "100ms"'), 1)
    router = await world.router(with_fallback(text))
    await llama.set_faults({"fault": "stall", "after": 3})
    async with open_stream(router, "first"):
        answer = await router.chat("second")
        assert (answer.status_code, answer.headers["x-fallback"]) == (200, "mistral")
    assert (await router.metrics())[QUEUED] == 0


@scenario
async def test_no_request_waits_for_an_engine_with_an_open_breaker(world: World) -> None:
    engine = await world.engine()
    table = {"one": ("llama", "any", engine.url)}
    rest = '[breaker]\nfailures = 1\ncooldown = "1h"'
    router = await world.router(bounded(router_config(world.redis.url, table, rest=rest), 1))
    await engine.set_faults({"fault": "stall", "after": 3, "match": "hold"}, {"fault": "status", "code": 500})
    assert (await router.chat("fails")).status_code >= 500
    for stream in (False, True):
        answer = await router.chat("comes too late", stream=stream)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "circuit_open")
    assert (await router.http.get("/healthz")).json()["engines"]["one"]["in_flight"] == 0


# -- engines that no request can get any more -------------------------------------------------------------------------


PATIENT = '[timeouts]\nqueue = "1h"\n'
ADMIN_KEY = f'[auth]\nadmin_keys = ["{hash_key(b"admin-key")}"]\n'
ADMIN = {"authorization": "Bearer admin-key"}


async def change(router: WorldRouter, what: str) -> None:
    answer = await router.http.post(f"/admin/engines/scripted/{what}", headers=ADMIN)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_who_waits_for_an_engine_that_is_drained_gets_at_once_what_a_new_request_gets(
    world: World, stream: bool
) -> None:
    here = await setting(world, rest=PATIENT + ADMIN_KEY)
    first = here.ask("first")
    await here.started_requests(1)
    waiting = asyncio.ensure_future(here.router.chat("waits", stream=stream))
    await here.queued(1)
    await change(here.router, "drain")
    async with asyncio.timeout(5):
        answers = [await waiting, await here.router.chat("comes later", stream=stream)]
    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in answers] == [(503, "no_engine")] * 2
    assert answers[0].json() == answers[1].json()
    assert answers[0].headers["retry-after"] == answers[1].headers["retry-after"]
    await here.queued(0)
    here.finish()
    assert chat_text(await first) == "one two", "what runs at a drained engine ends there"
    assert await here.started_requests(1) == ["first"]


@scenario
async def test_who_waits_for_engines_that_are_drained_goes_to_the_fallback_at_once(world: World) -> None:
    llama = await world.engine()
    mistral = await world.engine(MISTRAL)
    table = {"scripted": ("llama", "any", llama.url), "other": ("mistral", "any", mistral.url)}
    text = with_fallback(bounded(router_config(world.redis.url, table, rest=PATIENT + ADMIN_KEY), 1))
    router = await world.router(text)
    await llama.set_faults({"fault": "stall", "after": 3})
    async with open_stream(router, "first"):
        waiting = asyncio.ensure_future(router.chat("second"))

        async def one_waits() -> bool:
            return (await router.metrics())[QUEUED] == 1

        await eventually(one_waits)
        await change(router, "drain")
        async with asyncio.timeout(5):
            answer = await waiting
        assert (answer.status_code, answer.headers["x-fallback"]) == (200, "mistral")


@scenario
async def test_who_waits_for_an_engine_that_goes_down_is_told_so_and_does_not_wait_for_its_return(world: World) -> None:
    here = await setting(world, rest=PATIENT, cache='abandon = "0s"')
    first = here.ask("first")
    await here.started_requests(1)
    waiting = [here.ask(f"{number}?") for number in range(3)]
    await here.queued(3)
    await here.engine.die()
    first.cancel()  # which frees the slot
    async with asyncio.timeout(5):
        answers = await asyncio.gather(*waiting)
    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in answers] == [(503, "no_engine")] * 3
    await here.queued(0)


@scenario
async def test_who_waits_for_an_engine_whose_breaker_opens_is_told_so_at_once(world: World) -> None:
    engine = await world.engine(ttft=0.05)
    table = {"one": ("llama", "any", engine.url)}
    rest = PATIENT + '[breaker]\nfailures = 1\ncooldown = "1h"'
    router = await world.router(bounded(router_config(world.redis.url, table, rest=rest), 1))
    await engine.set_faults({"fault": "status", "code": 500})
    async with asyncio.timeout(5):
        answers = await asyncio.gather(*(router.chat(f"{number}?") for number in range(4)))
    assert {answer.json()["error"]["code"] for answer in answers} <= {"engine_failed", "circuit_open"}


# -- requests that do not wait ----------------------------------------------------------------------------------------


@scenario
async def test_hits_and_followers_never_wait(world: World) -> None:
    here = await setting(world)
    first = here.ask("known")
    await here.started_requests(1)
    here.finish()
    assert (await first).headers["x-cache"] == "MISS"
    leading = here.ask("in flight")
    await here.started_requests(2)
    waiting = here.ask("waits")
    await here.queued(1)
    for stream in (False, True):
        assert (await here.router.chat("known", stream=stream)).headers["x-cache"] == "HIT"
    async with open_stream(here.router, "in flight") as follower:
        assert follower.headers["x-cache"] == "COALESCED"
        await follower.read_until_text("one")
        followers = [here.ask("waits") for _ in range(5)]
        await here.queued(1)  # one in-flight request, however many subscribers it has
        here.finish(2)
        await follower.read_to_end()
    assert {(await answer).status_code for answer in (leading, waiting, *followers)} == {200}
    assert await here.started_requests(3) == ["known", "in flight", "waits"]


# -- limits of the queue ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_a_request_that_waits_too_long_gets_an_error(world: World, stream: bool) -> None:
    here = await setting(world, rest='[timeouts]\nqueue = "200ms"')
    first = here.ask("first")
    await here.started_requests(1)
    answer = await here.router.chat("second", stream=stream)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_timeout")
    assert answer.json()["error"]["type"] == "service_unavailable_error"
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert answer.headers["x-cache"] == "MISS"
    assert "x-engine" not in answer.headers
    await here.queued(0)
    assert (await here.router.metrics())['llm_requests_rejected_total{reason="queue_timeout",tenant="default"}'] == 1
    here.finish()
    assert chat_text(await first) == "one two"
    assert len(here.engine.bodies) == 1, "the engine got no request"


@pytest.mark.parametrize(("heartbeat", "status", "start"), [("0s", 503, "{"), ("100ms", 200, ": heartbeat")])
@scenario
async def test_a_stream_counts_as_refused_if_it_waits_too_long_also_after_a_heartbeat(
    world: World, caplog: pytest.LogCaptureFixture, heartbeat: str, status: int, start: str
) -> None:
    here = await setting(world, rest=f'[timeouts]\nqueue = "300ms"\nheartbeat = "{heartbeat}"\n{ADMIN_KEY}')
    first = here.ask("first")
    await here.started_requests(1)
    with caplog.at_level(logging.INFO, "roundhouse.access"):
        answer = await here.router.chat("second", stream=True)
    assert (answer.status_code, answer.text.startswith(start)) == (status, True)
    assert '"code":"queue_timeout"' in answer.text
    lines = [record.getMessage() for record in caplog.records if record.name == "roundhouse.access"]
    assert " status=503 outcome=refused " in lines[0]
    metrics = await here.router.metrics()
    assert metrics['llm_requests_rejected_total{reason="queue_timeout",tenant="default"}'] == 1
    assert [name for name in metrics if name.startswith("llm_requests_total") and 'status="503"' in name]
    (shown,) = (await here.router.http.get("/admin/requests", headers=ADMIN)).json()["requests"]
    assert (shown["outcome"], shown["status"], shown["error"]) == ("refused", 503, "queue_timeout")

    async def is_in_usage() -> bool:
        return "queue_timeout" in (await here.router.http.get("/admin/usage", headers=ADMIN)).text

    await eventually(is_in_usage)
    here.finish()
    await first


@scenario
async def test_a_full_queue_refuses_at_once_and_drains(world: World) -> None:
    here = await setting(world)
    requests = [here.ask("first")]
    await here.started_requests(1)
    requests += [here.ask(f"{number}?") for number in range(max_queue_length(1))]
    await here.queued(max_queue_length(1))
    for stream in (False, True):
        answer = await here.router.chat("one too many", stream=stream)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_full")
        assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert (await here.router.metrics())['llm_requests_rejected_total{reason="queue_full",tenant="default"}'] == 2
    here.finish(len(requests))
    assert {(await answer).status_code for answer in requests} == {200}
    await here.queued(0)
    again = here.ask("one too many")
    here.finish()
    assert (await again).status_code == 200


@scenario
async def test_a_tenant_that_fills_the_queue_is_evicted_for_another(world: World) -> None:
    here = await setting(world, rest=TENANTS)
    requests = [here.ask("first", headers=ACME)]
    await here.started_requests(1)
    for number in range(max_queue_length(1)):
        requests.append(here.ask(f"a{number}?", headers=ACME))
        await here.queued(number + 1)
    waiting = here.ask("b?", headers=BETA)
    newest = await requests.pop()
    assert (newest.status_code, newest.json()["error"]["code"]) == (429, "tenant_queue_full")
    assert newest.json()["error"]["type"] == "rate_limit_error"
    assert int(newest.headers["retry-after"]) >= 1
    refused = await here.router.chat("one too many", headers=ACME)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "tenant_queue_full")
    here.finish(len(requests) + 1)
    assert {(await answer).status_code for answer in (*requests, waiting)} == {200}
    assert (await here.started_requests(len(requests) + 1))[1] == "b?"


@pytest.mark.parametrize("on_abandon", ["cancel", "finish"])
@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_a_client_that_disconnects_while_queued_leaves_the_queue_and_costs_no_engine_work(
    world: World, stream: bool, on_abandon: str
) -> None:
    here = await setting(world, cache=f'on_abandon = "{on_abandon}"')
    first = here.ask("first")
    await here.started_requests(1)
    leaving = asyncio.ensure_future(here.router.chat("leaves", stream=stream))
    await here.queued(1)
    after = here.ask("stays")
    await here.queued(2)
    leaving.cancel()
    await here.queued(1)
    here.finish(2)
    assert [chat_text(await answer) for answer in (first, after)] == ["one two"] * 2
    assert await here.started_requests(2) == ["first", "stays"]


@scenario
async def test_a_flight_stays_in_the_queue_while_any_subscriber_waits_for_it(world: World) -> None:
    here = await setting(world)
    first = here.ask("first")
    await here.started_requests(1)
    leads = here.ask("wanted by two")
    await here.queued(1)
    follows = here.ask("wanted by two")
    another = here.ask("another")
    await here.queued(2)
    await asyncio.sleep(1)  # the request that follows is no flight of its own, and may arrive last
    leads.cancel()
    here.finish(3)
    assert [chat_text(await answer) for answer in (first, follows, another)] == ["one two"] * 3
    assert await here.started_requests(3) == ["first", "wanted by two", "another"]


def test_the_queue_length_follows_the_number_of_slots_within_bounds() -> None:
    assert [max_queue_length(places) for places in (1, 8, 64, 10_000)] == [16, 32, 256, 1024]
