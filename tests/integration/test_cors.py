"""Web pages of other origins: what a browser sends to the router, and what it gets."""

import httpx
import pytest

from router.api.access.auth import hash_key
from tests.support.raw_http import CHAT_HEAD, connect, http_request
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, router_config

pytestmark = pytest.mark.asyncio(loop_scope="session")

APP, OTHER = "https://app.example", "https://evil.example"
FROM_APP = {"origin": APP}
KEYS = (
    f'[auth]\nmode = "keys"\nadmin_keys = ["{hash_key(b"admin")}"]\n'
    f'[[tenant]]\nname = "acme"\nkeys = ["{hash_key(b"key")}"]'
)
CHAT = "/v1/chat/completions"
PREFLIGHT = {**FROM_APP, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}


async def open_to(
    make_router: MakeRouter,
    redis_server: RedisServer,
    engines: EngineSet,
    *origins: str,
    router: str = "",
    rest: str = "",
) -> RouterServer:
    allowed = f"allowed_origins = {list(origins)}\n{router}"
    return await make_router(router_config(redis_server.url, engines.as_config(), router=allowed, rest=rest))


def allowed_origin(answer: httpx.Response) -> str | None:
    assert "access-control-allow-credentials" not in answer.headers
    origin: str | None = answer.headers.get("access-control-allow-origin")
    return origin


async def test_by_default_no_response_mentions_cors(router: RouterServer) -> None:
    answers = [
        await router.chat("Hi", headers=FROM_APP),
        await router.http.get("/v1/models", headers=FROM_APP),
        await router.http.options(CHAT, headers=PREFLIGHT),
        await router.http.get("/nothing", headers=FROM_APP),
    ]
    for answer in answers:
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert "vary" not in answer.headers


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/models", "/v1/nothing", "/healthz"])
async def test_a_preflight_needs_no_key(
    make_router: MakeRouter, redis_server: RedisServer, engines: EngineSet, path: str
) -> None:
    router = await open_to(make_router, redis_server, engines, APP, rest=KEYS)
    answer = await router.http.options(path, headers=PREFLIGHT)
    assert (answer.status_code, answer.content, allowed_origin(answer)) == (204, b"", APP)
    assert "authorization" in answer.headers["access-control-allow-headers"]
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["x-request-id"]
    refused = await router.http.options(path, headers=PREFLIGHT | {"origin": OTHER})
    assert (refused.status_code, allowed_origin(refused)) == (204, None)


async def test_hits_misses_streams_and_errors_name_the_origin(
    make_router: MakeRouter, redis_server: RedisServer, engines: EngineSet
) -> None:
    router = await open_to(make_router, redis_server, engines, APP, router='max_body = "1KiB"', rest=KEYS)
    key = {"authorization": "Bearer key", **FROM_APP}
    body = {"model": "llama", "messages": [{"role": "user", "content": "The sea?"}]}
    answers = [
        await router.http.post(CHAT, json=body, headers=key),
        await router.http.post(CHAT, json=body, headers=key),
        await router.http.post(CHAT, json={**body, "stream": True, "seed": 1}, headers=key),
        await router.http.post(CHAT, json=body, headers=FROM_APP),
        await router.http.post(CHAT, content=b"x" * 2000, headers=key),
        await router.http.post(CHAT, content=b"x", headers=key | {"content-encoding": "gzip"}),
        await router.http.post(CHAT, content=b"x", headers=key),
        await router.http.get(CHAT, headers=key),
        await router.http.get("/v1/models", headers=key),
        await router.http.get("/v1/nothing", headers=key),
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 401, 413, 415, 400, 405, 200, 404]
    assert [answer.headers["x-cache"] for answer in answers[:3]] == ["MISS", "HIT", "MISS"]
    for answer in answers:
        assert (allowed_origin(answer), answer.headers["vary"]) == (APP, "Origin")
        assert "X-Cache" in answer.headers["access-control-expose-headers"]
    other = await router.http.post(CHAT, json=body, headers=key | {"origin": OTHER})
    assert (other.status_code, other.headers["x-cache"], allowed_origin(other)) == (200, "HIT", None)
    assert other.headers["vary"] == "Origin"


async def test_errors_of_the_protocol_name_the_origin_as_far_as_it_is_known(
    make_router: MakeRouter, redis_server: RedisServer, engines: EngineSet
) -> None:
    router = await open_to(make_router, redis_server, engines, APP)
    origin = b"origin: %b\r\n" % APP.encode()
    broken = [
        CHAT_HEAD + origin + b"x-large: %b\r\n\r\n" % (b"x" * 70_000),
        CHAT_HEAD + origin + b"accept: */*\r\na b: c\r\n\r\n",
        CHAT_HEAD + origin + b"transfer-encoding: chunked\r\n\r\nno size\r\n",
    ]
    for sent in broken:
        async with connect(router.port) as connection:
            connection.write(sent)
            answer = await connection.read_response()
        assert answer.status in (400, 431)
        assert b"access-control-allow-origin: https://app.example\r\n" in answer.head
    async with connect(router.port) as connection:
        connection.write(b"nonsense\r\n\r\n")
        answer = await connection.read_response()
    assert b"access-control-allow-origin" not in answer.head
    assert b"vary: origin" in answer.head


async def test_with_all_origins_allowed_an_error_without_a_request_is_readable_too(
    make_router: MakeRouter, redis_server: RedisServer, engines: EngineSet
) -> None:
    router = await open_to(make_router, redis_server, engines, "*")
    assert allowed_origin(await router.chat("Hi", headers=FROM_APP)) == "*"
    async with connect(router.port) as connection:
        connection.write(b"nonsense\r\n\r\n")
        assert b"access-control-allow-origin: *\r\n" in (await connection.read_response()).head


@pytest.mark.parametrize(
    "path",
    ["/admin", "/admin/engines", "/admin/nothing", "/dashboard", "/dashboard/login", "/v1/load_lora_adapter",
     "/v1/unload_lora_adapter"],
)  # fmt: skip
async def test_the_admin_api_and_the_dashboard_are_never_open_to_other_pages(
    make_router: MakeRouter, redis_server: RedisServer, engines: EngineSet, path: str
) -> None:
    router = await open_to(make_router, redis_server, engines, "*", rest=KEYS)
    for method in ("OPTIONS", "GET"):
        answer = await router.http.request(method, path, headers=PREFLIGHT | {"authorization": "Bearer admin"})
        assert allowed_origin(answer) is None
        assert "access-control-allow-methods" not in answer.headers


async def test_a_pipelined_request_gets_the_lines_of_its_own_origin(
    make_router: MakeRouter, redis_server: RedisServer, engines: EngineSet
) -> None:
    router = await open_to(make_router, redis_server, engines, APP, "http://localhost:3000")
    async with connect(router.port) as connection:
        for origin in (b"http://localhost:3000", b"https://app.example", b"https://evil.example"):
            connection.write(http_request(None, b"origin: %b" % origin, method=b"GET", path=b"/version"))
        heads = [(await connection.read_response()).head for _ in range(3)]
    assert b"allow-origin: http://localhost:3000\r\n" in heads[0]
    assert b"allow-origin: https://app.example\r\n" in heads[1]
    assert b"allow-origin" not in heads[2]
