"""A client's mistake affects only that client: no breaker counts it, and there is no retry."""

import json
from typing import Any

import httpx
import pytest

from tests.support.router_server import LLAMA, router_config
from tests.support.sse_answers import DONE_FRAME, parse_events
from tests.world.processes import WorldEngines, WorldRouter
from tests.world.scenario import World, scenario
from tests.world.scripted import scripted_router

ONE_FAILURE_OPENS = '[breaker]\nfailures = 1\ncooldown = "1h"'
LONG = 100_000
TOO_LONG_EVENT = 9 << 20
STATUS: list[dict[str, Any]] = [
    {"code": 400},
    {"code": 400, "bytes": LONG},
    {"code": 400, "bytes": LONG, "shape": "detail"},
    {"code": 400, "bytes": LONG, "shape": "text"},
    {"code": 400, "shape": "vllm-0.9"},
    {"code": 400, "shape": "detail"},
    {"code": 400, "shape": "text"},
    {"code": 400, "shape": "html"},
    {"code": 422, "shape": "details"},
    {"code": 413},
    {"code": 409},
    {"code": 404},
    {"code": 404, "shape": "detail", "message": "Not Found"},
    {"code": 405},
    {"code": 501},
    {"code": 501, "bytes": LONG},
]


def named(value: dict[str, Any]) -> str:
    return "-".join(map(str, value.values()))


async def start_two(world: World) -> tuple[str, WorldEngines]:
    """A configuration with two engines of llama whose breakers open at the first failure; `first` is preferred."""
    engines = await world.engines()
    table = {"first": ("llama", "chat", engines.chat.url), "second": ("llama", "any", engines.code.url)}
    return router_config(world.redis.url, table, rest=ONE_FAILURE_OPENS), engines


async def ask(router: WorldRouter, **fields: Any) -> httpx.Response:
    """A request that bypasses the cache."""
    return await router.chat("The sea?", headers={"cache-control": "no-store"}, **fields)


async def received(engines: WorldEngines) -> int:
    return int((await engines.chat.stats())["received"])


async def healthz_breakers(router: WorldRouter) -> dict[str, str]:
    """The states of the engines' breakers in /healthz."""
    page = (await router.http.get("/healthz")).json()
    return {name: str(facts["breaker"]) for name, facts in page["engines"].items()}


async def assert_healthy(router: WorldRouter, engines: WorldEngines) -> None:
    """Whether both engines are still used."""
    assert await healthz_breakers(router) == {"first": "closed", "second": "closed"}
    await engines.chat.clear_faults()
    await engines.code.clear_faults()
    assert (await ask(router)).headers["x-engine"] == "first"


def error_of(answer: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == (
        {"message", "type"} if "request_id" in answer.json() else {"message", "type", "param", "code"}
    )
    assert error["message"].isprintable()
    assert len(error["message"]) <= 64 << 10
    assert "127.0.0.1" not in answer.text
    assert "engine-" not in answer.text
    return error


@pytest.mark.parametrize("status", STATUS, ids=named)
@scenario
async def test_a_refusal_reaches_the_client_whatever_its_length_and_shape(world: World, status: dict[str, Any]) -> None:
    two, engines = await start_two(world)
    router = await world.router(two)
    for engine in engines.chat, engines.code:
        await engine.set_faults({"fault": "status", **status})
    for number, stream in enumerate((False, True)):
        answer = await ask(router, stream=stream)
        assert answer.status_code == {405: 404, 501: 400}.get(status["code"], status["code"])
        error_of(answer)
        assert await received(engines) == number + 1, "the same engine is not retried"
    await assert_healthy(router, engines)


@pytest.mark.parametrize("shape", ["vllm", "vllm-0.9", "detail", "details", "text"])
@scenario
async def test_the_engines_message_reaches_the_client_in_any_shape(world: World, shape: str) -> None:
    two, engines = await start_two(world)
    router = await world.router(two)
    message = "logit_bias has a token that is not in the vocabulary"
    await engines.chat.set_faults({"fault": "status", "code": 400, "shape": shape, "message": message})
    assert message in error_of(await ask(router))["message"]


@pytest.mark.parametrize("code", [404, 405, 501])
@scenario
async def test_a_feature_that_one_engine_lacks_is_tried_at_another_engine_of_the_model(world: World, code: int) -> None:
    two, engines = await start_two(world)
    router = await world.router(two)
    await engines.chat.set_faults({"fault": "status", "code": code})
    assert (await ask(router)).headers["x-engine"] == "second"
    await assert_healthy(router, engines)


@scenario
async def test_a_model_that_no_engine_has_is_404_without_the_engines_name_for_it(world: World) -> None:
    two, _ = await start_two(world)
    router = await world.router(two.replace(f'served_model = "{LLAMA}"', 'served_model = "inner/name"'))
    answer = await ask(router)
    assert (answer.status_code, error_of(answer)["code"]) == (404, "model_not_found")
    assert "inner/name" not in answer.text
    assert await healthz_breakers(router) == {"first": "closed", "second": "closed"}


@scenario
async def test_engines_without_a_feature_do_not_hide_the_failure_of_one_that_has_it(world: World) -> None:
    two, engines = await start_two(world)
    router = await world.router(two)
    await engines.chat.set_faults({"fault": "status", "code": 503})
    await engines.code.set_faults({"fault": "status", "code": 404})
    assert (await ask(router)).status_code == 503


@scenario
async def test_errors_about_the_routers_credentials_do_not_reach_the_client(world: World) -> None:
    two, engines = await start_two(world)
    router = await world.router(two)
    for engine in engines.chat, engines.code:
        await engine.set_faults({"fault": "status", "code": 401, "message": "Unauthorized: sk-secret"})
    answer = await ask(router)
    assert (answer.status_code, error_of(answer)["code"]) == (502, "engine_failed")
    assert "secret" not in answer.text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages"])
@pytest.mark.parametrize("after", [0, 3])
@scenario
async def test_an_error_at_the_start_of_a_stream_is_a_refusal_for_the_client(
    world: World, path: str, after: int
) -> None:
    two, engines = await start_two(world)
    router = await world.router(two)
    await engines.chat.set_faults({"fault": "error", "after": after, "code": 400, "message": "Grammar error: at 1"})
    messages = [{"role": "user", "content": "The sea?"}]
    body = {"model": "llama", "prompt": "The sea?", "messages": messages, "max_tokens": 50, "stream": True}
    answer = await router.post(path, body, cache_control="no-store")
    if after == 0:
        assert answer.status_code == 400
        assert ("Grammar error" in error_of(answer)["message"]) is (path != "/v1/messages")
    else:
        assert b'"error"' in answer.content
        assert not answer.content.endswith(DONE_FRAME)
    await assert_healthy(router, engines)


@pytest.mark.parametrize("after", [0, 3])
@scenario
async def test_an_event_over_the_routers_limit_is_an_error_that_names_the_limit(world: World, after: int) -> None:
    two, engines = await start_two(world)
    router = await world.router(two)
    await engines.chat.set_faults({"fault": "event", "bytes": TOO_LONG_EVENT, "after": after})
    before = await received(engines)
    answer = await ask(router, stream=True)
    if after == 0:
        assert (answer.status_code, error_of(answer)["code"]) == (400, "answer_too_large")
        assert "8 MiB" in error_of(answer)["message"]
    else:
        assert "8 MiB" in parse_events(answer.content)[-1]["error"]["message"]
        assert DONE_FRAME not in answer.content
    assert await received(engines) == before + 1
    await assert_healthy(router, engines)


@scenario
async def test_a_client_error_within_a_200_reaches_the_client(world: World) -> None:
    error = b'{"error": {"message": "Too many stops", "type": "BadRequestError", "param": "stop", "code": 400}}'
    engine = await world.scripted_engine(error, content_type="application/json")
    table = dict.fromkeys(("first", "second"), ("llama", "any", engine.url))
    router = await world.router(router_config(world.redis.url, table, rest=ONE_FAILURE_OPENS))
    answer = await ask(router)
    assert (answer.status_code, answer.json()) == (400, json.loads(error))
    assert len(engine.bodies) == 1, "no other engine is tried"
    assert await healthz_breakers(router) == {"first": "closed", "second": "closed"}


@pytest.mark.parametrize(
    "rest",
    [
        b'{"error": {"message": "Too many stops", "code": 400}}',
        b'\n{\n  "error": {"message": "Too many stops",\n  "code": 400}}\n',
        b'data: {"error": {"message": "Too many stops", "code": 400}}',
        b'data: {"error": {"message": "Too many stops", "code": 400}}\n',
    ],
)
@pytest.mark.parametrize("kind", ["vllm", "openai"])
@scenario
async def test_a_refusal_as_json_in_place_of_a_stream_reaches_the_client(world: World, rest: bytes, kind: str) -> None:
    router, engine = await scripted_router(
        world, rest, rest=f'kind = "{kind}"\n{ONE_FAILURE_OPENS}', content_type="application/json"
    )
    answer = await ask(router, stream=True)
    assert (answer.status_code, error_of(answer)["message"]) == (400, "Too many stops")
    assert len(engine.bodies) == 1
    assert await healthz_breakers(router) == {"scripted": "closed"}


@scenario
async def test_an_engine_that_answers_529_is_busy_and_not_broken(world: World) -> None:
    body = b'{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}'
    router, _ = await scripted_router(world, body, status=529, rest=ONE_FAILURE_OPENS, content_type="application/json")
    answer = await ask(router)
    assert (answer.status_code, error_of(answer)["code"]) == (503, "engines_busy")
    assert await healthz_breakers(router) == {"scripted": "closed"}


REFUSALS: list[tuple[str, bytes, str]] = [
    (
        "/v1/responses",
        b'data: {"type": "response.failed", "response": {"error": %b}}\n\n'
        % b'{"code": "context_length_exceeded", "message": "Too long."}',
        "context_length_exceeded",
    ),
    ("/v1/chat/completions", b'data: {"error": {"message": "Too long.", "type": "invalid_request_error"}}\n\n', ""),
    ("/v1/chat/completions", b'data: {"error": "Too long.", "error_type": "validation"}\n\n', ""),
    ("/v1/completions", b'data: {"error": {"message": "Too long.", "code": "context_length_exceeded"}}\n\n', ""),
    (
        "/v1/messages",
        b'event: error\ndata: {"type": "error", "error": {"type": "request_too_large", "message": "Too long."}}\n\n',
        "",
    ),
    ("/v1/messages", b'event: error\ndata: {"code": 413, "message": "Too long."}\n\n', ""),
    ("/v1/messages", b'data: {"object": "error", "message": "Too long.", "code": 413}\n\n', ""),
    ("/v1/messages", b'data: {"error": {"message": "Too long.", "code": 413}}\n\n', ""),
    (
        "/v1/responses",
        b'data: {"object": "error", "message": "Too long.", "type": "BadRequestError", "code": 400}\n\n',
        "invalid_prompt",
    ),
    ("/v1/responses", b'error: {"code": 400, "message": "Too long."}\n\n', "invalid_prompt"),
    ("/v1/completions", b'error: {"code": 400, "message": "Too long."}\n\n', ""),
]
FIRST_TOKENS = {
    "/v1/responses": b'event: response.output_text.delta\ndata: {"type": "response.output_text.delta", "delta": "a", '
    b'"sequence_number": 0}\n\n',
    "/v1/chat/completions": b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n',
    "/v1/completions": b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n',
    "/v1/messages": b'event: content_block_delta\ndata: {"type": "content_block_delta", "index": 0, "delta": {"type": '
    b'"text_delta", "text": "a"}}\n\n',
}


@pytest.mark.parametrize("has_token", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("path", "refusal", "code"), REFUSALS)
@scenario
async def test_a_refusal_in_words_is_the_clients_before_the_first_token_and_an_event_after_it(
    world: World, path: str, refusal: bytes, code: str, has_token: bool
) -> None:
    router, engine = await scripted_router(
        world, (FIRST_TOKENS[path] if has_token else b"") + refusal, rest=ONE_FAILURE_OPENS
    )
    body = {"model": "llama", "max_tokens": 5, "stream": True, "input": "x", "prompt": "x"}
    body["messages"] = [{"role": "user", "content": "x"}]
    answer = await router.post(path, body, cache_control="no-store")
    is_streamed = (path, code) == ("/v1/responses", "context_length_exceeded")
    if has_token or is_streamed:
        assert answer.status_code == 200
        last = json.loads(answer.content.rstrip().rpartition(b"data: ")[2])
        message = last["error"]["message"]
        assert message == "Too long." or (is_streamed and message.endswith(" Too long."))
        assert path != "/v1/responses" or last["response"]["error"] == {"code": code, "message": message}
    else:
        assert answer.status_code == {"/v1/messages": 413}.get(path, 422 if b"validation" in refusal else 400)
        assert error_of(answer)["message"] == "Too long."
    assert len(engine.bodies) == 1
    assert await healthz_breakers(router) == {"scripted": "closed"}


@scenario
async def test_an_engine_that_says_in_a_stream_that_it_is_overloaded_is_busy_and_not_broken(world: World) -> None:
    busy = b'data: {"error": {"type": "overloaded_error", "message": "Later."}}\n\n'
    router, _ = await scripted_router(world, busy, rest=ONE_FAILURE_OPENS)
    answer = await ask(router, stream=True)
    assert (answer.status_code, error_of(answer)["code"]) == (503, "engines_busy")
    assert await healthz_breakers(router) == {"scripted": "closed"}


@scenario
async def test_a_failed_response_within_a_200_reaches_the_client(world: World) -> None:
    failed = b'{"status": "failed", "output": [], "error": {"code": "invalid_prompt", "message": "No."}}'
    router, engine = await scripted_router(world, failed, rest=ONE_FAILURE_OPENS, content_type="application/json")
    answer = await router.post("/v1/responses", {"model": "llama", "input": "x"}, cache_control="no-store")
    assert (answer.status_code, error_of(answer)["message"], error_of(answer)["code"]) == (400, "No.", "invalid_prompt")
    assert len(engine.bodies) == 1
    assert await healthz_breakers(router) == {"scripted": "closed"}


@pytest.mark.parametrize(
    ("status", "body", "content_type"),
    [
        (500, b'{"error": {"message": "CUDA out of memory at http://10.0.0.9:8000", "code": 500}}', "application/json"),
        (200, b'data: {"error": {"message": "CUDA out of memory at http://10.0.0.9:8000"}}\n\n', "text/event-stream"),
    ],
)
@scenario
async def test_an_engines_own_words_are_in_the_log_and_in_the_clients_error(
    world: World, caplog: pytest.LogCaptureFixture, status: int, body: bytes, content_type: str
) -> None:
    router, _ = await scripted_router(world, body, status=status, content_type=content_type)
    answer = await ask(router, stream=True)
    assert (answer.status_code, error_of(answer)["code"]) == (502, "engine_failed")
    assert "CUDA out of memory at (URL)" in error_of(answer)["message"]
    lines = [record.getMessage() for record in caplog.records if record.name == "roundhouse.dispatch"]
    assert any("CUDA out of memory at (URL)" in line for line in lines)
    assert not any("10.0.0.9" in line for line in lines)


@scenario
async def test_a_literal_nan_is_passed_on_once_and_never_stored(world: World) -> None:
    body = b'{"data": [{"index": 0, "embedding": [NaN, 1.0, -Infinity]}], "usage": {"prompt_tokens": 1}}'
    router, engine = await scripted_router(world, body, rest=ONE_FAILURE_OPENS, content_type="application/json")
    for count in (1, 2):
        answer = await router.post("/v1/embeddings", {"model": "llama", "input": "x"})
        assert (answer.status_code, answer.content, answer.headers["x-cache"]) == (200, body, "MISS")
        assert len(engine.bodies) == count
    assert await healthz_breakers(router) == {"scripted": "closed"}


@scenario
async def test_a_json_response_over_the_routers_limit_is_an_error_that_names_the_limit(world: World) -> None:
    router, engine = await scripted_router(
        world, *[b"." * (1 << 20)] * 257, rest=ONE_FAILURE_OPENS, content_type="application/json"
    )
    answer = await ask(router)
    assert (answer.status_code, error_of(answer)["code"]) == (400, "answer_too_large")
    assert "256 MiB" in error_of(answer)["message"]
    assert len(engine.bodies) == 1
    assert await healthz_breakers(router) == {"scripted": "closed"}
