"""What /v1/responses and /v1/messages have in common: both forms, and that broken streams are not stored."""

import asyncio
import json
from typing import Any, Final

import pytest

from router.core.endpoints.stream_encoding import decode_stream
from tests.support.fault_timeouts import timeouts_for
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, ScriptedRouter, router_config
from tests.support.typed_answers import (
    MESSAGES,
    RESPONSES,
    TYPED_PATHS,
    post_typed,
    typed_body,
    typed_delta_text,
    typed_events,
    typed_text,
)
from tests.support.waiting import eventually, read_until

pytestmark = pytest.mark.asyncio(loop_scope="session")

PATHS = pytest.mark.parametrize("path", TYPED_PATHS, ids=["responses", "messages"])
FIRST, LAST = (
    {RESPONSES: "response.created", MESSAGES: "message_start"},
    {
        RESPONSES: "response.completed",
        MESSAGES: "message_stop",
    },
)
TEXT: Final = "  \tif x:\r\n\r\n    naïve  é e\u0301 👩‍👩‍👧 \u200b…\n"
SLOWLY: Final[dict[str, Any]] = {"fault": "tps", "rate": 100}
"""So that the client has the first token before the engine fails."""


@PATHS
@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("first", [False, True])
async def test_an_entry_serves_json_and_streams_whichever_form_it_was_stored_from(
    router: RouterServer, engines: EngineSet, path: str, first: bool, second: bool
) -> None:
    before = (await engines.chat.stats())["received"]
    await engines.chat.set_faults({"fault": "say", "text": TEXT})
    miss, hit = (
        await post_typed(router, path, "Say it", stream=first),
        await post_typed(router, path, "Say it", stream=second),
    )
    assert (miss.status_code, hit.status_code) == (200, 200)
    assert [answer.headers["x-cache"] for answer in (miss, hit)] == ["MISS", "HIT"]
    assert miss.headers["x-cache-key"] == hit.headers["x-cache-key"]
    assert typed_text(miss) == typed_text(hit) == TEXT
    if first == second:
        assert miss.content == hit.content
    if second:
        events = typed_events(hit.content)
        assert (events[0]["type"], events[-1]["type"]) == (FIRST[path], LAST[path])
        assert b"[DONE]" not in hit.content
    assert (await engines.chat.stats())["received"] == before + 1


@PATHS
async def test_a_stream_is_forwarded_and_but_for_comments_replayed_byte_for_byte(
    scripted: ScriptedRouter, router: RouterServer, path: str
) -> None:
    real = (await post_typed(router, path, "The sea?", stream=True)).content
    comment = b": a comment\n\n"
    events, _, last = real.replace(b'"type"', b' "type"', 1).rpartition(b"event:")
    sent = events + comment + b"event:" + last
    halves = [sent[:700], sent[700:701], sent[701:]]
    other, _ = await scripted(*halves)
    answers = [await post_typed(other, path, "Something else", stream=True) for _ in range(2)]
    assert [answer.headers["x-cache"] for answer in answers] == ["MISS", "HIT"]
    assert [answer.content for answer in answers] == [sent, sent.replace(comment, b"")]


@PATHS
async def test_an_engine_gets_the_clients_request_with_only_the_model_replaced(
    scripted: ScriptedRouter, path: str
) -> None:
    router, engine = await scripted(b"data: {}\n\n")
    await post_typed(router, path, "Hi", stream=True, frobnicate=1)
    request = json.loads(engine.bodies[0])
    assert request == {**typed_body(path, "Hi", stream=True, frobnicate=1), "model": request["model"]}


@PATHS
async def test_the_tokens_are_counted_and_the_entry_can_be_read(router: RouterServer, redis: Any, path: str) -> None:
    answer = await post_typed(router, path, "The sea?", stream=True)
    entry: dict[str, str] = await eventually(lambda: redis.hgetall(answer.headers["x-cache-key"]))
    last = typed_events(answer.content)[-1 if path == RESPONSES else -2]
    usage = (last.get("response") or last)["usage"]
    assert (int(entry["prompt_tokens"]), int(entry["completion_tokens"])) == (
        usage["input_tokens"],
        usage["output_tokens"],
    )
    stream, stored = entry["stream"].encode("ascii"), entry["body"].encode()
    assert decode_stream(stream, stored, include_usage=False, end=b"") == answer.content
    assert len(stream) < len(answer.content) / 4
    body = json.loads(entry["body"])
    assert body == last["response"] if path == RESPONSES else body["usage"] == usage


@PATHS
async def test_a_prompt_for_code_goes_to_the_engine_for_code(router: RouterServer, path: str) -> None:
    answer = await post_typed(router, path, "Write a Python function that merges two sorted lists.")
    assert (answer.headers["x-task"], answer.headers["x-engine"]) == ("code", "llama-code")


@PATHS
async def test_the_last_event_is_sent_once_the_response_is_handed_to_the_store(
    router: RouterServer, redis: Any, path: str
) -> None:
    async with router.http.stream("POST", path, json=typed_body(path, "The sea?", stream=True)) as answer:
        stream = answer.aiter_raw()
        await read_until(stream, lambda data: LAST[path].encode() in data)
    assert (await post_typed(router, path, "The sea?")).headers["x-cache"] == "HIT"


# Coalescing


@PATHS
@pytest.mark.parametrize("first", [False, True], ids=["json-first", "stream-first"])
async def test_concurrent_requests_in_either_form_share_one_generation_over_two_routers(
    make_router: MakeRouter, config: str, engines: EngineSet, path: str, first: bool
) -> None:
    routers = [await make_router(config), await make_router(config)]
    before = (await engines.chat.stats())["started"]
    await engines.chat.set_faults({"fault": "ttft", "ms": 300})
    requests = (post_typed(routers[n % 2], path, "The sea?", stream=first ^ (n % 3 == 2)) for n in range(24))
    answers = await asyncio.gather(*requests)
    assert {answer.status_code for answer in answers} == {200}
    assert len({typed_text(answer) for answer in answers}) == 1
    assert [answer.headers["x-cache"] for answer in answers].count("MISS") == 1
    streams = {answer.content for answer in answers if answer.headers["content-type"] != "application/json"}
    assert len(streams) == 1
    assert {typed_events(stream)[-1]["type"] for stream in streams} == {LAST[path]}
    assert (await engines.chat.stats())["started"] == before + 1


async def test_a_request_that_is_not_shared_is_generated_for_each_client(
    router: RouterServer, engines: EngineSet
) -> None:
    before = (await engines.chat.stats())["started"]
    await engines.chat.set_faults({"fault": "ttft", "ms": 100})
    requests = (post_typed(router, RESPONSES, "The sea?", tools=[{"type": "web_search"}]) for _ in range(3))
    answers = await asyncio.gather(*requests)
    assert [answer.headers["x-cache"] for answer in answers] == ["BYPASS"] * 3
    assert (await engines.chat.stats())["started"] == before + 3


# Failures


@PATHS
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
    ids=lambda fault: "-".join(map(str, fault.values())),
)
async def test_an_engine_that_fails_before_its_first_token_is_replaced_unnoticed(
    make_router: MakeRouter, redis_server: RedisServer, engines: EngineSet, path: str, fault: dict[str, Any]
) -> None:
    router = await make_router(router_config(redis_server.url, engines.as_config(), rest=timeouts_for(fault)))
    await engines.chat.set_faults(fault)
    answer = await post_typed(router, path, "The sea?", stream=True)
    assert answer.headers["x-engine"] == "llama-code"
    kinds = [event["type"] for event in typed_events(answer.content)]
    assert (kinds.count(FIRST[path]), kinds[-1]) == (1, LAST[path])
    assert (await post_typed(router, path, "The sea?")).headers["x-cache"] == "HIT"


@PATHS
@pytest.mark.parametrize(
    "fault",
    [
        {"fault": "error", "after": 3},
        {"fault": "drop", "after": 3},
        {"fault": "drop", "after": 3, "how": "close"},
        {"fault": "stall", "after": 3},
        {"fault": "no_done"},
    ],
    ids=lambda fault: "-".join(map(str, fault.values())),
)
async def test_a_stream_that_breaks_ends_with_an_error_and_is_not_stored(
    make_router: MakeRouter, redis_server: RedisServer, engines: EngineSet, redis: Any, path: str, fault: dict[str, Any]
) -> None:
    router = await make_router(router_config(redis_server.url, engines.as_config(), rest=timeouts_for(fault)))
    await engines.chat.set_faults(fault, SLOWLY)
    answer = await post_typed(router, path, "The sea?", stream=True)
    assert answer.status_code == 200
    events = typed_events(answer.content)
    assert typed_delta_text(events)
    last, error = events[-1], events[-1]["error"]
    assert "was interrupted" in error["message"]
    if path == MESSAGES:
        assert last == {"type": "error", "error": error, "request_id": answer.headers["x-request-id"]}
        assert error["type"] == "api_error"
    else:
        assert last["type"] == "response.failed"
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert (last["response"]["id"], last["response"]["status"]) == (events[0]["response"]["id"], "failed")
        assert last["response"]["error"] == {"code": "server_error", "message": error["message"]}
    assert LAST[path].encode() not in answer.content
    await engines.chat.clear_faults()
    assert (await post_typed(router, path, "The sea?", stream=True)).headers["x-cache"] == "MISS"


@PATHS
@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_without_a_finish_reason_is_not_stored(
    router: RouterServer, engines: EngineSet, path: str, stream: bool
) -> None:
    await engines.chat.set_faults({"fault": "no_finish"})
    answers = [await post_typed(router, path, "The sea?", stream=stream) for _ in range(2)]
    assert [answer.headers["x-cache"] for answer in answers] == ["MISS", "MISS"]
    assert all(answer.status_code == 200 for answer in answers)


@PATHS
async def test_a_response_that_reached_its_token_limit_is_stored(router: RouterServer, path: str) -> None:
    limit = {"max_output_tokens" if path == RESPONSES else "max_tokens": 5}
    for stream in (True, False):
        answers = [await post_typed(router, path, f"The sea? {stream}", stream=stream, **limit) for _ in range(2)]
        assert [answer.headers["x-cache"] for answer in answers] == ["MISS", "HIT"]
        assert answers[0].content == answers[1].content


@PATHS
async def test_an_error_of_an_engine_without_a_stream_goes_to_the_next_engine(
    router: RouterServer, engines: EngineSet, path: str
) -> None:
    await engines.chat.set_faults({"fault": "error", "after": 3})
    answer = await post_typed(router, path, "The sea?")
    assert (answer.status_code, answer.headers["x-engine"]) == (200, "llama-code")


@PATHS
async def test_errors_have_the_format_of_the_endpoint_whatever_their_origin(router: RouterServer, path: str) -> None:
    refused = [
        await post_typed(router, path, "x", model="gpt-9"),
        await router.post(path, b"{"),
        await router.post(path, {"model": "llama"}),
        await post_typed(router, path, "far too long " * 5000),
        await router.http.get(path),
        await router.post(path, b"x", content_encoding="gzip"),
        await post_typed(router, path, "far too long " * 5000, stream=True),
    ]
    assert [answer.status_code for answer in refused] == [404, 400, 400, 400, 405, 415, 400]
    for answer in refused:
        error = answer.json()
        if path == MESSAGES:
            kind = "not_found_error" if answer.status_code == 404 else "invalid_request_error"
            about = {"type": kind, "message": error["error"]["message"]}
            assert error == {"type": "error", "error": about, "request_id": answer.headers["x-request-id"]}
        else:
            assert list(error) == ["error"]
            assert {"message", "type", "param", "code"} <= error["error"].keys()
    assert "maximum context length" in refused[-1].json()["error"]["message"]


@PATHS
async def test_a_client_that_disconnects_frees_the_engine(router: RouterServer, engines: EngineSet, path: str) -> None:
    await engines.chat.set_faults({"fault": "stall", "after": 3})
    before = await engines.chat.stats()
    async with router.http.stream("POST", path, json=typed_body(path, "The sea?", stream=True)) as answer:
        stream = answer.aiter_raw()
        async with asyncio.timeout(10):
            await anext(stream)
    await engines.chat.stats(aborted=before["aborted"] + 1, in_flight=0)
