"""Streams of each endpoint that has them: no part of a broken one is stored, and what fails early is replaced."""

import asyncio
import contextlib
import json
from typing import Any, Final

import httpx
import pytest

from router.core.endpoints.recording.stream_encoding import decode_stream
from tests.support.endpoint_table import STREAMING_CASES, EndpointCase
from tests.support.fault_timeouts import timeouts_for
from tests.support.router_server import router_config
from tests.support.sse_answers import DONE_FRAME
from tests.support.typed_answers import MESSAGES, RESPONSES, typed_body, typed_delta_text, typed_events
from tests.support.waiting import eventually, read_until
from tests.world.scenario import World, scenario
from tests.world.scripted import scripted_router
from tests.world.test_endpoints import configuration, start

STREAMING: Final = pytest.mark.parametrize("case", STREAMING_CASES, ids=lambda case: case.path)
SLOWLY: Final[dict[str, Any]] = {"fault": "tps", "rate": 100}
"""So that the client has the first token before the engine fails."""


BROKEN: Final[list[tuple[EndpointCase, dict[str, Any]]]] = [
    (case, fault)
    for case in STREAMING_CASES
    for fault in (
        {"fault": "error", "after": 3},
        {"fault": "drop", "after": 3},
        {"fault": "drop", "after": 3, "how": "close"},
        {"fault": "stall", "after": 3},
        {"fault": "no_done"},
    )
    # The finish reasons of these show that the response is complete: see test_foreign_engines.
    if fault != {"fault": "no_done"} or case.last_event != DONE_FRAME
]


def named(value: EndpointCase | dict[str, Any]) -> str:
    return value.path if isinstance(value, EndpointCase) else "-".join(map(str, value.values()))


def last_payload(answer: httpx.Response) -> dict[str, Any]:
    payload: dict[str, Any] = json.loads(answer.content.rstrip().rpartition(b"data: ")[2])
    return payload


@pytest.mark.parametrize(
    "fault",
    [
        {"fault": "error", "after": 0},
        {"fault": "drop", "after": 0},
        {"fault": "drop"},
        {"fault": "malformed"},
        {"fault": "status", "code": 503},
        {"fault": "stall", "after": 0},
    ],
    ids=named,
)
@STREAMING
@scenario
async def test_an_engine_that_fails_before_its_first_token_is_replaced_unnoticed(
    world: World, case: EndpointCase, fault: dict[str, Any]
) -> None:
    engines = await world.engines()
    router = await world.router(router_config(world.redis.url, engines.as_config(), rest=timeouts_for(fault)))
    await engines.chat.set_faults(fault)
    answer = await case.ask(router, stream=True)
    assert answer.headers["x-engine"] == "llama-code"
    assert answer.content.count(case.last_event) == 1
    assert not case.first_event or answer.content.count(case.first_event) == 1
    assert (await case.ask(router)).headers["x-cache"] == "HIT"


@pytest.mark.parametrize(("case", "fault"), BROKEN, ids=named)
@scenario
async def test_a_stream_that_breaks_ends_with_an_error_and_is_not_stored(
    world: World, case: EndpointCase, fault: dict[str, Any]
) -> None:
    router, engine = await start(world, case, rest=timeouts_for(fault))
    await engine.set_faults(fault, SLOWLY)
    answer = await case.ask(router, stream=True)
    assert answer.status_code == 200
    last = last_payload(answer)
    error = last["error"]
    assert "was interrupted" in error["message"]
    if case.path == MESSAGES:
        assert last == {"type": "error", "error": error, "request_id": answer.headers["x-request-id"]}
        assert error["type"] == "api_error"
    elif case.path == RESPONSES:
        assert last["type"] == "response.failed"
        events = typed_events(answer.content)
        assert typed_delta_text(events)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert (last["response"]["id"], last["response"]["status"]) == (events[0]["response"]["id"], "failed")
        assert last["response"]["error"] == {"code": "server_error", "message": error["message"]}
    else:
        assert error["code"] == "engine_failed"
    assert case.last_event not in answer.content
    await engine.clear_faults()
    assert (await case.ask(router, stream=True)).headers["x-cache"] == "MISS"


@scenario
async def test_claude_code_gets_a_broken_connection_in_place_of_an_error_event(world: World) -> None:
    case = next(case for case in STREAMING_CASES if case.path == MESSAGES)
    router, engine = await start(world, case)
    await engine.set_faults({"fault": "drop", "after": 3}, SLOWLY)
    body = typed_body(MESSAGES, "The sea?", stream=True)
    received = b""
    headers = {"user-agent": "claude-cli/2.1.197 (external, sdk-cli)"}
    async with router.http.stream("POST", MESSAGES, json=body, headers=headers) as answer:
        pieces = aiter(answer.aiter_raw())
        with contextlib.suppress(httpx.RemoteProtocolError):
            while True:
                received += await anext(pieces)
    events = typed_events(received)
    assert typed_delta_text(events)
    assert "error" not in [event["type"] for event in events]
    assert any(name.startswith("llm_requests_total") for name in await router.metrics() if 'status="broken"' in name)


@pytest.mark.parametrize("stream", [False, True])
@STREAMING
@scenario
async def test_a_response_without_a_finish_reason_is_not_stored(world: World, case: EndpointCase, stream: bool) -> None:
    router, engine = await start(world, case)
    await engine.set_faults({"fault": "no_finish"})
    answers = [await case.ask(router, stream=stream) for _ in range(2)]
    assert [answer.headers["x-cache"] for answer in answers] == ["MISS", "MISS"]
    assert all(answer.status_code == 200 for answer in answers)


@STREAMING
@scenario
async def test_a_response_that_reached_its_token_limit_is_stored(world: World, case: EndpointCase) -> None:
    router, _ = await start(world, case)
    limit: dict[str, Any] = {"max_output_tokens" if case.path == RESPONSES else "max_tokens": 5}
    for stream in (True, False):
        answers = [await case.ask(router, stream=stream, nonce=str(stream), **limit) for _ in range(2)]
        assert [answer.headers["x-cache"] for answer in answers] == ["MISS", "HIT"]
        assert answers[0].content == answers[1].content


@STREAMING
@scenario
async def test_an_error_of_an_engine_without_a_stream_goes_to_the_next_engine(world: World, case: EndpointCase) -> None:
    engines = await world.engines()
    router = await world.router(router_config(world.redis.url, engines.as_config()))
    await engines.chat.set_faults({"fault": "error", "after": 3})
    answer = await case.ask(router)
    assert (answer.status_code, answer.headers["x-engine"]) == (200, "llama-code")


@STREAMING
@scenario
async def test_a_prompt_that_is_too_long_is_refused_in_the_form_of_the_endpoint(
    world: World, case: EndpointCase
) -> None:
    router, _ = await start(world, case)
    long = json.loads(json.dumps(case.body).replace("The sea?", "far too long " * 5000))
    # A stream of /v1/responses is refused by an event: see test_context_length.
    for stream in (False, True) if case.path != RESPONSES else (False,):
        error = case.error_of(await router.post(case.path, {**long, "stream": stream}), 400)
        words = (
            "prompt is too long: at least 4097 tokens > 4096" if case.path == "/v1/messages" else "context length is"
        )
        assert words in error["message"]


@STREAMING
@scenario
async def test_the_last_event_is_sent_once_the_response_is_handed_to_the_store(
    world: World, case: EndpointCase
) -> None:
    router, _ = await start(world, case)
    async with router.http.stream("POST", case.path, json={**case.body, "stream": True}) as answer:
        stream = answer.aiter_raw()
        await read_until(stream, lambda data: case.last_event in data)
        assert (await case.ask(router)).headers["x-cache"] == "HIT"


@STREAMING
@scenario
async def test_a_client_that_disconnects_frees_the_engine(world: World, case: EndpointCase) -> None:
    router, engine = await start(world, case)
    await engine.set_faults({"fault": "stall", "after": 3})
    async with router.http.stream("POST", case.path, json={**case.body, "stream": True}) as answer:
        await anext(answer.aiter_raw())
    await engine.stats(aborted=1, in_flight=0)


@STREAMING
@scenario
async def test_a_prompt_for_code_goes_to_the_engine_for_code(world: World, case: EndpointCase) -> None:
    engines = await world.engines()
    router = await world.router(router_config(world.redis.url, engines.as_config()))
    code = json.loads(json.dumps(case.body).replace("The sea?", "Write a Python function that merges two lists."))
    answer = await router.post(case.path, code)
    assert (answer.headers["x-task"], answer.headers["x-engine"]) == ("code", "llama-code")


@STREAMING
@scenario
async def test_a_stream_is_forwarded_and_but_for_comments_replayed_byte_for_byte(
    world: World, case: EndpointCase
) -> None:
    router, _ = await start(world, case)
    real = (await case.ask(router, stream=True)).content
    comment = b": a comment\n\n"
    events, last, rest = real.replace(b'":"', b'" : "', 1).rpartition(case.last_event)
    sent = events + comment + last + rest
    other, _ = await scripted_router(world, sent[:700], sent[700:701], sent[701:])
    answers = [await case.ask(other, stream=True, nonce="other") for _ in range(2)]
    assert [answer.headers["x-cache"] for answer in answers] == ["MISS", "HIT"]
    assert [answer.content for answer in answers] == [sent, sent.replace(comment, b"")]


@pytest.mark.parametrize("first", [False, True], ids=["json-first", "stream-first"])
@STREAMING
@scenario
async def test_concurrent_requests_in_either_form_share_one_generation_over_two_routers(
    world: World, case: EndpointCase, first: bool
) -> None:
    router, engine = await start(world, case)
    routers = [router, await world.router(configuration(world, engine))]
    await asyncio.sleep(1)  # both listen, so that nobody takes the other for lost
    await engine.set_faults({"fault": "ttft", "ms": 300})
    requests = (case.ask(routers[n % 2], stream=first ^ (n % 3 == 2)) for n in range(24))
    answers = await asyncio.gather(*requests)
    assert {answer.status_code for answer in answers} == {200}
    assert len({case.content(answer) for answer in answers}) == 1
    assert [answer.headers["x-cache"] for answer in answers].count("MISS") == 1
    (stream,) = {answer.content for answer in answers if answer.headers["content-type"] != "application/json"}
    assert stream.count(case.last_event) == 1
    assert (await engine.stats())["started"] == 1


@pytest.mark.parametrize("case", [case for case in STREAMING_CASES if case.last_event != DONE_FRAME], ids=named)
@scenario
async def test_the_tokens_are_counted_and_the_entry_can_be_read(world: World, case: EndpointCase) -> None:
    router, _ = await start(world, case)
    answer = await case.ask(router, stream=True)
    entry = await eventually(lambda: world.redis.client.hgetall(answer.headers["x-cache-key"]))
    last = typed_events(answer.content)[-1 if case.path == RESPONSES else -2]
    usage = (last.get("response") or last)["usage"]
    counts = (int(entry["prompt_tokens"]), int(entry["completion_tokens"]))
    assert counts == (usage["input_tokens"], usage["output_tokens"])
    stream, stored = entry["stream"].encode("ascii"), entry["body"].encode()
    assert decode_stream(stream, stored, include_usage=False, end=b"") == answer.content
    assert len(stream) < len(answer.content) / 4
    body = json.loads(entry["body"])
    assert body == last["response"] if case.path == RESPONSES else body["usage"] == usage


@scenario
async def test_a_request_that_is_not_shared_is_generated_for_each_client(world: World) -> None:
    engine = await world.engine()
    router = await world.router(configuration(world, engine))
    await engine.set_faults({"fault": "ttft", "ms": 100})
    body = typed_body(RESPONSES, "The sea?", tools=[{"type": "web_search"}])
    answers = await asyncio.gather(*(router.post(RESPONSES, body) for _ in range(3)))
    assert [answer.headers["x-cache"] for answer in answers] == ["BYPASS"] * 3
    assert (await engine.stats())["started"] == 3
