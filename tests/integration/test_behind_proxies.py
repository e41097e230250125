"""Two routers behind nginx, HAProxy and Caddy, with the configurations of docs/behind-a-proxy.md."""

import asyncio
import contextlib
import json
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from http.client import HTTPSConnection
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
import pytest_asyncio
from websockets.asyncio.client import connect

from tests.support.certificate import needs_openssl
from tests.support.proxies import Proxy, find_binary
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess, http_client
from tests.support.router_server import LLAMA, chat_body, router_config
from tests.support.scripted_engine import ScriptedEngine
from tests.support.simulated_engine import SimulatedEngine
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame
from tests.support.waiting import TEST_TIMEOUT, eventually, read_until

pytestmark = [pytest.mark.asyncio(loop_scope="session"), needs_openssl]

CHAT = "/v1/chat/completions"
PROXIES = [
    pytest.param(name, marks=pytest.mark.skipif(find_binary(name) is None, reason=f"{name} is not installed"))
    for name in ("nginx", "haproxy", "caddy")
]
REPEATS_POSTS = ("nginx",)
"""Proxies that send a request to another router if it had no response when its router died."""


class Site(NamedTuple):
    """`llama` is a simulated engine with 40 steps a second, `mistral` one that sends what the test releases."""

    proxy: Proxy
    routers: tuple[RouterProcess, RouterProcess]
    llama: SimulatedEngine
    mistral: ScriptedEngine


@asynccontextmanager
async def open_site(name: str, folder: Path, redis: RedisServer) -> AsyncIterator[Site]:
    pieces = (ROLE_FRAME + chat_frame(content="one"), chat_frame(content="two"), chat_frame(finish="stop") + DONE_FRAME)
    mistral = ScriptedEngine(*pieces, paced=True)
    routers: list[RouterProcess] = []
    async with AsyncExitStack() as stack:
        llama = await stack.enter_async_context(SimulatedEngine(LLAMA, tokens_per_second=40))
        await mistral.start()
        stack.push_async_callback(mistral.stop)
        engines = {"llama": ("llama", "any", llama.url), "mistral": ("mistral", "any", mistral.url)}
        for router_name in ("one", "two"):
            text = router_config(redis.url, engines, router='drain = "5s"')
            routers.append(RouterProcess(folder, text, name=router_name))
            stack.callback(routers[-1].kill)
            routers[-1].start()
        for router in routers:
            await router.wait_until_ready()
        proxy = Proxy(name, folder, (routers[0].port, routers[1].port))
        stack.push_async_callback(proxy.stop)
        await proxy.start()
        yield Site(proxy, (routers[0], routers[1]), llama, mistral)


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=PROXIES)
async def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, redis_server: RedisServer
) -> AsyncIterator[Site]:
    async with open_site(request.param, tmp_path_factory.mktemp("site"), redis_server) as shared:
        yield shared


@pytest_asyncio.fixture(loop_scope="session", params=PROXIES)
async def own_site(request: pytest.FixtureRequest, tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[Site]:
    """One whose routers the test may stop."""
    async with open_site(request.param, tmp_path, redis_server) as one:
        yield one


async def test_hits_headers_and_errors_pass(site: Site) -> None:
    question = chat_body(f"The sea behind {site.proxy.name}?")
    async with site.proxy.client() as http:
        first = await http.post(CHAT, json=question, headers={"x-request-id": "mine"})
        assert (first.headers["x-cache"], first.headers["x-request-id"]) == ("MISS", "mine")
        for _ in range(4):  # from both routers
            hit = await http.post(CHAT, json=question)
            assert (hit.headers["x-cache"], hit.content) == ("HIT", first.content)
            assert {"age", "cache-status", "x-cache-key", "x-engine", "x-request-id"} <= set(hit.headers)
        if site.proxy.name != "caddy":  # it closes the connection before it has read the rest of the body
            cut = await http.post(CHAT, content=b"x" * (5 << 20))
            assert (cut.status_code, cut.json()["error"]["code"]) == (413, "body_too_large")
        long = await http.post(CHAT, json=question, headers={"x-long": "x" * 20_000})
        assert long.headers["x-cache"] == "HIT"
        assert (await http.options(CHAT)).headers["allow"] == "OPTIONS, POST"
        assert (await http.get("/readyz")).text == "ready\n"
        spoofed = await http.get("/v1/models", headers={"x-tenant-id": "acme"})
        assert spoofed.status_code == 200


async def test_no_spelling_of_a_private_path_reaches_a_router_from_outside(site: Site, tmp_path: Path) -> None:
    ports = (site.routers[0].port, site.routers[1].port)
    outside = Proxy(site.proxy.name, tmp_path, ports, trusted="10.0.0.0/8")
    await outside.start()
    try:
        for path in PRIVATE_PATHS:
            status, body = await asyncio.to_thread(fetch, outside.port, path)
            assert (path, status) == (path, 403)
            assert b"llm_requests" not in body
        assert (await asyncio.to_thread(fetch, outside.port, "/version"))[0] == 200
    finally:
        await outside.stop()


PRIVATE_PATHS = ("/metrics", "/%6detrics", "/%6Detrics?x=/", "/healthz", "/admin/engines", "/%61dmin/engines",
                 "/dashboard", "/v1/load_lora_adapter", "/v1/unload%5flora_adapter")  # fmt: skip


def fetch(port: int, path: str) -> tuple[int, bytes]:
    """Not by httpx, which would normalize the path."""
    connection = HTTPSConnection("127.0.0.1", port, context=ssl._create_unverified_context(), timeout=TEST_TIMEOUT)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()


async def test_a_stream_arrives_chunk_by_chunk(site: Site) -> None:
    async with (
        site.proxy.client() as http,
        http.stream("POST", CHAT, json=chat_body(f"Hi from {site.proxy.name}", model="mistral", stream=True)) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        chunks = answer.aiter_bytes()
        async with asyncio.timeout(TEST_TIMEOUT):
            # The engine sends nothing more until the test has seen this.
            await read_until(chunks, lambda data: b'"one"' in data)
            site.mistral.chunk_permits.release()
            await read_until(chunks, lambda data: b'"two"' in data)
            site.mistral.chunk_permits.release()
            assert (await read_until(chunks, lambda data: DONE_FRAME in data)).endswith(DONE_FRAME)


async def test_a_websocket_passes(site: Site) -> None:
    secure = ssl.create_default_context()
    secure.check_hostname, secure.verify_mode = False, ssl.CERT_NONE
    url = f"wss://127.0.0.1:{site.proxy.port}/v1/responses"
    async with asyncio.timeout(TEST_TIMEOUT), connect(url, ssl=secure, proxy=None) as socket:
        await socket.send(json.dumps({"type": "response.create", "model": "llama", "input": "The sea?"}))
        while json.loads(await socket.recv())["type"] != "response.completed":
            pass


async def test_a_client_that_leaves_ends_the_generation(site: Site) -> None:
    async with site.proxy.client() as http:
        body = chat_body("[[sim:stall after=2]] no-one waits", stream=True)
        async with http.stream("POST", CHAT, json=body, headers={"cache-control": "no-store"}) as answer:
            chunks = answer.aiter_bytes()  # closes the response when it is garbage
            await anext(chunks)
            assert (await site.llama.stats(in_flight=1))["in_flight"] == 1
        before = await site.llama.stats(aborted=1, in_flight=0)
        asking = asyncio.create_task(
            http.post(CHAT, json=chat_body(f"[[sim:stall after=2]] nor behind {site.proxy.name}"))
        )
        await site.llama.stats(in_flight=1)
        asking.cancel()
        await site.llama.stats(aborted=before["aborted"] + 1, in_flight=0)


class Outcome(NamedTuple):
    """How a request ended. `carried`: it was sent before the router was stopped, and its response began."""

    number: int
    streams: bool
    carried: bool
    complete: bool
    error: str


class Load:
    """Clients that ask one question after the other, half of them for streams; each question is a new one."""

    def __init__(self, http: httpx.AsyncClient, name: str, clients: int) -> None:
        self.outcomes: list[Outcome] = []
        self.stopped = False  # a router
        self._http = http
        self._name = name
        self._ending = False
        self._number = 0
        self._tasks = [asyncio.create_task(self._ask(streams=bool(index % 2))) for index in range(clients)]

    async def end(self) -> None:
        self._ending = True
        await asyncio.gather(*self._tasks)

    async def _ask(self, *, streams: bool) -> None:
        while not self._ending:
            self._number += 1
            number, carried, complete, error = self._number, False, False, ""
            sent_before = not self.stopped
            body = chat_body(f"[[sim:tokens n=20]] Question {number} behind {self._name}?", stream=streams)
            try:
                async with self._http.stream("POST", CHAT, json=body) as answer:
                    carried = sent_before
                    content = await answer.aread()
                complete = answer.status_code == 200 and (not streams or content.endswith(DONE_FRAME))
                error = "" if complete else f"{answer.status_code} {content[-200:]!r}"
            except httpx.TransportError as failure:
                error = repr(failure)
            self.outcomes.append(Outcome(number, streams, carried, complete, error))


async def generations(router: RouterProcess) -> int:
    """The requests that a router is answering now."""
    async with http_client(router.url) as http:
        lines = (await http.get("/metrics")).text.splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("llm_requests_in_flight{"))


async def under_load(site: Site, number: signal.Signals) -> list[Outcome]:
    """What becomes of the requests if one of the routers gets a signal while both answer some."""
    async with site.proxy.client() as http:
        load = Load(http, f"{site.proxy.name}, {number.name}", clients=12)
        await eventually(lambda: len(load.outcomes) >= 24)

        async def both_are_busy() -> bool:
            return min([await generations(router) for router in site.routers]) >= 2

        await eventually(both_are_busy)
        site.routers[0].send_signal(number)
        load.stopped = True
        await asyncio.to_thread(site.routers[0].process.wait, TEST_TIMEOUT)
        seen = len(load.outcomes)
        await eventually(lambda: len(load.outcomes) >= seen + 36)
        await load.end()
    return load.outcomes


async def test_a_router_that_is_killed_under_load_takes_with_it_only_what_it_carried(own_site: Site) -> None:
    outcomes = await under_load(own_site, signal.SIGKILL)
    lost = [outcome for outcome in outcomes if not outcome.complete]
    if own_site.proxy.name in REPEATS_POSTS:
        assert [outcome for outcome in lost if not (outcome.streams and outcome.carried)] == []
    # Its share of the twelve requests at a time; with the other proxies, those without a response, too.
    assert len(lost) <= 12
    assert len(outcomes) - len(lost) >= 48
    assert max(outcome.number for outcome in lost or outcomes[:1]) < max(outcome.number for outcome in outcomes) - 12


async def test_a_router_that_is_stopped_under_load_loses_nothing(own_site: Site) -> None:
    outcomes = await under_load(own_site, signal.SIGTERM)
    assert [outcome for outcome in outcomes if not outcome.complete] == []
    assert own_site.routers[0].process.returncode == 0


async def test_without_any_router_a_client_gets_503(own_site: Site) -> None:
    for router in own_site.routers:
        router.kill()
    async with own_site.proxy.client() as http:
        answer = await http.post(CHAT, json=chat_body("Hi"))
    assert answer.status_code in (502, 503)
    if own_site.proxy.name == "nginx":
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["code"] == "no_router"
