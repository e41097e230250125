"""The dashboard's login: sessions that hold at every router, and what is refused."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from router.api.access.auth import hash_key
from router.api.access.login_limiter import MAX_FAILURES
from router.api.access.sessions import SESSION_COOKIE, SESSION_SECONDS, Sessions
from router.core.cache.redis_keys import SESSION_SECRET_KEY
from router.settings import parse
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, chat_body, router_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADMIN = {"authorization": "Bearer admin-key"}
KEYS = f'admin_keys = ["{hash_key(b"admin-key")}", "{hash_key(b"second-key")}"]'
REST = f'[auth]\nmode = "keys"\n{KEYS}\n[[tenant]]\nname = "acme"\nkeys = ["{hash_key(b"acme-key")}"]\n'
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
FROM_PAGE = {"x-roundhouse-csrf": "1", "sec-fetch-site": "same-origin"}


@pytest.fixture
def text(redis_server: RedisServer, engines: EngineSet) -> str:
    return router_config(redis_server.url, engines.as_config(), rest=REST)


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(text: str, make_router: MakeRouter) -> RouterServer:
    return await make_router(text)


async def login(router: RouterServer, key: str = "admin-key", **headers: str) -> httpx.Response:
    renamed = {name.replace("_", "-"): value for name, value in headers.items()}
    return await router.http.post("/dashboard/login", data={"key": key}, headers=renamed)


async def session(router: RouterServer, key: str = "admin-key") -> dict[str, str]:
    """The header of a new session's cookie."""
    answer = await login(router, key)
    assert answer.status_code == 303, answer.text
    router.http.cookies.clear()  # a test sends it where it wants to
    return {"cookie": f"{SESSION_COOKIE}={answer.cookies[SESSION_COOKIE]}"}


async def status_with(router: RouterServer, cookie: dict[str, str]) -> int:
    return (await router.http.get("/admin/engines", headers=cookie)).status_code


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"])
async def test_a_session_does_not_change_adapters(guarded: RouterServer, path: str) -> None:
    headers = {**await session(guarded), **FROM_PAGE}
    body = {"lora_name": "sql", "lora_path": "/adapters/sql"}
    assert (await guarded.http.post(path, json=body, headers=headers)).status_code == 401


async def test_a_session_gives_access_to_the_page_and_the_admin_api(guarded: RouterServer) -> None:
    answer = await guarded.http.get("/dashboard")
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/login")
    assert b"<form" in (await guarded.http.get("/dashboard/login")).content
    cookie = await session(guarded)
    page = await guarded.http.get("/dashboard", headers=cookie)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert (await guarded.http.get("/dashboard/login", headers=cookie)).status_code == 303
    for path in ("/admin/engines", "/admin/status", "/admin/cache/entries"):
        assert (await guarded.http.get(path, headers=cookie)).status_code == 200


async def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(guarded: RouterServer) -> None:
    answer = await login(guarded)
    attributes = answer.headers["set-cookie"].split("; ")
    assert sorted(attributes[1:]) == ["HttpOnly", f"Max-Age={SESSION_SECONDS}", "Path=/", "SameSite=strict"]
    assert "admin-key" not in str(answer.headers)
    behind_tls = await login(guarded, x_forwarded_proto="https")
    assert "Secure" in behind_tls.headers["set-cookie"]


async def test_every_page_has_the_strict_headers(guarded: RouterServer) -> None:
    cookie = await session(guarded)
    for path, headers in (("/dashboard", cookie), ("/dashboard/login", {}), ("/dashboard", {})):
        answer = await guarded.http.get(path, headers=headers)
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"


async def test_static_files_need_no_session_and_are_sent_once(guarded: RouterServer) -> None:
    answer = await guarded.http.get("/dashboard/static/base.css")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/css; charset=utf-8")
    again = await guarded.http.get("/dashboard/static/base.css", headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    for name in ("nothing.css", "..%2fpages.py", "pages.py"):
        assert (await guarded.http.get(f"/dashboard/static/{name}")).status_code == 404


async def test_a_session_holds_at_every_router_of_the_same_redis(
    guarded: RouterServer, text: str, make_router: MakeRouter
) -> None:
    other = await make_router(text)
    cookie = await session(guarded)
    assert await status_with(other, cookie) == 200
    assert await status_with(guarded, await session(other)) == 200


async def test_a_router_that_came_up_without_redis_takes_part_later(
    own_redis: RedisServer, engines: EngineSet, make_router: MakeRouter
) -> None:
    text = router_config(own_redis.url, engines.as_config(), rest=REST)
    alone = await make_router(text)
    cookie = await session(alone)
    assert await status_with(alone, cookie) == 200
    await own_redis.start()
    cookie = await session(await make_router(text))

    async def accepted() -> bool:
        return await status_with(alone, cookie) == 200

    await eventually(accepted)


async def test_a_session_ends_when_its_key_leaves_the_configuration(guarded: RouterServer, text: str) -> None:
    cookie, second = await session(guarded), await session(guarded, "second-key")
    await guarded.application.reload(parse(text.replace(f'"{hash_key(b"admin-key")}", ', ""), {}))
    assert await status_with(guarded, cookie) == 401
    assert await status_with(guarded, second) == 200


async def test_a_session_ends_after_its_time(guarded: RouterServer, redis: Any) -> None:
    await session(guarded)
    secret = guarded.application._process_state.session_secret.value

    def cookie_of_a_login(ago: float, secret: bytes = secret, key: bytes = b"admin-key") -> dict[str, str]:
        sessions = Sessions([hash_key(key)], lambda: secret, lambda: time.time() - ago)
        return {"cookie": f"{SESSION_COOKIE}={sessions.issue(hash_key(key))}"}

    assert await status_with(guarded, cookie_of_a_login(SESSION_SECONDS - 60)) == 200
    assert await status_with(guarded, cookie_of_a_login(SESSION_SECONDS + 60)) == 401
    assert await status_with(guarded, cookie_of_a_login(0, key=b"another-key")) == 401
    # The hashes in the configuration are not enough to make one.
    assert await status_with(guarded, cookie_of_a_login(0, secret=bytes(32))) == 401
    assert await redis.strlen(SESSION_SECRET_KEY) == 32


async def test_a_session_is_no_key_for_a_tenant(guarded: RouterServer) -> None:
    cookie = await session(guarded)
    for headers in (cookie, cookie | FROM_PAGE):
        answer = await guarded.http.post("/v1/chat/completions", json=chat_body("The sea?"), headers=headers)
        assert answer.status_code == 401
        assert (await guarded.http.get("/v1/models", headers=headers)).status_code == 401


@pytest.mark.parametrize(
    "missing",
    [
        {},
        {"x-roundhouse-csrf": "1"},
        {"sec-fetch-site": "same-origin"},
        FROM_PAGE | {"sec-fetch-site": "cross-site"},
        FROM_PAGE | {"sec-fetch-site": "same-site"},
        {"x-roundhouse-csrf": "1", "origin": "https://elsewhere.example"},
        {"x-roundhouse-csrf": "1", "origin": "null"},
    ],
)
async def test_a_change_by_another_site_is_refused(guarded: RouterServer, missing: dict[str, str]) -> None:
    cookie = await session(guarded)
    for method, path in (("POST", "engines/mistral/drain"), ("POST", "cache/purge"), ("DELETE", "cache/entries/rh:1")):
        answer = await guarded.http.request(method, f"/admin/{path}", headers=cookie | missing)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "cross_site_request")
    assert not guarded.application._runtime.catalog.engines["mistral"].drained


async def test_the_page_can_change_what_an_admin_key_can(guarded: RouterServer) -> None:
    cookie = await session(guarded)
    answer = await guarded.http.post("/admin/engines/mistral/drain", headers=cookie | FROM_PAGE)
    assert answer.json()["engine"]["drained"] is True
    own_origin = {"x-roundhouse-csrf": "1", "origin": guarded.url}
    answer = await guarded.http.post("/admin/engines/mistral/resume", headers=cookie | own_origin)
    assert answer.json()["engine"]["drained"] is False


async def test_a_login_or_logout_by_another_site_is_refused(guarded: RouterServer) -> None:
    foreign = ("https://elsewhere.example", "null", "http://[", "http://[::1")
    for headers in ({"sec-fetch-site": "cross-site"}, *({"origin": origin} for origin in foreign)):
        answer = await guarded.http.post("/dashboard/login", data={"key": "admin-key"}, headers=headers)
        assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
        assert (await guarded.http.post("/dashboard/logout", headers=headers)).status_code == 403


async def test_logout_deletes_the_cookie(guarded: RouterServer) -> None:
    cookie = await session(guarded)
    answer = await guarded.http.post("/dashboard/logout", headers=cookie)
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/login")
    assert "Max-Age=0" in answer.headers["set-cookie"]


@pytest.mark.parametrize(
    "token",
    ["", "x", "A" * 64, "é" * 64, "A" * 63 + "!", "A" * 100_00],
    ids=["empty", "short", "zero", "é", "!", "long"],
)
async def test_a_malformed_cookie_is_refused(guarded: RouterServer, token: str) -> None:
    cookie = f"{SESSION_COOKIE}={token}".encode()
    answer = await guarded.http.get("/admin/engines", headers=[(b"cookie", cookie)])
    assert answer.status_code == 401
    assert (await guarded.http.get("/dashboard/events", headers=[(b"cookie", cookie)])).status_code == 401


@pytest.mark.parametrize("form", [b"", b"key=", b"key=a&key=b", b"\xff\xfe", b"key=%ff", b"a=b&" * 100, b"x" * 5000])
async def test_a_malformed_login_is_refused(guarded: RouterServer, form: bytes) -> None:
    answer = await guarded.http.post("/dashboard/login", content=form)
    assert answer.status_code in (401, 413)
    assert "set-cookie" not in answer.headers


async def test_failed_logins_are_limited(guarded: RouterServer) -> None:
    for _ in range(MAX_FAILURES):
        answer = await login(guarded, "wrong")
        assert answer.status_code == 401
        assert b"wrong" not in answer.content
    # Also the right key waits: how often it may be guessed is what is limited.
    answer = await login(guarded)
    assert (answer.status_code, 0 < int(answer.headers["retry-after"]) <= 60) == (429, True)
    assert await status_with(guarded, ADMIN) == 200


async def test_failed_logins_at_the_same_time_are_all_counted(guarded: RouterServer) -> None:
    open_gate = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"key="
        await open_gate.wait()
        yield b"wrong"

    async with asyncio.TaskGroup() as group:
        attempts = [
            group.create_task(guarded.http.post("/dashboard/login", content=body())) for _ in range(MAX_FAILURES + 5)
        ]
        await eventually(lambda: guarded.application._runtime.active_requests == len(attempts))
        open_gate.set()
    statuses = [attempt.result().status_code for attempt in attempts]
    assert sorted(statuses) == [401] * MAX_FAILURES + [429] * 5


async def test_without_admin_keys_the_dashboard_is_closed(router: RouterServer) -> None:
    for method, path in (("GET", "/dashboard"), ("GET", "/dashboard/login"), ("POST", "/dashboard/login")):
        answer = await router.http.request(method, path)
        assert (answer.status_code, answer.headers["content-security-policy"]) == (403, POLICY)
    answer = await router.http.get("/dashboard/events")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "admin_closed")
