"""What happens at a seam of a stream: who reads it, who leaves, and what else has failed by then."""

import asyncio
import json
import os
import time
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, NamedTuple

import pytest

from router.api.access.auth import hash_key
from router.core.cache.redis_keys import breaker_key
from router.flow.attempts import engine_health
from router.shared.engines.announcements import AnnouncedEngine, write_command
from router.upstream.adapters import ListedAdapter
from tests.support.router_server import LLAMA, chat_body, router_config
from tests.support.sse_answers import DONE_FRAME, chat_delta_text, parse_events
from tests.support.streaming_client import LiveStream, open_stream
from tests.support.toy_model import ToyModel
from tests.support.toy_script import Break, ToyScript, start_toys, toy_engines
from tests.support.waiting import eventually
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

ANSWER = "The sea is wide, and the möwe 🙂 flies over it."
ADMIN = {"authorization": "Bearer admin-key"}
REST = f'[auth]\nadmin_keys = ["{hash_key(b"admin-key")}"]\n'


def new_engine(name: str, *breaks: Break, **options: Any) -> ToyScript:
    return ToyScript(ToyModel(ANSWER, [3, 1, 2]), *breaks, name=name, **options)


class Engines(NamedTuple):
    """`first` breaks the stream of its first request off once `first.may_break` is set; `second` is whole."""

    first: ToyScript
    second: ToyScript
    as_config: dict[str, tuple[str, str, str]]


async def start_engines() -> Engines:
    first, second = new_engine("a", Break(1500)), new_engine("b")
    first.may_break.clear()
    return Engines(first, second, await start_toys(first, second))


async def start(world: World, text: str, *engines: ToyScript) -> WorldRouter:
    router = await world.router(text)
    for engine in engines:
        await engine.asked_for_models.wait()
    return router


async def is_idle(router: WorldRouter) -> bool:
    page = (await router.http.get("/healthz")).json()
    return not any(engine["in_flight"] for engine in page["engines"].values())


async def results(router: WorldRouter) -> list[str]:
    samples = await router.metrics()
    return [
        name.partition('result="')[2].partition('"')[0]
        for name, value in samples.items()
        if name.startswith("llm_continuations_total{") and value
    ]


async def claims(world: World) -> list[str]:
    return [key async for key in world.redis.client.scan_iter("rh:1:claim:*")]


async def read(stream: LiveStream) -> bytes:
    return await stream.read_to_end()


def record_of(router: WorldRouter) -> Any:
    """The GenerationRecord of the only request in flight."""
    return inflight_of(router).record


def inflight_of(router: WorldRouter) -> Any:
    (inflight,) = router.application._runtime.services.cache.coalescer._active_by_id.values()
    return inflight


def error_of(answer: bytes) -> Any:
    """The error event that ends a stream."""
    assert DONE_FRAME not in answer
    return parse_events(answer)[-1]["error"]


@scenario
async def test_every_reader_gets_the_same_stream(world: World) -> None:
    first, second, as_config = await start_engines()
    text = router_config(world.redis.url, as_config)
    router, other = [await start(world, text, first, second) for _ in range(2)]
    second.may_answer.clear()
    async with AsyncExitStack() as stack:

        async def join(where: WorldRouter) -> LiveStream:
            stream = await stack.enter_async_context(open_stream(where, "x", temperature=0, seed=1))
            await stream.read_until_text("The")
            return stream

        streams = [await join(where) for where in (router, router, other)]
        first.may_break.set()
        await eventually(lambda: second.bodies)
        streams += [await join(where) for where in (router, other)]
        second.may_answer.set()
        answers = await asyncio.gather(*map(read, streams))
        assert [stream.headers["x-cache"] for stream in streams] == ["MISS", *["COALESCED"] * 4]
    assert set(answers) == {answers[0]}
    assert chat_delta_text(parse_events(answers[0])) == ANSWER
    assert answers[0].endswith(DONE_FRAME)
    assert len(first.bodies) == len(second.bodies) == 1
    assert (await results(router), await results(other)) == (["continued"], [])


@scenario
async def test_a_client_that_leaves_at_the_seam_leaves_nothing(world: World) -> None:
    first, second, as_config = await start_engines()
    second.breaks.append(Break(0, "stall"))
    router = await start(world, router_config(world.redis.url, as_config), first, second)
    async with open_stream(router, "x", temperature=0, seed=2) as stream:
        await stream.read_until_text("The")
        assert await claims(world)
        record = record_of(router)
        record.attempts[0].sent_at -= 50.0
        first.may_break.set()
        await second.stalled.wait()
    await second.engine.client_disconnected.wait()
    await eventually(lambda: is_idle(router))
    await asyncio.sleep(0.1)
    assert not await claims(world)
    assert len(second.bodies) == 1
    assert record.gpu_seconds(time.perf_counter()) > 50.0  # those of the first engine
    assert await results(router) == ["cancelled"]


@pytest.mark.skipif("ROUNDHOUSE_TESTS_COMPILED" in os.environ, reason="compiled modules have their constants inline")
@scenario
async def test_without_a_token_of_their_retry_budget_no_stream_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, as_config = await start_engines()
    monkeypatch.setattr(engine_health, "CONTINUATIONS_PER_SECOND", 0.0)
    router = await start(world, router_config(world.redis.url, as_config), first, second)
    first.may_break.set()
    answer = await router.chat("x", stream=True, temperature=0, seed=4)
    assert error_of(answer.content)["code"] == "engine_failed"
    assert second.bodies == []
    assert await is_idle(router)


@scenario
async def test_a_refusal_of_the_next_engine_is_no_error_of_the_client(world: World) -> None:
    first, second, as_config = await start_engines()
    second.breaks.append(Break(0, "refuse"))
    router = await start(world, router_config(world.redis.url, as_config), first, second)
    first.may_break.set()
    answer = await router.chat("x", stream=True, temperature=0, seed=5)
    error = error_of(answer.content)
    assert (error["code"], error["type"]) == ("engine_failed", "upstream_error")
    assert "out of range" not in answer.text
    assert len(second.bodies) == 1
    assert await is_idle(router)
    health = (await router.http.get("/healthz")).json()
    assert health["engines"]["b"]["breaker"] == "closed"


@scenario
async def test_the_next_engine_must_have_a_free_slot(world: World) -> None:
    first, second, as_config = await start_engines()
    text = router_config(world.redis.url, as_config, rest='[timeouts]\nqueue = "100ms"')
    text = text.replace("served_model =", "max_in_flight = 1\nserved_model =")
    router = await start(world, text, first, second)
    second.may_answer.clear()
    async with open_stream(router, "x", temperature=0, seed=6) as stream:
        await stream.read_until_text("The")
        other = asyncio.create_task(router.chat("x", stream=True, temperature=0, seed=7))
        await eventually(lambda: second.bodies)
        first.may_break.set()
        assert error_of(await stream.read_to_end())["code"] == "engine_failed"
        second.may_answer.set()
        assert (await other).content.endswith(DONE_FRAME)
    assert len(second.bodies) == 1
    assert await results(router) == ["queue_timeout"]
    assert await is_idle(router)


@scenario
async def test_a_slot_that_becomes_free_is_waited_for(world: World) -> None:
    first, second, as_config = await start_engines()
    text = router_config(world.redis.url, as_config).replace("served_model =", "max_in_flight = 1\nserved_model =")
    router = await start(world, text, first, second)
    second.may_answer.clear()
    async with open_stream(router, "x", temperature=0, seed=8) as stream:
        await stream.read_until_text("The")
        other = asyncio.create_task(router.chat("x", stream=True, temperature=0, seed=9))
        await eventually(lambda: second.bodies)
        first.may_break.set()

        async def is_queued() -> bool:
            return any("queue" in name and value for name, value in (await router.metrics()).items())

        await eventually(is_queued)
        second.may_answer.set()
        assert chat_delta_text(parse_events(await stream.read_to_end())) == ANSWER
        await other
    assert await results(router) == ["continued"]


@scenario
async def test_an_engine_with_an_open_breaker_does_not_go_on(world: World) -> None:
    first, second, as_config = await start_engines()
    opened = {"failures": 0, "until": time.time() + 600.0, "pressed": None}
    await world.redis.client.set(breaker_key("b"), json.dumps(opened))
    router = await start(world, router_config(world.redis.url, as_config), first, second)

    async def is_open() -> bool:
        page = (await router.http.get("/healthz")).json()
        return bool(page["engines"]["b"]["breaker"] == "open")

    await eventually(is_open)
    first.may_break.set()
    answer = await router.chat("x", stream=True, temperature=0, seed=10)
    assert error_of(answer.content)["code"] == "engine_failed"
    assert second.bodies == []


@scenario
async def test_an_engine_without_room_for_another_token_is_not_asked(world: World) -> None:
    """The prompt has 3 tokens, and 6 have been said; when the stream began, nobody knew these numbers."""
    for context in (9, 10):
        first, second = new_engine("a", Break(1500)), new_engine("b", context=context)
        async with toy_engines(first, second) as as_config:
            router = await start(world, router_config(world.redis.url, as_config), first, second)
            answer = await router.chat("x", stream=True, temperature=0, seed=25 + context)
        if context == 10:
            assert len(second.bodies) == 1
            break
        assert error_of(answer.content)["code"] == "engine_failed"
        assert second.bodies == []
        assert await results(router) == ["no-engine"]


@scenario
async def test_an_engine_that_was_drained_meanwhile_does_not_go_on(world: World) -> None:
    first, second, as_config = await start_engines()
    router = await start(world, router_config(world.redis.url, as_config, rest=REST), first, second)
    async with open_stream(router, "x", temperature=0, seed=11) as stream:
        await stream.read_until_text("The")
        try:
            await router.http.post("/admin/engines/b/drain", headers=ADMIN)
            first.may_break.set()
            assert error_of(await stream.read_to_end())["code"] == "engine_failed"
        finally:
            await router.http.post("/admin/engines/b/resume", headers=ADMIN)
    assert second.bodies == []
    assert await results(router) == ["no-engine"]


@scenario
async def test_an_engine_that_was_drained_when_the_stream_began_and_is_back_goes_on(world: World) -> None:
    """As when one engine after the other is restarted."""
    first, second, as_config = await start_engines()
    router = await start(world, router_config(world.redis.url, as_config, rest=REST), first, second)
    await router.http.post("/admin/engines/b/drain", headers=ADMIN)
    try:
        async with open_stream(router, "x", temperature=0, seed=19) as stream:
            await stream.read_until_text("The")
            await router.http.post("/admin/engines/b/resume", headers=ADMIN)
            first.may_break.set()
            answer = await stream.read_to_end()
    finally:
        await router.http.post("/admin/engines/b/resume", headers=ADMIN)
    assert chat_delta_text(parse_events(answer)) == ANSWER
    assert len(second.bodies) == 1


SLOWLY = "[timeouts]\nmin_tokens_per_second = 0.1"
"""A response of 40 tokens may take 30 + 400 seconds."""


@scenario
async def test_the_total_timeout_is_that_of_the_whole_response(world: World) -> None:
    """It is also for the tokens before the seam, which have taken their time."""
    first, second, as_config = await start_engines()
    second.breaks.append(Break(300, "pause"))
    second.may_break.clear()
    router = await start(world, router_config(world.redis.url, as_config, rest=SLOWLY), first, second)
    async with open_stream(router, "x", temperature=0, seed=20, max_tokens=40) as stream:
        await stream.read_until_text("The sea")
        inflight_of(router).dispatched_at -= 400.0
        first.may_break.set()
        await stream.read_until_text("The sea is wide")
        second.may_break.set()
        answer = await stream.read_to_end()
    assert chat_delta_text(parse_events(answer)) == ANSWER
    assert await results(router) == ["continued"]


@scenario
async def test_a_stream_whose_total_timeout_is_over_does_not_go_on(world: World) -> None:
    first, second, as_config = await start_engines()
    router = await start(world, router_config(world.redis.url, as_config, rest=SLOWLY), first, second)
    async with open_stream(router, "x", temperature=0, seed=21, max_tokens=40) as stream:
        await stream.read_until_text("The sea")
        inflight_of(router).dispatched_at -= 431.0
        first.may_break.set()
        assert error_of(await stream.read_to_end())["code"] == "engine_failed"
    assert second.bodies == []
    assert await results(router) == ["engine_timeout"]
    assert (await router.http.get("/healthz")).json()["engines"]["b"]["breaker"] == "closed"


@pytest.mark.parametrize("changed", ["revision", "limit"])
@scenario
async def test_after_a_reload_only_engines_of_the_same_revision_go_on(world: World, changed: str) -> None:
    """`limit`: of another setting, the engine is another object, which goes on."""
    first, second, as_config = await start_engines()
    text = router_config(world.redis.url, as_config)
    router = await start(world, text, first, second)
    replaced = {
        "revision": text.replace('revision = "1"', 'revision = "2"'),
        "limit": text.replace('name = "b"\n', 'name = "b"\nmax_in_flight = 7\n'),
    }[changed]
    assert replaced != text
    async with open_stream(router, "x", temperature=0, seed=18) as stream:
        await stream.read_until_text("The")
        await router.reload(replaced)
        first.may_break.set()
        answer = await stream.read_to_end()
    if changed == "limit":
        assert chat_delta_text(parse_events(answer)) == ANSWER
    else:
        assert error_of(answer)["code"] == "engine_failed"
        assert second.bodies == []


@scenario
async def test_a_stream_that_lacks_only_its_end_is_completed_however_often_it_went_on(world: World) -> None:
    first, second, third = (new_engine(name, Break(900)) for name in "abc")
    third.breaks[:] = [Break(-len(DONE_FRAME), "close")]
    async with toy_engines(first, second, third) as as_config:
        router = await start(world, router_config(world.redis.url, as_config), first, second, third)
        answer = await router.chat("x", stream=True, temperature=0, seed=22)
    assert third.bodies
    assert answer.content.endswith(DONE_FRAME)
    assert chat_delta_text(parse_events(answer.content)) == ANSWER


@scenario
async def test_an_engine_that_does_not_repeat_what_was_said_is_asked_again_by_text(world: World) -> None:
    """Some engines are not deterministic at temperature 0 either."""
    first, second = ToyScript(ToyModel(ANSWER, [1]), Break(3000), name="a"), Wavering(ToyModel(ANSWER, [1]), name="b")
    first.groups = [2]  # so the end of the text is to be generated again
    async with toy_engines(first, second) as as_config:
        router = await start(world, router_config(world.redis.url, as_config), first, second)
        answer = await router.chat("x", stream=True, temperature=0, seed=23)
        health = (await router.http.get("/healthz")).json()
    assert second.paths == ["/v1/completions", "/v1/chat/completions"]
    assert chat_delta_text(parse_events(answer.content)) == ANSWER
    assert health["engines"]["b"]["breaker"] == "closed"


class Wavering(ToyScript):
    """Says something else than the model if it gets token ids."""

    def _events(self, path: str, body: dict[str, Any]) -> bytes:
        data = super()._events(path, body)
        return data.replace(b'"text":"', b'"text":"#') if path == "/v1/completions" else data


@pytest.mark.parametrize(("first_kind", "second_kind"), [("sglang", "vllm"), ("vllm", "sglang")])
@scenario
async def test_with_stop_strings_both_engines_must_hold_back_their_beginnings(
    world: World, first_kind: str, second_kind: str
) -> None:
    first, second = new_engine("a", Break(1500), kind=first_kind), new_engine("b", kind=second_kind)
    async with toy_engines(first, second) as as_config:
        router = await start(world, router_config(world.redis.url, as_config), first, second)
        answer = await router.chat("x", stream=True, temperature=0, seed=24, stop=["wide, and"])
    assert error_of(answer.content)["code"] == "engine_failed"
    assert second.bodies == []
    assert await results(router) == ["no-engine"]


@scenario
async def test_engines_of_several_kinds_are_asked_only_for_what_they_know(world: World) -> None:
    """SGLang goes on with a stream of vLLM. What it says after that cannot be counted."""
    first, second, third = new_engine("a", Break(1500)), new_engine("b", Break(900), kind="sglang"), new_engine("c")
    async with toy_engines(first, second, third) as as_config:
        text = router_config(world.redis.url, as_config)
        router = await start(world, text, first, second, third)
        await router.chat("x", stream=True, temperature=0, seed=12, max_tokens=100)
        asked = ["return_token_ids" in body for engine in (first, second, third) for body in engine.bodies]
        kinds = [engine.kind == "vllm" for engine in (first, second, third) for _ in engine.bodies]
    assert asked == kinds
    assert second.bodies


@pytest.mark.parametrize("kind", ["sglang", "llama.cpp", "ollama", "tgi", "openai", "vllm", None])
@scenario
async def test_only_vllm_is_asked_for_token_ids(world: World, kind: str | None) -> None:
    engine = new_engine("a", kind="someone")
    async with toy_engines(engine) as as_config:
        text = router_config(world.redis.url, as_config)
        if kind is not None:
            text = text.replace("served_model =", f'kind = "{kind}"\nserved_model =')
        router = await world.router(text)
        for path, prompt in (("chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
                             ("completions", {"prompt": "x"})):  # fmt: skip
            for stream in (True, False):
                body = {"model": "llama", "stream": stream, "temperature": 0, "seed": 13, **prompt}
                await router.post(f"/v1/{path}", body, cache_control="no-store")
    assert [body.get("return_token_ids") for body in engine.bodies if body.get("stream")] == [
        True if kind == "vllm" else None
    ] * 2
    assert not any("return_token_ids" in body for body in engine.bodies if not body.get("stream"))


@scenario
async def test_a_client_that_asks_for_token_ids_gets_them(world: World) -> None:
    engine = new_engine("a")
    async with toy_engines(engine) as as_config:
        router = await start(world, router_config(world.redis.url, as_config), engine)
        body = chat_body("x", stream=True, temperature=0, seed=14)
        answer = await router.post("/v1/chat/completions", {**body, "return_token_ids": True})
        without = await router.post("/v1/chat/completions", {**body, "return_token_ids": False})
    events = parse_events(answer.content)
    ids = [number for event in events for number in event["choices"][0].get("token_ids") or ()]
    assert ids[:-1] == engine.model.ids()
    assert events[0]["prompt_token_ids"]
    assert not any(event["choices"][0].get("token_ids") for event in parse_events(without.content))


@pytest.mark.parametrize("same", [True, False])
@scenario
async def test_only_an_engine_with_the_same_adapter_goes_on(world: World, same: bool) -> None:
    first, second = (new_engine(name, adapters={"sql": "/adapters/sql"}) for name in ("a", "b"))
    first.breaks.append(Break(1500))
    first.may_break.clear()
    async with toy_engines(first, second) as as_config:
        router = await start(world, router_config(world.redis.url, as_config), first, second)
        page = (await router.http.get("/v1/models")).json()["data"]
        name = next(model["id"] for model in page if model["id"].endswith("sql"))
        async with open_stream(router, "x", model=name, temperature=0, seed=15) as stream:
            await stream.read_until_text("The")
            if not same:
                catalog = router.application._runtime.catalog
                catalog.engines["b"].adapters = (ListedAdapter("sql", "/adapters/other"),)
            first.may_break.set()
            answer = await stream.read_to_end()
    if same:
        assert [engine.bodies[0]["model"] for engine in (first, second)] == ["sql", "sql"]
        assert chat_delta_text(parse_events(answer)) == ANSWER
    else:
        assert error_of(answer)["code"] == "engine_failed"
        assert second.bodies == []


@scenario
async def test_an_engine_that_was_withdrawn_meanwhile_does_not_go_on(world: World) -> None:
    first, second, as_config = await start_engines()
    b = AnnouncedEngine(name="b", model="llama", task="any", url=second.engine.url, served_model=LLAMA)
    await world.redis.client.execute_command(*write_command("test", [b]))
    router = await start(world, router_config(world.redis.url, {"a": as_config["a"]}), first, second)

    async def has_b() -> bool:
        return "b" in (await router.http.get("/healthz")).json()["engines"]

    async def has_no_b() -> bool:
        return not await has_b()

    await eventually(has_b)
    async with open_stream(router, "x", temperature=0, seed=16) as stream:
        await stream.read_until_text("The")
        await world.redis.client.execute_command(*write_command("test", withdrawn=["b"]))
        await eventually(has_no_b)
        first.may_break.set()
        assert error_of(await stream.read_to_end())["code"] == "engine_failed"
    assert second.bodies == []


@scenario
async def test_an_engine_that_was_announced_meanwhile_goes_on(world: World) -> None:
    """As in a rolling update: the engines that were there when the stream began are all replaced."""
    first, second, as_config = await start_engines()
    router = await start(world, router_config(world.redis.url, {"a": as_config["a"]}), first)

    async def is_up() -> bool:
        page = (await router.http.get("/healthz")).json()["engines"]
        return bool("b" in page and page["b"]["up"])

    async with open_stream(router, "x", temperature=0, seed=17) as stream:
        await stream.read_until_text("The")
        b = AnnouncedEngine(name="b", model="llama", task="any", url=second.engine.url, served_model=LLAMA)
        await world.redis.client.execute_command(*write_command("test", [b]))
        await eventually(is_up)
        first.may_break.set()
        answer = await stream.read_to_end()
    assert chat_delta_text(parse_events(answer)) == ANSWER
    assert len(second.bodies) == 1
    await eventually(partial(is_idle, router))
