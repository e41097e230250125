"""Links that sign in to the dashboard: once, at any router, and only for whoever has the admin key."""

import asyncio
import contextlib
import logging
from typing import Any

import httpx
import pytest
import pytest_asyncio

from router.api.access.auth import hash_key
from router.api.access.login_limiter import MAX_FAILURES
from router.api.access.sessions import SESSION_COOKIE
from router.process.pid_file import PidFile
from router.settings import parse
from router.shared.credentials.sign_in_links import LINK_SECONDS
from tests.support.cli_helpers import run_cli
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, router_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = "admin-key-of-a-test"
BEARER = {"authorization": f"Bearer {KEY}"}
KEY_HASH = hash_key(KEY.encode())
REST = f'[auth]\nadmin_keys = ["{KEY_HASH}"]\n'


@pytest.fixture
def text(redis_server: RedisServer, engines: EngineSet) -> str:
    return router_config(redis_server.url, engines.as_config(), rest=REST)


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(text: str, make_router: MakeRouter) -> RouterServer:
    return await make_router(text)


async def make_link(router: RouterServer) -> str:
    """The token of a new link."""
    answer = await router.http.post("/admin/sign-in-links", headers=BEARER)
    assert (answer.status_code, answer.json()["expires_in"]) == (200, LINK_SECONDS)
    path, _, token = answer.json()["path"].partition("#token=")
    assert path == "/dashboard/sign-in"
    return str(token)


async def redeem(router: RouterServer, token: str, **headers: str) -> httpx.Response:
    renamed = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await router.http.post("/dashboard/sign-in", data={"token": token}, headers=renamed)
    router.http.cookies.clear()
    return answer


async def test_a_link_signs_in_once(guarded: RouterServer) -> None:
    token = await make_link(guarded)
    answer = await redeem(guarded, token)
    assert (answer.status_code, answer.headers["cache-control"]) == (204, "no-store")
    attributes = answer.headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=strict"} <= set(attributes)
    cookie = {"cookie": f"{SESSION_COOKIE}={answer.cookies[SESSION_COOKIE]}"}
    assert (await guarded.http.get("/dashboard", headers=cookie)).status_code == 200
    again = await redeem(guarded, token)
    assert (again.status_code, "set-cookie" in again.headers) == (401, False)
    assert "roundhouse dashboard" in again.json()["error"]["message"]


async def test_of_many_attempts_at_several_routers_one_succeeds(
    guarded: RouterServer, text: str, make_router: MakeRouter
) -> None:
    other = await make_router(text)
    token = await make_link(guarded)
    answers = await asyncio.gather(*[redeem(router, token) for router in (guarded, other) * 4])
    assert sorted(answer.status_code for answer in answers) == [204, *[401] * 7]


async def test_redis_has_nothing_to_sign_in_with_and_forgets_the_link(guarded: RouterServer, redis: Any) -> None:
    token = await make_link(guarded)
    (key,) = await redis.keys("rh:1:session:link:*")
    record = await redis.get(key)
    assert token not in f"{key} {record}"
    assert KEY not in record
    assert 0 < await redis.ttl(key) <= LINK_SECONDS
    await redis.delete(key)  # as when its time is over
    assert (await redeem(guarded, token)).status_code == 401


async def test_a_token_is_in_no_log_line(guarded: RouterServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        token = await make_link(guarded)
        await redeem(guarded, token)
        await redeem(guarded, token)
    assert token not in caplog.text


async def test_a_link_needs_the_key_itself(guarded: RouterServer) -> None:
    assert (await guarded.http.post("/admin/sign-in-links")).status_code == 401
    answer = await redeem(guarded, await make_link(guarded))
    session = {
        "cookie": f"{SESSION_COOKIE}={answer.cookies[SESSION_COOKIE]}",
        "x-roundhouse-csrf": "1",
        "sec-fetch-site": "same-origin",
    }
    refused = await guarded.http.post("/admin/sign-in-links", headers=session)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "key_required")


async def test_the_page_of_another_origin_cannot_redeem_a_link(guarded: RouterServer) -> None:
    token = await make_link(guarded)
    assert (await redeem(guarded, token, sec_fetch_site="cross-site")).status_code == 403
    assert (await redeem(guarded, token)).status_code == 204


async def test_wrong_tokens_are_limited_with_wrong_keys(guarded: RouterServer) -> None:
    for wrong in ["", "é" * 10, "x" * 43, *["wrong"] * (MAX_FAILURES - 3)]:
        assert (await redeem(guarded, wrong)).status_code == 401
    answer = await redeem(guarded, await make_link(guarded))
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_attempts")
    assert int(answer.headers["retry-after"]) > 0


async def test_attempts_at_the_same_time_are_limited_too_and_an_outage_of_redis_is_none(
    own_redis: RedisServer, engines: EngineSet, make_router: MakeRouter
) -> None:
    await own_redis.start()
    router = await make_router(router_config(own_redis.url, engines.as_config(), rest=REST))
    token = await make_link(router)
    own_redis.kill()
    for _ in range(MAX_FAILURES + 1):
        assert (await redeem(router, token)).status_code == 503
    await own_redis.start()

    async def is_checked() -> bool:
        return (await redeem(router, "wrong")).status_code == 401

    await eventually(is_checked)
    answers = await asyncio.gather(*[redeem(router, "wrong") for _ in range(5 * MAX_FAILURES)])
    assert [answer.status_code for answer in answers].count(401) < MAX_FAILURES


async def test_a_link_ends_when_its_key_leaves_the_configuration(guarded: RouterServer, text: str) -> None:
    token = await make_link(guarded)
    await guarded.application.reload(parse(text.replace(KEY_HASH, hash_key(b"another")), {}))
    assert (await redeem(guarded, token)).status_code == 401


async def test_without_redis_the_process_keeps_the_link(
    own_redis: RedisServer, engines: EngineSet, make_router: MakeRouter
) -> None:
    router = await make_router(router_config(own_redis.url, engines.as_config(), rest=REST))
    token = await make_link(router)
    assert (await redeem(router, token)).status_code == 204
    # Another process may have kept a link, or Redis: whether there is one is not known.
    answer = await redeem(router, token)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "redis_down")


async def test_a_router_without_keys_has_no_links(make_router: MakeRouter, config: str) -> None:
    router = await make_router(config)
    assert (await router.http.post("/admin/sign-in-links", headers=BEARER)).status_code == 403
    assert (await router.http.get("/dashboard/sign-in")).status_code == 403


async def test_the_command_prints_a_link_and_nothing_else(
    guarded: RouterServer, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUNDHOUSE_ADMIN_KEY", KEY)
    printed = await run_cli("dashboard", "--url", guarded.url)
    assert printed.code == 0
    page, _, token = printed.stdout.strip().partition("#token=")
    assert page == f"{guarded.url}/dashboard/sign-in"
    assert "once" in printed.stderr
    assert (await redeem(guarded, token)).status_code == 204
    monkeypatch.setenv("ROUNDHOUSE_ADMIN_KEY", "wrong")
    refused = await run_cli("dashboard", "--url", guarded.url)
    assert (refused.code, refused.stdout) == (1, "")
    assert "The admin key is not valid." in refused.stderr


async def test_commands_find_the_local_key_for_the_router_of_the_configuration_only(
    redis_server: RedisServer, engines: EngineSet, make_router: MakeRouter, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROUNDHOUSE_ADMIN_KEY", raising=False)
    state = tmp_path / ".roundhouse"
    state.mkdir()
    (state / "admin-key").write_text(f"{KEY}\n")
    rest = f'[auth]\nadmin_key_file = "{state / "admin-key"}"\n'
    router = await make_router(router_config(redis_server.url, engines.as_config(), rest=rest))
    file = tmp_path / "roundhouse.toml"
    file.write_text(router_config(redis_server.url, engines.as_config(), router=f"port = {router.port}"))
    # Whoever listens at the port while no router of this configuration runs does not get the key.
    assert (await run_cli("dashboard")).stdout == ""
    with contextlib.closing(PidFile(state / f"router-{router.port}.pid")):
        assert (await run_cli("dashboard")).stdout.startswith(f"{router.url}/dashboard/sign-in#token=")
        assert (await run_cli("top", "--json")).code == 0
    elsewhere = await run_cli("dashboard", "--url", router.url)
    assert (elsewhere.code, elsewhere.stdout) == (1, "")
