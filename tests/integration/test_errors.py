"""Refused requests: always in the error format of the endpoint, always with an id, and not sent to an engine."""

import asyncio
import gzip
import json
from typing import Any

import pytest

from tests.support.router_server import EngineSet, MakeRouter, RouterServer, chat_body

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


def error_of(answer: Any, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    body = answer.json()
    if str(answer.url.path) == "/v1/messages":  # Anthropic's format
        assert (set(body), body["type"]) == ({"type", "error", "request_id"}, "error")
        assert set(body["error"]) == {"message", "type"}
    else:
        assert list(body) == ["error"]
        assert set(body["error"]) == {"message", "type", "param", "code"}
    assert "Traceback" not in answer.text
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize(
    "body", [b"", b"{", b"nonsense", b'{"a": NaN}', b"\xff", b'{"model": "\xff"}', b"[]", b'"x"', b"1", b"null"]
)
async def test_a_body_that_is_not_a_json_object_is_refused(router: RouterServer, body: bytes) -> None:
    for path in (CHAT, COMPLETIONS):
        error = error_of(await router.post(path, body), 400)
        assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_json")


@pytest.mark.parametrize("deep", [b"[" * 100_000, b'{"a":' * 100_000, b"[" * 100_000 + b"]" * 100_000])
async def test_a_body_that_is_nested_too_deeply_is_refused(router: RouterServer, deep: bytes) -> None:
    body = b'{"model":"llama","messages":[{"role":"user","content":"x"}],"deep":%b}' % deep
    assert error_of(await router.post(CHAT, body), 400)["code"] == "invalid_json"


NESTED: list[tuple[str, Any, bytes]] = [
    (path, {"model": "llama", "max_tokens": 1, **fields}, place)
    for path, fields, place in (
        (COMPLETIONS, {"prompt": "HERE"}, b"["),
        (COMPLETIONS, {"prompt": "x", "stop": "HERE"}, b"["),
        ("/v1/embeddings", {"input": "HERE"}, b"["),
        (CHAT, {"messages": [{"role": "user", "content": "HERE"}]}, b'[{"content":'),
        (CHAT, {"messages": [{"role": "user", "content": "x", "tool_calls": "HERE"}]}, b"["),
        (CHAT, {"messages": HELLO, "documents": "HERE"}, b'[{"text":'),
        (CHAT, {"messages": HELLO, "tools": "HERE"}, b'[{"function":'),
        ("/v1/responses", {"input": [{"role": "user", "content": "HERE"}]}, b'[{"content":'),
        ("/v1/responses", {"input": "x", "tools": "HERE"}, b'[{"type":'),
        ("/v1/messages", {"messages": [{"role": "user", "content": "HERE"}]}, b'[{"content":'),
        ("/v1/messages", {"messages": HELLO, "system": "HERE"}, b'[{"content":'),
    )
]


@pytest.mark.parametrize("levels", [60, 200, 450])
@pytest.mark.parametrize(("path", "fields", "opening"), NESTED)
async def test_a_kilobyte_of_nesting_is_refused_without_a_traceback(
    router: RouterServer, path: str, fields: Any, opening: bytes, levels: int
) -> None:
    count = levels // (opening.count(b"[") + opening.count(b"{"))
    closing = b"".join(b"]" if c == ord("[") else b"}" for c in reversed(opening) if c in b"[{")
    deep = opening * count + b"[]" + closing * count
    answer = await router.post(path, json.dumps(fields).encode().replace(b'"HERE"', deep))
    if levels > 100:
        error = error_of(answer, 400)
        assert error.get("code", "invalid_json") == "invalid_json"  # Anthropic's errors have no code
        assert error["type"] == "invalid_request_error"
    else:
        assert answer.status_code != 500


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": HELLO}, "model"),
        (CHAT, {"model": 1, "messages": HELLO}, "model"),
        (CHAT, {"model": "", "messages": HELLO}, "model"),
        (CHAT, {"model": "x" * 300, "messages": HELLO}, "model"),
        (CHAT, {"model": "llama"}, "messages"),
        (CHAT, {"model": "llama", "messages": []}, "messages"),
        (CHAT, {"model": "llama", "messages": "hello"}, "messages"),
        (CHAT, {"model": "llama", "messages": [{"content": "x"}]}, "messages[0].role"),
        (CHAT, {"model": "llama", "messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        (CHAT, {"model": "llama", "messages": HELLO, "stream": "yes"}, "stream"),
        (CHAT, {"model": "llama", "messages": HELLO, "stream_options": 1}, "stream_options"),
        (CHAT, {"model": "llama", "messages": HELLO, "temperature": "hot"}, "temperature"),
        (CHAT, {"model": "llama", "messages": HELLO, "max_tokens": 1.5}, "max_tokens"),
        (CHAT, {"model": "llama", "messages": HELLO, "documents": "text"}, "documents"),
        (COMPLETIONS, {"model": "llama"}, "prompt"),
        (COMPLETIONS, {"model": "llama", "prompt": {}}, "prompt"),
    ],
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else None,
)
async def test_the_wrong_field_is_named(
    router: RouterServer, engines: EngineSet, path: str, body: dict[str, Any], param: str
) -> None:
    before = [(await engine.stats())["received"] for engine in engines]
    error = error_of(await router.post(path, body), 400)
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert [(await engine.stats())["received"] for engine in engines] == before


@pytest.mark.parametrize("model", ["gpt-4", "Llama", "llama ", "meta-llama/Llama-Simulated"])
async def test_an_unknown_model_is_404(router: RouterServer, model: str) -> None:
    error = error_of(await router.chat("hello", model=model), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert f"`{model}`" in error["message"]


async def test_the_model_auto_is_unknown_where_no_model_has_tasks(make_router: MakeRouter, config: str) -> None:
    router = await make_router(config.replace('auto = ["chat", "code"]', "auto = []"))
    assert error_of(await router.chat("hello", model="auto"), 404)["code"] == "model_not_found"
    assert "auto" not in [model["id"] for model in (await router.http.get("/v1/models")).json()["data"]]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
async def test_a_wrong_method_is_405_and_names_the_right_one(router: RouterServer, path: str, method: str) -> None:
    answer = await router.http.request(method, path)
    assert error_of(answer, 405)["code"] == "method_not_allowed"
    assert answer.headers["allow"] == "OPTIONS, POST"


async def test_a_wrong_method_on_a_page_is_405_and_names_the_right_ones(router: RouterServer) -> None:
    answer = await router.http.post("/v1/models")
    assert error_of(answer, 405)["code"] == "method_not_allowed"
    assert "GET" in answer.headers["allow"]


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/", "/v1/chat/completions/", "/v1/audio/speech", "/v1/models/gpt-4"])
async def test_an_unknown_path_is_404(router: RouterServer, path: str) -> None:
    error_of(await router.http.get(path), 404)


@pytest.mark.parametrize("coding", ["gzip", "br", "identity, gzip"])
async def test_a_body_with_a_content_encoding_is_415(router: RouterServer, coding: str) -> None:
    answer = await router.post(CHAT, gzip.compress(json.dumps(chat_body("hello")).encode()), content_encoding=coding)
    assert error_of(answer, 415)["code"] == "unsupported_encoding"
    assert (await router.post(CHAT, chat_body("hello"), content_encoding="Identity")).status_code == 200


@pytest.mark.parametrize("digits", [25, 400])
@pytest.mark.parametrize("sign", ["", "-"])
async def test_an_invalid_number_of_tokens_is_no_internal_error(router: RouterServer, digits: int, sign: str) -> None:
    body = json.dumps(chat_body("hello")).removesuffix("}") + f', "max_tokens": {sign}1{"0" * digits}}}'
    assert (await router.post(CHAT, body.encode())).status_code in (200, 400)


# -- bodies that are too large ----------------------------------------------------------------------------------------


async def test_a_body_over_the_limit_is_413(make_router: MakeRouter, config: str) -> None:
    router = await make_router(config.replace("[router]", '[router]\nmax_body = "2KiB"'))
    fits = json.dumps(chat_body("x" * 1900)).encode()
    assert len(fits) < 2048
    assert (await router.post(CHAT, fits)).status_code == 200
    assert (await router.post(CHAT, fits.ljust(2048))).status_code == 200
    assert error_of(await router.post(CHAT, fits.ljust(2049)), 413)["code"] == "body_too_large"


async def test_a_body_announced_as_too_large_is_refused_before_it_arrives(router: RouterServer) -> None:
    status, error = await _refused(router, b"Content-Length: 10000000000\r\n\r\n{")
    assert (status, error["code"]) == (413, "body_too_large")


async def test_a_body_that_grows_too_large_is_refused_before_its_end(make_router: MakeRouter, config: str) -> None:
    router = await make_router(config.replace("[router]", '[router]\nmax_body = "2KiB"'))
    chunks = b"400\r\n%b\r\n" % (b"x" * 1024) * 3
    status, error = await _refused(router, b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
    assert (status, error["code"]) == (413, "body_too_large")


async def _refused(router: RouterServer, rest: bytes) -> tuple[int, dict[str, Any]]:
    """The response to a request that is never completed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
    try:
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + rest)
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readuntil(b"}}")
    finally:
        writer.close()
    return int(head.split()[1]), json.loads(body)["error"]


async def test_refusals_are_counted_by_their_reason(router: RouterServer) -> None:
    await router.post(CHAT, b"{")
    await router.chat("hello", model="gpt-4")
    await router.chat("hello", model="gpt-5")
    metrics = await router.metrics()
    assert metrics['llm_requests_rejected_total{reason="invalid_json"}'] == 1
    assert metrics['llm_requests_rejected_total{reason="model_not_found"}'] == 2
