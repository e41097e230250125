"""Refused requests: always in the error format, always with an id; test_endpoints.py has what each endpoint refuses."""

import asyncio
import gzip
import json
from typing import Any, Final

import httpx
import pytest

from tests.support.router_server import chat_body, router_config
from tests.world.http import PORT
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
HELLO: Final = [{"role": "user", "content": "hello"}]


async def start(world: World, **options: Any) -> WorldRouter:
    engine = await world.engine()
    return await world.router(router_config(world.redis.url, {"one": ("llama", "any", engine.url)}, **options))


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    error: dict[str, Any] = answer.json()["error"]
    assert error["message"]
    assert "Traceback" not in answer.text
    return error


@scenario
async def test_a_body_that_is_not_a_json_object_is_refused(world: World) -> None:
    router = await start(world)
    wrong = (b"", b"{", b"nonsense", b'{"a": NaN}', b"\xff", b'{"model": "\xff"}', b"[]", b'"x"', b"1", b"null")
    for body in wrong:
        for path in (CHAT, COMPLETIONS):
            error = error_of(await router.post(path, body), 400)
            assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_json"), body


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
@scenario
async def test_a_kilobyte_of_nesting_is_refused_without_a_traceback(world: World, levels: int) -> None:
    router = await start(world)
    for path, fields, opening in NESTED:
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


@scenario
async def test_an_unknown_model_is_404(world: World) -> None:
    router = await start(world)
    for model in ("gpt-4", "Llama", "llama ", "meta-llama/Llama-Simulated"):
        error = error_of(await router.chat("hello", model=model), 404)
        assert (error["param"], error["code"]) == ("model", "model_not_found")
        assert f"`{model}`" in error["message"]


@scenario
async def test_the_model_auto_is_unknown_where_no_model_has_tasks(world: World) -> None:
    engine = await world.engine()
    text = router_config(world.redis.url, {"one": ("llama", "any", engine.url)})
    router = await world.router(text.replace('auto = ["chat", "code"]', "auto = []"))
    assert error_of(await router.chat("hello", model="auto"), 404)["code"] == "model_not_found"
    assert "auto" not in [model["id"] for model in (await router.http.get("/v1/models")).json()["data"]]


@scenario
async def test_a_wrong_method_is_405_and_names_the_right_one(world: World) -> None:
    router = await start(world)
    for method in ("GET", "PUT", "DELETE", "PATCH"):
        answer = await router.http.request(method, CHAT)
        assert error_of(answer, 405)["code"] == "method_not_allowed"
        assert answer.headers["allow"] == "OPTIONS, POST"
    answer = await router.http.post("/v1/models")
    assert error_of(answer, 405)["code"] == "method_not_allowed"
    assert "GET" in answer.headers["allow"]


@scenario
async def test_an_unknown_path_is_404(world: World) -> None:
    router = await start(world)
    for path in ("/", "/v1", "/v1/", "/v1/chat/completions/", "/v1/audio/speech", "/v1/models/gpt-4"):
        error_of(await router.http.get(path), 404)


@scenario
async def test_a_body_with_a_content_encoding_is_415(world: World) -> None:
    router = await start(world)
    for coding in ("gzip", "br", "identity, gzip"):
        body = gzip.compress(json.dumps(chat_body("hello")).encode())
        assert error_of(await router.post(CHAT, body, content_encoding=coding), 415)["code"] == "unsupported_encoding"
    assert (await router.post(CHAT, chat_body("hello"), content_encoding="Identity")).status_code == 200


@scenario
async def test_an_invalid_number_of_tokens_is_no_internal_error(world: World) -> None:
    router = await start(world)
    for digits in (25, 400):
        for sign in ("", "-"):
            body = json.dumps(chat_body("hello")).removesuffix("}") + f', "max_tokens": {sign}1{"0" * digits}}}'
            assert (await router.post(CHAT, body.encode())).status_code in (200, 400)


# -- bodies that are too large ----------------------------------------------------------------------------------------


@scenario
async def test_a_body_as_large_as_the_limit_is_served(world: World) -> None:
    router = await start(world, router='max_body = "2KiB"')
    fits = json.dumps(chat_body("x" * 1900)).encode()
    assert (await router.post(CHAT, fits.ljust(2048))).status_code == 200


@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: 2049\r\n\r\n{",
        b"Content-Length: %d\r\n\r\n" % (1 << 40),
        b"Transfer-Encoding: chunked\r\n\r\n" + b"400\r\n%b\r\n" % (b"x" * 1024) * 2 + b"1\r\nx\r\n",
    ],
    ids=["announced", "huge", "grows"],
)
@scenario
async def test_a_body_over_the_limit_is_refused_before_its_end(world: World, rest: bytes) -> None:
    router = await start(world, router='max_body = "2KiB"')
    reader, writer = await asyncio.open_connection(router.name, PORT)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + rest)
    head = await reader.readuntil(b"\r\n\r\n")
    error = json.loads(await reader.readuntil(b"}}"))["error"]
    writer.close()
    assert (int(head.split()[1]), error["code"]) == (413, "body_too_large")
