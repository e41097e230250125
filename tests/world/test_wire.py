"""What passes through: the client's request to the engine, and the engine's response to the client."""

import json
import re
from typing import Any

import pytest

from tests.support.router_server import LLAMA, LLAMA_ALIAS, MISTRAL, chat_body
from tests.support.sse_answers import ROLE_FRAME, chat_frame, parse_events
from tests.support.typed_answers import MESSAGES, RESPONSES, typed_body
from tests.support.waiting import eventually
from tests.world.defaults import default_router
from tests.world.processes import WorldEngine
from tests.world.scenario import World, scenario
from tests.world.scripted import scripted_router

CODE = "Write a Python function that reverses a linked list.\n```python\ndef reverse(head):\n```"
CHAT = "Tell me about the sea at night."


async def last_request(engine: WorldEngine) -> dict[str, Any]:
    """The last request that the engine received."""
    request: dict[str, Any] = (await engine.stats())["requests"][-1]
    return request


async def last_body(engine: WorldEngine) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((await last_request(engine))["body"])
    return body


# -- routing ----------------------------------------------------------------------------------------------------------


@scenario
async def test_a_prompt_goes_to_the_engine_for_its_task(world: World) -> None:
    router, engines = await default_router(world)
    for prompt, task, engine in ((CODE, "code", engines.code), (CHAT, "chat", engines.chat)):
        answer = await router.chat(prompt)
        assert (answer.headers["x-task"], answer.headers["x-engine"]) == (task, f"llama-{task}")
        assert (await last_body(engine))["messages"] == chat_body(prompt)["messages"]


@scenario
async def test_a_named_model_goes_to_its_engine_whatever_the_task(world: World) -> None:
    router, engines = await default_router(world)
    for prompt, task in ((CODE, "code"), (CHAT, "chat")):
        answer = await router.chat(prompt, model="mistral")
        assert (answer.headers["x-task"], answer.headers["x-engine"]) == (task, "mistral")
        assert (await last_body(engines.mistral))["model"] == MISTRAL


@scenario
async def test_an_alias_is_the_same_model_and_shares_its_entries(world: World) -> None:
    router, _ = await default_router(world)
    first = await router.chat(CHAT, model=LLAMA_ALIAS)
    second = await router.chat(CHAT, model="llama")
    assert (first.headers["x-cache"], second.headers["x-cache"]) == ("MISS", "HIT")
    assert first.headers["x-cache-key"] == second.headers["x-cache-key"]


@scenario
async def test_auto_goes_to_the_engine_for_the_task(world: World) -> None:
    router, _ = await default_router(world)
    assert (await router.chat(CODE, model="auto")).headers["x-engine"] == "llama-code"
    assert (await router.chat(CHAT, model="auto")).headers["x-engine"] == "llama-chat"


# -- to the engine ----------------------------------------------------------------------------------------------------


@scenario
async def test_the_engine_gets_the_clients_request_with_only_the_model_replaced(world: World) -> None:
    router, engines = await default_router(world)
    sent = rb'{"temperature": 1e0, "vendor": {"b": [1.50, "\u00e9\/"], "a":null} ,"model":"llama",'
    sent += rb'"seed": 12345678901234567890,"messages": [{"role":"user", "content": "Hi, \ud83d\ude00"}], "x": 1.0}'
    await router.post("/v1/chat/completions", sent)
    actual = (await last_request(engines.chat))["body"]
    for piece in ("1e0", r'{"b": [1.50, "\u00e9\/"], "a":null}', r'"Hi, \ud83d\ude00"', "12345678901234567890", "1.0}"):
        assert piece in actual
    expected = json.loads(sent) | {"model": LLAMA}
    assert list(json.loads(actual).items()) == list(expected.items())


@scenario
async def test_a_stream_requests_usage_and_the_ids_of_tokens_from_vllm_and_changes_nothing_else(world: World) -> None:
    router, engines = await default_router(world)
    await router.chat(CHAT, stream=True, unknown=[1])
    expected = chat_body(CHAT, stream=True, unknown=[1], model=LLAMA, stream_options={"include_usage": True})
    expected |= {"return_token_ids": True}
    assert await last_body(engines.chat) == expected


@scenario
async def test_other_stream_options_of_the_client_reach_the_engine(world: World) -> None:
    router, engines = await default_router(world)
    await router.chat(CHAT, stream=True, stream_options={"continuous_usage_stats": True, "include_usage": True, "x": 1})
    options = (await last_body(engines.chat))["stream_options"]
    assert options == {"continuous_usage_stats": True, "include_usage": True, "x": 1}


@scenario
async def test_neither_the_clients_key_nor_its_cookies_reach_an_engine(world: World) -> None:
    router, engines = await default_router(world)
    secrets = {"authorization": "Bearer top-secret", "cookie": "top-secret", "x-api-key": "top-secret"}
    answer = await router.chat(CHAT, headers={**secrets, "x-request-id": "id-1", "x-tenant-id": "top-secret"})
    assert answer.status_code == 200
    request = await last_request(engines.chat)
    assert "top-secret" not in str(request)
    assert "id-1" not in str(request)


ADDRESSES = "x___prefill_addr_10.0.0.1:21001___decode_addr_10.0.0.2:22001_y"
"""A request id in which vLLM's P2pNcclConnector would find the destination of a KV cache."""

ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": CHAT}]}),
    ("/v1/completions", {"prompt": CHAT}),
    ("/v1/responses", {"input": CHAT}),
    ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": CHAT}]}),
    ("/v1/embeddings", {"input": CHAT}),
]


@pytest.mark.parametrize("forwarded", ["mine", ADDRESSES, None])
@pytest.mark.parametrize(("path", "body"), ASKED)
@scenario
async def test_an_engine_gets_a_new_id_for_every_attempt_and_the_client_gets_its_own(
    world: World, path: str, body: dict[str, Any], forwarded: str | None
) -> None:
    router, engine = await scripted_router(world, status=500)
    headers = {} if forwarded is None else {"x-request-id": forwarded}
    answer = await router.http.post(path, json={"model": "llama", **body}, headers=headers)
    assert answer.status_code == 502
    sent = [re.findall(rb"\r\nx-request-id: ([^\r]*)\r\n", head) for head in engine.heads]
    assert len(sent) == 3
    ids = [id_.decode() for (id_,) in sent]
    own = re.escape(answer.headers["x-request-id"]) if forwarded is None else "[0-9a-f]{32}"
    assert re.fullmatch(own, ids[0])
    assert ids[1:] == [f"{ids[0]}-2", f"{ids[0]}-3"]
    if forwarded is not None:
        assert answer.headers["x-request-id"] == forwarded
        assert not any(forwarded.encode() in head for head in engine.heads)


@scenario
async def test_a_log_line_has_the_engines_request_id_if_it_differs(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    router, _ = await default_router(world)
    with caplog.at_level("INFO", "roundhouse.access"):
        await router.chat(CHAT, headers={"x-request-id": "mine"})
        await router.chat(CHAT, headers={"x-request-id": "again"})
        await router.chat(CHAT + "?")
    forwarded, hit, ours = [record.getMessage() for record in caplog.records if record.name == "roundhouse.access"]
    assert "request=mine " in forwarded
    assert re.search(" engine_request=[0-9a-f]{32} ", forwarded)
    assert "engine_request" not in hit
    assert "engine_request" not in ours


@pytest.mark.parametrize(("path", "body"), ASKED)
@scenario
async def test_a_request_id_in_a_body_cannot_be_a_network_address(
    world: World, path: str, body: dict[str, Any]
) -> None:
    router, _ = await default_router(world)
    answer = await router.http.post(path, json={"model": "llama", **body, "request_id": ADDRESSES})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "`request_id` must be 1 to 128 letters, digits, `_` and `-`."


@scenario
async def test_the_trace_of_the_client_reaches_the_engine(world: World) -> None:
    router, engines = await default_router(world)
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await router.chat(CHAT, headers={"traceparent": trace})
    assert (await last_request(engines.chat))["headers"]["traceparent"] == trace
    await router.chat(CHAT, headers={"traceparent": "nonsense"}, n=1)
    assert "traceparent" not in (await last_request(engines.chat))["headers"]


# -- to the client ----------------------------------------------------------------------------------------------------


@scenario
async def test_the_usage_event_is_sent_only_on_request_on_hits_as_on_misses(world: World) -> None:
    router, _ = await default_router(world)
    usages = []
    for prompt, first in ((CHAT, True), (CHAT + "?", False)):
        for wants_usage in (first, not first):
            options: dict[str, Any] = {"stream_options": {"include_usage": True}} if wants_usage else {}
            answer = await router.chat(prompt, stream=True, **options)
            usage_events = [event for event in parse_events(answer.content) if event.get("usage")]
            assert len(usage_events) == wants_usage
            assert answer.headers["x-cache"] == ("MISS" if wants_usage is first else "HIT")
            if usage_events:
                assert parse_events(answer.content)[-1] == usage_events[0]
                assert usage_events[0]["choices"] == []
                usages.append(usage_events[0]["usage"])
    assert len(usages) == 2
    assert all(usage["completion_tokens"] > 0 for usage in usages)


@scenario
async def test_usage_in_every_event_is_forwarded_to_clients_that_request_it(world: World) -> None:
    router, _ = await default_router(world)
    options = {"include_usage": True, "continuous_usage_stats": True}
    for cache in ("MISS", "HIT"):
        answer = await router.chat(CHAT, stream=True, stream_options=options)
        assert answer.headers["x-cache"] == cache
        assert all(event["usage"]["prompt_tokens"] for event in parse_events(answer.content))


@scenario
async def test_an_event_that_is_cut_in_two_is_forwarded_when_complete(world: World) -> None:
    complete, half = chat_frame(content="a"), chat_frame(content="b")[:-10]
    router, _ = await scripted_router(world, ROLE_FRAME, complete, half, hold=True)
    answer = await router.chat(CHAT, stream=True)  # until the timeout between tokens
    assert answer.content.startswith(ROLE_FRAME + complete + b'data: {"error"')


# -- headers ----------------------------------------------------------------------------------------------------------


@scenario
async def test_a_valid_request_id_is_kept_and_an_invalid_one_replaced(world: World) -> None:
    router, _ = await default_router(world)
    valid = ("abc-123", "a" * 128, "550e8400-e29b-41d4-a716-446655440000", "a/b.c:d+e=@_")
    for path in ("/v1/chat/completions", "/v1/models", "/nowhere", "/healthz"):
        method = "POST" if "chat" in path else "GET"
        for forwarded in (*valid, "", "a" * 129, "a b", 'a"b', "a;b", "ü"):
            headers = {b"x-request-id": forwarded.encode("latin-1")}
            answer = await router.http.request(method, path, content=b"{}", headers=headers)
            (given,) = answer.headers.get_list("x-request-id")
            assert given == forwarded if forwarded in valid else re.fullmatch("[0-9a-f]{32}", given)


@scenario
async def test_a_request_without_an_id_gets_a_new_one(world: World) -> None:
    router, _ = await default_router(world)
    ids = {(await router.chat(CHAT)).headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3


@pytest.mark.parametrize("stream", [False, True])
@scenario
async def test_a_response_says_where_it_came_from(world: World, stream: bool) -> None:
    router, _ = await default_router(world)
    redis = world.redis.client
    miss = await router.chat(CHAT, stream=stream)
    assert miss.status_code == 200
    assert miss.headers["content-type"] == ("text/event-stream; charset=utf-8" if stream else "application/json")
    assert miss.headers["x-cache"] == "MISS"
    assert miss.headers["cache-status"] == "roundhouse; fwd=uri-miss"
    assert "age" not in miss.headers
    hit = await router.chat(CHAT, stream=stream)
    assert hit.headers["content-type"] == miss.headers["content-type"]
    assert hit.headers["x-cache"] == "HIT"
    assert re.fullmatch(r"roundhouse; hit; ttl=\d+", hit.headers["cache-status"])
    assert 0 <= int(hit.headers["age"]) < 60
    for name in ("x-cache-key", "x-task", "x-engine"):
        assert hit.headers[name] == miss.headers[name]
    assert hit.headers["x-request-id"] != miss.headers["x-request-id"]
    assert await eventually(lambda: redis.exists(miss.headers["x-cache-key"]))


# -- /v1/messages -----------------------------------------------------------------------------------------------------


@scenario
async def test_anthropics_beta_headers_and_query_are_accepted_and_change_no_key(world: World) -> None:
    router, _ = await default_router(world)
    body = typed_body(MESSAGES, CHAT, temperature=0)
    first = await router.post(
        f"{MESSAGES}?beta=true", body, anthropic_beta="effort-2025-11-24", anthropic_version="2023-06-01"
    )
    second = await router.post(MESSAGES, body)
    assert [answer.headers["x-cache"] for answer in (first, second)] == ["MISS", "HIT"]
    assert first.json()["content"] == second.json()["content"]


@pytest.mark.parametrize(
    ("path", "heartbeat"), [(MESSAGES, b'event: ping\ndata: {"type": "ping"}\n\n'), (RESPONSES, b": heartbeat\n\n")]
)
@scenario
async def test_a_silent_stream_gets_heartbeats_that_are_not_stored(world: World, path: str, heartbeat: bytes) -> None:
    router, engines = await default_router(world)
    await engines.chat.set_faults({"fault": "ttft", "ms": 20_000})
    body = typed_body(path, CHAT, temperature=0, stream=True)
    first = await router.post(path, body)
    assert first.content.startswith(heartbeat)
    assert first.content.count(heartbeat) == 1
    second = await router.post(path, body)
    assert (second.headers["x-cache"], second.content) == ("HIT", first.content.removeprefix(heartbeat))
