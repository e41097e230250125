"""Security limits: header values, unbounded bodies, administrators without a key, the network."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from starlette.routing import Route

from engines.redis_server import redis_argv
from router.api.access.auth import hash_key
from router.core.cache.key_derivation import MAX_DOCUMENTS, MAX_PARTS
from router.core.endpoints.requests.request import MAX_CONTAINERS, MAX_FIELDS
from router.process.app import build
from router.process.application import Application
from router.settings import ConfigurationError, Settings, parse
from tests.support.paths import ROOT
from tests.support.raw_http import CRLF, chunked_body, connect, http_request
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, ScriptedRouter, chat_body, router_config
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame

pytestmark = pytest.mark.asyncio(loop_scope="session")


# -- headers ----------------------------------------------------------------------------------------------------------

HOSTILE = [
    b"a b", b"a\tb", b"", b"x" * 129, b'"', b"a,b", b"<script>", b"\xe9", b"a\x80b", b"%0d%0aset-cookie: a=b",
    b"a\\r\\nset-cookie: a=b", b"${jndi:ldap://x}",
]  # fmt: skip


@pytest.mark.parametrize("value", HOSTILE)
async def test_an_invalid_request_id_is_replaced_everywhere(scripted: ScriptedRouter, value: bytes) -> None:
    router, engine = await scripted(
        ROLE_FRAME, chat_frame(content="a"), chat_frame(content="", finish="stop") + DONE_FRAME
    )
    for request in (
        http_request(chat_body("The sea?", stream=True), b"x-request-id: " + value),
        http_request(None, b"x-request-id: " + value, method=b"GET", path=b"/version"),
        http_request(None, b"x-request-id: " + value, method=b"GET", path=b"/nothing"),
        http_request({}, b"x-request-id: " + value),
    ):
        async with connect(router.port) as connection:
            connection.write(request)
            answer = await connection.read_response()
        (received_id,) = re.findall(rb"\r\nx-request-id: ([^\r]*)\r\n", answer.head)
        assert re.fullmatch(rb"[0-9a-f]{32}", received_id)
        assert b"set-cookie" not in answer.head
    (head,) = engine.heads
    assert re.search(rb"x-request-id: [0-9a-f]{32}\r\n", head)


@pytest.mark.parametrize("value", [b"nonsense", b"00-" + b"g" * 32 + b"-0000000000000000-01", b"a\tb", b"\xff"])
async def test_an_invalid_traceparent_is_not_forwarded(scripted: ScriptedRouter, value: bytes) -> None:
    router, engine = await scripted(
        ROLE_FRAME, chat_frame(content="a"), chat_frame(content="", finish="stop") + DONE_FRAME
    )
    async with connect(router.port) as connection:
        connection.write(http_request(chat_body("The sea?", stream=True), b"traceparent: " + value))
        assert (await connection.read_response()).status == 200
    assert b"traceparent" not in engine.heads[0]


async def test_an_engine_gets_none_of_a_clients_headers_and_a_body_of_one_length(scripted: ScriptedRouter) -> None:
    router, engine = await scripted(
        ROLE_FRAME, chat_frame(content="a"), chat_frame(content="", finish="stop") + DONE_FRAME
    )
    body = json.dumps(chat_body("The sea?", stream=True)).encode()
    hostile = [
        b"transfer-encoding: chunked", b"authorization: Bearer secret", b"cookie: a=b", b"x-session-id: a\tb",
        b"x-forwarded-for: 1.2.3.4", b"x-tenant-id: other", b"te: trailers", b"connection: keep-alive, x-hop",
        b"x-hop: a", b"range: bytes=0-1",
    ]  # fmt: skip
    async with connect(router.port) as connection:
        connection.write(http_request(None, *hostile), chunked_body(body[:7], body[7:], trailers=b"x-trailer: a\r\n"))
        assert (await connection.read_response()).status == 200
    (head,), (sent,) = engine.heads, engine.bodies
    lines = head.removesuffix(CRLF + CRLF).split(CRLF)
    names = [line.partition(b":")[0].lower() for line in lines[1:]]
    assert sorted(names) == [b"accept-encoding", b"content-length", b"content-type", b"host", b"x-request-id"]
    assert lines[0] == b"POST /v1/chat/completions HTTP/1.1"
    assert b"content-length: %d" % len(sent) in head.lower()
    assert b"\n" not in head.replace(CRLF, b"")


async def test_the_query_of_a_request_does_not_reach_an_engine(scripted: ScriptedRouter) -> None:
    router, engine = await scripted(
        ROLE_FRAME, chat_frame(content="a"), chat_frame(content="", finish="stop") + DONE_FRAME
    )
    path = b"/v1/chat/completions?a=%0d%0ax:%20y"
    async with connect(router.port) as connection:
        connection.write(http_request(chat_body("The sea?", stream=True), path=path))
        assert (await connection.read_response()).status == 200
    assert engine.heads[0].startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")


@pytest.mark.parametrize("name", ["a\\r\\nb", "a b", "A", "a:b", "", "ä", "a/b", "*", "claim", "drain"])
async def test_a_tenant_name_cannot_contain_special_characters_of_headers_or_patterns(name: str) -> None:
    text = f'[[tenant]]\nname = "{name}"\n[[model]]\nname = "m"\n[[engine]]\nname = "e"\nmodel = "m"\nurl = "http://a"'
    with pytest.raises(ConfigurationError, match="name"):
        parse(text, {})


async def test_an_unknown_tenant_is_401_whatever_its_name(
    redis_server: RedisServer, engines: EngineSet, make_router: MakeRouter
) -> None:
    rest = '[auth]\nmode = "header"\n[[tenant]]\nname = "acme"\n'
    router = await make_router(router_config(redis_server.url, engines.as_config(), rest=rest))
    for headers in (
        [b"x-tenant-id: "], [b"x-tenant-id: acme:llama"], [b"x-tenant-id: *"], [b"x-tenant-id: acme\xff"],
        [b"x-tenant-id: acme", b"x-tenant-id: acme"], [b"x_tenant_id: acme"],
    ):  # fmt: skip
        async with connect(router.port) as connection:
            connection.write(http_request(chat_body("The sea?"), *headers))
            assert (await connection.read_response()).status == 401


# -- bodies -----------------------------------------------------------------------------------------------------------

CONTEXT = "<context></context>"
TOO_MANY = {
    "contexts": {"messages": [{"role": "user", "content": CONTEXT * (MAX_DOCUMENTS + 1)}]},
    "contexts in all": {"messages": [{"role": "system", "content": CONTEXT * 100}] * (MAX_DOCUMENTS // 100 + 1)},
    "documents": {"messages": [{"role": "user", "content": "x"}], "documents": [{}] * (MAX_DOCUMENTS + 1)},
    "messages": {"messages": [{"role": "user", "content": ""}] * (MAX_PARTS + 1)},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 200}] * (MAX_PARTS // 200)},
    "objects": {"messages": [{"role": "user", "content": "x"}], "x": [{}] * MAX_CONTAINERS},
    "lists": {"messages": [{"role": "user", "content": "x"}], "x": [[]] * MAX_CONTAINERS},
    "fields": {"messages": [{"role": "user", "content": "x"}], **{f"x{number}": 1 for number in range(MAX_FIELDS)}},
}


@pytest.mark.parametrize("fields", TOO_MANY.values(), ids=TOO_MANY)
async def test_a_body_of_too_many_pieces_is_refused_before_it_delays_others(
    router: RouterServer, fields: dict[str, Any]
) -> None:
    body = json.dumps({"model": "llama", **fields}, separators=(",", ":")).encode()
    assert len(body) < 4 << 20
    answer = await router.post("/v1/chat/completions", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "too_many_parts")


async def test_a_body_with_the_maximum_number_of_pieces_is_accepted(router: RouterServer) -> None:
    many = [{"role": "user", "content": f"<context>{n}</context>"} for n in range(MAX_DOCUMENTS)]
    answer = await router.post("/v1/chat/completions", {"model": "llama", "messages": many})
    assert answer.json().get("error", {}).get("code") != "too_many_parts"


async def test_a_body_a_hundred_thousand_levels_deep_is_refused(router: RouterServer) -> None:
    body = b'{"model":"llama","messages":[{"role":"user","content":"x"}],"x":%b}' % (b"[" * 100_000 + b"]" * 100_000)
    answer = await router.post("/v1/chat/completions", body)
    assert answer.status_code == 400
    assert "levels deep" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/admin/cache/purge", "/admin/cache/explain"])
async def test_a_body_that_is_nested_too_deeply_is_refused_by_the_admin_api(guarded: RouterServer, path: str) -> None:
    answer = await guarded.post(path, b"[" * 100_000, authorization="Bearer admin-key")
    assert answer.status_code == 400


# -- administrators ---------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(redis_server: RedisServer, engines: EngineSet, make_router: MakeRouter) -> RouterServer:
    rest = f'[auth]\nadmin_keys = ["{hash_key(b"admin-key")}"]\n'
    return await make_router(router_config(redis_server.url, engines.as_config(), rest=rest))


def admin_pages(application: Application) -> list[tuple[str, str]]:
    """Every route under /admin, with a method that it accepts."""
    routes = [
        route
        for route in application._runtime.starlette_app.routes
        if isinstance(route, Route) and route.path.startswith("/admin")
    ]
    return [(method, re.sub(r"\{[^}]*\}", "x", route.path)) for route in routes for method in route.methods or ()]


async def test_nothing_under_admin_is_open_without_a_key(config: str) -> None:
    pages = admin_pages(build(parse(config, {})))
    assert len(pages) > 15
    assert ("POST", "/admin/engines/x/drain") in pages


@pytest.mark.parametrize("closed", [True, False])
async def test_every_page_under_admin_requires_a_key(
    router: RouterServer, guarded: RouterServer, redis: Any, closed: bool
) -> None:
    server, status = (router, 403) if closed else (guarded, 401)
    await redis.set("rh:1:kept", "kept")
    for method, path in admin_pages(server.application):
        for headers in (
            {}, {"authorization": "Bearer"}, {"authorization": "Bearer wrong"}, {"authorization": "Basic admin-key"},
            {"x-api-key": "admin-key"}, {"cookie": "admin-key"},
        ):  # fmt: skip
            for spelling in (path, path.replace("/admin", "/%61dmin"), path + "?authorization=Bearer%20admin-key"):
                answer = await server.http.request(method, spelling, headers=headers, content=b'{"all": true}')
                assert answer.status_code == status, (method, spelling, headers)
    for path in ("/Admin/engines", "//admin/engines", "/./admin/engines", "/admin/../admin/engines", "/admin;/engines"):
        async with connect(server.port) as connection:
            connection.write(http_request(None, method=b"GET", path=path.encode()))
            assert (await connection.read_response()).status in (401, 403, 404)
    assert await redis.get("rh:1:kept") == "kept"


async def test_no_key_is_in_any_log_line(guarded: RouterServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        for key in ("admin-key", "wrong-key"):
            for path in ("/admin/engines", "/v1/models"):
                await guarded.http.get(path, headers={"authorization": f"Bearer {key}"})
            await guarded.http.post("/admin/engines/mistral/drain", headers={"authorization": f"Bearer {key}"})
            await guarded.chat("The sea?", headers={"authorization": f"Bearer {key}"})
    ours = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("roundhouse"))
    assert "admin-key" not in ours
    assert "wrong-key" not in ours


# -- the network ------------------------------------------------------------------------------------------------------


async def test_by_default_the_router_listens_on_loopback_and_trusts_no_header() -> None:
    settings = Settings()
    assert settings.router.host == "127.0.0.1"
    assert settings.auth.admin_keys == []
    assert settings.cache.url == "embedded"
    assert settings.redis_url.startswith("unix://")


async def test_the_default_configuration_listens_on_loopback() -> None:
    settings = parse((ROOT / "roundhouse.toml").read_text(), {})
    assert settings.router.host == "127.0.0.1"
    for engine in settings.engine:
        for url in engine.addresses:
            assert url.startswith("http://127.0.0.1:")


async def test_the_private_redis_has_no_port_and_only_its_user_can_open_its_socket(tmp_path: Path) -> None:
    argv = [str(word) for word in redis_argv("redis-server", socket=tmp_path / "redis.sock", folder=tmp_path)]
    assert argv[argv.index("--port") + 1] == "0"
    assert argv[argv.index("--unixsocketperm") + 1] in ("600", "700")


async def test_compose_publishes_the_router_alone_unless_it_is_monitored_and_only_on_loopback() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    monitoring = {name: published.pop(name) for name in ("prometheus", "grafana")}
    assert published == {"router": ["${ROUNDHOUSE_BIND:-127.0.0.1}:${ROUNDHOUSE_PORT:-8080}:8080"]}
    assert all(services[name]["profiles"] == ["monitoring"] for name in monitoring)
    assert all("_BIND:-127.0.0.1}:" in port for ports in monitoring.values() for port in ports)
    assert not any("network_mode" in service for service in services.values())
