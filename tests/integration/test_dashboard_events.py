"""The dashboard's events: what viewers get, and what ends them."""

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from router.api.access.auth import hash_key
from router.api.dashboard import routes
from router.api.dashboard.event_hub import MAX_VIEWERS
from router.settings import parse
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess, http_client
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, router_config
from tests.support.waiting import TEST_TIMEOUT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADMIN = {"authorization": "Bearer admin-key"}
REST = f'[auth]\nadmin_keys = ["{hash_key(b"admin-key")}"]\n'


@pytest.fixture
def text(redis_server: RedisServer, engines: EngineSet) -> str:
    return router_config(redis_server.url, engines.as_config(), rest=REST)


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(text: str, make_router: MakeRouter) -> RouterServer:
    return await make_router(text)


class Events:
    """The events of one viewer, in their order."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines

    async def next(self, kind: str) -> Any:
        """The next event of this kind."""
        async with asyncio.timeout(TEST_TIMEOUT):
            while await anext(self._lines) != f"event: {kind}":
                pass
            return json.loads((await anext(self._lines)).removeprefix("data: "))

    async def wait_for_end(self) -> None:
        """Fails if the stream is broken off."""
        async with asyncio.timeout(TEST_TIMEOUT):
            async for _ in self._lines:
                pass


@contextlib.asynccontextmanager
async def viewer(router: RouterServer | RouterProcess) -> AsyncIterator[Events]:
    async with http_client(router.url) as http, http.stream("GET", "/dashboard/events", headers=ADMIN) as answer:
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        yield Events(answer.aiter_lines())


def viewers_of(router: RouterServer) -> int:
    return len(router.application._runtime._status.event_hub._viewers)


async def test_a_viewer_gets_every_document_at_once(guarded: RouterServer) -> None:
    async with viewer(guarded) as events:
        status = await events.next("status")
        assert status["routers"][0]["id"] == guarded.application._process_state.identity.id
        assert len((await events.next("history"))["minutes"]) == 60
        assert await events.next("requests") == {"requests": [], "all_routers": True}
    async with viewer(guarded) as events:
        await events.next("status")


async def test_a_drain_and_a_request_at_another_router_reach_the_viewer(
    guarded: RouterServer, text: str, make_router: MakeRouter
) -> None:
    other = await make_router(text)
    async with viewer(guarded) as events:
        while len((await events.next("status"))["routers"]) < 2:
            pass
        await other.http.post("/admin/engines/mistral/drain", headers=ADMIN)
        while not (await events.next("status"))["engines"][2]["drained"]:
            pass
        answer = await other.chat("The sea?")
        while not (rows := (await events.next("requests"))["requests"]):
            pass
        assert rows[0]["request_id"] == answer.headers["x-request-id"]


async def test_when_the_last_viewer_leaves_nothing_is_read_any_more(guarded: RouterServer) -> None:
    async with viewer(guarded) as events:
        await events.next("status")
        assert viewers_of(guarded) == 1
    hub = guarded.application._runtime._status.event_hub
    await eventually(lambda: not hub._viewers and hub._task is None)
    assert guarded.application._runtime.active_requests == 0


async def test_viewers_are_not_requests_in_flight(guarded: RouterServer) -> None:
    async with viewer(guarded) as events:
        for _ in range(2):
            assert (await events.next("status"))["routers"][0]["in_flight"] == 0


async def test_more_viewers_than_allowed_are_refused(guarded: RouterServer) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(MAX_VIEWERS):
            await stack.enter_async_context(viewer(guarded))
        answer = await guarded.http.get("/dashboard/events", headers=ADMIN)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "too_many_viewers")
        assert answer.headers["retry-after"] == "5"
    await eventually(lambda: viewers_of(guarded) == 0)


async def test_a_viewer_that_does_not_read_is_disconnected(
    redis_server: RedisServer, engines: EngineSet, make_router: MakeRouter
) -> None:
    text = router_config(redis_server.url, engines.as_config(), router='send = "1s"', rest=REST)
    router = await make_router(text)
    reader, writer = await asyncio.open_connection("127.0.0.1", router.port, limit=1024)
    writer.write(b"GET /dashboard/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer admin-key\r\n\r\n")
    await eventually(lambda: viewers_of(router) == 1)
    hub = router.application._runtime._status.event_hub
    (stuck,) = hub._viewers

    def flood() -> bool:
        # Large events, as of many routers, until the socket's buffers are full.
        stuck.offer("status", b"event: status\ndata: " + bytes(1 << 20) + b"\n\n")
        return not hub._viewers

    await eventually(flood)
    assert len(stuck._events) <= 4
    writer.close()
    del reader


async def test_a_stream_ends_after_its_time_so_that_the_session_is_checked_again(
    guarded: RouterServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "MAX_STREAM", 0.1)
    async with viewer(guarded) as events:
        await events.wait_for_end()
    await eventually(lambda: viewers_of(guarded) == 0)


async def test_a_head_request_gets_no_stream(guarded: RouterServer) -> None:
    answer = await guarded.http.head("/dashboard/events", headers=ADMIN)
    assert (answer.status_code, answer.content, viewers_of(guarded)) == (200, b"", 0)


async def test_a_reload_ends_the_streams_and_retires_the_old_configuration(guarded: RouterServer, text: str) -> None:
    async with viewer(guarded) as events:
        await events.next("status")
        await guarded.application.reload(parse(text, {}))
        await events.wait_for_end()
        await eventually(lambda: not guarded.application._retiring)
    async with viewer(guarded) as events:
        await events.next("status")


async def test_a_viewer_does_not_delay_the_end_of_the_router(text: str, redis: Any, tmp_path: Path) -> None:
    process = RouterProcess(tmp_path, text)
    process.start()
    try:
        await process.wait_until_ready()
        async with viewer(process) as events:
            await events.next("status")
            started = time.monotonic()
            process.send_signal(signal.SIGTERM)
            await events.wait_for_end()
        await eventually(lambda: not process.is_running)
        assert time.monotonic() - started < 10  # far below `grace`
        assert process.process.returncode == 0
        assert "Traceback" not in process.log.read_text()
    finally:
        process.kill()
