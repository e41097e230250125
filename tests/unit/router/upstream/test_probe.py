"""A round of probes, with engines in their own processes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Self

import pytest
import pytest_asyncio

from router.net.client.transport import HTTPTransport
from router.upstream.catalog import Catalog, Model
from router.upstream.client import EngineClient
from router.upstream.engine import Engine
from router.upstream.engine_config import EngineConfig
from router.upstream.probe import MAX_PAGE, EngineProbe
from tests.support.listeners import stop_listening
from tests.support.scripted_engine import ScriptedEngine
from tests.support.simulated_engine import SimulatedEngine
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def client() -> AsyncIterator[EngineClient]:
    opened = EngineClient(HTTPTransport(), connect_timeout=5)
    yield opened
    await opened.aclose()


def engine_at(url: str, *, max_model_len: int | None = None) -> Engine:
    return Engine(EngineConfig(name="a", model="m", task="any", url=url, served_model="m", max_model_len=max_model_len))


async def test_an_engine_that_recovers_is_queried_for_its_context_length_again(client: EngineClient) -> None:
    async with SimulatedEngine("m", max_model_len=1024) as first:
        engine = engine_at(first.url)
        probe = EngineProbe(Catalog([Model("m", "1")], [engine]), client)
        await probe.check()
        assert (engine.up, engine.max_model_len) == (True, 1024)
    await probe.check()
    assert (engine.up, engine.max_model_len) == (False, 1024)
    async with SimulatedEngine("m", max_model_len=2048, port=first.port):
        await probe.check()
        assert (engine.up, engine.max_model_len) == (True, 2048)


async def test_a_configured_context_length_is_kept(client: EngineClient) -> None:
    async with SimulatedEngine("m", max_model_len=1024) as simulated:
        engine = engine_at(simulated.url, max_model_len=512)
        await EngineProbe(Catalog([Model("m", "1")], [engine]), client).check()
        assert engine.max_model_len == 512


@pytest.mark.parametrize("draft", ["d", None])
async def test_an_engine_without_work_so_far_shows_whether_it_speculates(
    client: EngineClient, draft: str | None
) -> None:
    async with SimulatedEngine("m", draft=draft) as simulated:
        engine = engine_at(simulated.url)
        await EngineProbe(Catalog([Model("m", "1")], [engine]), client).check()
        assert engine.has_draft is (draft is not None)
        assert engine.external_load == 0


async def test_an_engine_that_is_not_vllm_is_known_only_to_be_up(client: EngineClient) -> None:
    scripted = ScriptedEngine()
    await scripted.start()
    engine = engine_at(scripted.url)
    await EngineProbe(Catalog([Model("m", "1")], [engine]), client).check()
    assert (engine.up, engine.max_model_len, engine.has_draft, engine.external_load) == (True, None, None, None)
    await scripted.stop()


class Pages:
    """A server whose pages the test sets: a status and a body by path; other paths are 404."""

    def __init__(self, **pages: tuple[int, bytes]) -> None:
        self.pages = {f"/{name.replace('_', '/')}": page for name, page in pages.items()}
        self.asked: list[str] = []
        self.before_answer: Callable[[str], None] = lambda _: None
        self._server: asyncio.Server | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        await stop_listening(self._server)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
        self.asked.append(path)
        self.before_answer(path)
        status, page = self.pages.get(path, (404, b""))
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (status, len(page)) + page)
        with suppress(OSError):  # the router does not read more than it needs
            await writer.drain()
        writer.close()


LLAMA_CPP = b'{"data": [{"id": "m", "owned_by": "llamacpp"}]}'


async def test_an_engine_to_which_one_connection_failed_is_asked_for_its_kind_again(client: EngineClient) -> None:
    async with Pages(health=(200, b""), v1_models=(200, LLAMA_CPP)) as server:
        engine = engine_at(server.url)
        probe = EngineProbe(Catalog([Model("m", "1")], [engine]), client)
        await probe.check()
        assert engine.kind == "llama.cpp"
        engine.update_status(up=False)  # as a request does that cannot connect
        await probe.check()
        assert (engine.up, engine.kind) == (True, "llama.cpp")


async def test_an_engine_that_is_checked_seldom_is_checked_at_once_when_a_request_found_it_down(
    client: EngineClient,
) -> None:
    async with Pages(v1_models=(200, b"{}")) as server:
        engine = Engine(EngineConfig(name="a", model="m", task="any", url=server.url, served_model="m", kind="openai"))
        probe = EngineProbe(Catalog([Model("m", "1")], [engine]), client)
        await probe.check()
        asked = len(server.asked)
        await probe.check()
        assert len(server.asked) == asked
        engine.update_status(up=False)
        await probe.check()
        assert engine.up is True
        server.pages = {}
        engine.update_status(up=False)
        await probe.check()
        asked = len(server.asked)
        await probe.check()  # an API that refuses its key is not asked more often either
        assert (engine.up, len(server.asked)) == (False, asked)


async def test_a_check_that_began_before_a_request_found_the_engine_down_does_not_say_that_it_is_up(
    client: EngineClient,
) -> None:
    async with Pages(health=(200, b""), metrics=(200, b""), v1_models=(200, b"{}")) as server:
        engine = engine_at(server.url)
        probe = EngineProbe(Catalog([Model("m", "1")], [engine]), client)
        await probe.check()
        server.before_answer = lambda path: engine.update_status(up=False) if path == "/metrics" else None
        await probe.check()
        assert engine.up is False
        await probe.check()
        assert engine.up is True


async def test_an_api_that_limits_the_rate_of_the_checks_is_up(client: EngineClient) -> None:
    async with Pages(v1_models=(429, b"")) as server:
        engine = engine_at(server.url)
        await EngineProbe(Catalog([Model("m", "1")], [engine]), client).check()
        assert engine.up is True


async def test_an_api_with_a_list_of_models_that_is_too_long_is_up_and_is_asked_for_it_once(
    client: EngineClient,
) -> None:
    async with Pages(v1_models=(200, b" " * (MAX_PAGE + 1)), health=(200, b"")) as server:
        engine = engine_at(server.url)
        probe = EngineProbe(Catalog([Model("m", "1")], [engine]), client)
        await probe.check()
        await probe.check()
        assert (engine.up, server.asked.count("/v1/models")) == (True, 1)
        del server.pages["/health"]
        await probe.check()
        assert engine.up is True


async def test_an_engine_whose_health_needs_no_key_is_refused_by_its_list_of_models_until_that_lets_the_router_in(
    client: EngineClient, caplog: pytest.LogCaptureFixture
) -> None:
    async with Pages(health=(200, b""), v1_models=(401, b"")) as server:
        engine = engine_at(server.url)
        probe = EngineProbe(Catalog([Model("m", "1")], [engine]), client)
        for _ in range(2):
            await probe.check()
            assert (engine.state, engine.up) == ("refused", False)
        assert [record.levelname for record in caplog.records if "refuses the router's key" in record.message] == [
            "WARNING"
        ]
        server.pages["/v1/models"] = (200, b'{"data": []}')
        await eventually(lambda: check_finds_up(probe, engine))
        await probe.aclose()


async def check_finds_up(probe: EngineProbe, engine: Engine) -> bool:
    await probe.check()
    return (engine.state, engine.up) == ("up", True)


@pytest.mark.parametrize(("models", "state"), [(200, "up"), (403, "refused")])
async def test_after_a_request_with_403_the_next_check_asks_whether_it_is_about_the_key(
    client: EngineClient, models: int, state: str
) -> None:
    async with Pages(health=(200, b""), v1_models=(200, LLAMA_CPP)) as server:
        engine = engine_at(server.url)
        probe = EngineProbe(Catalog([Model("m", "1")], [engine]), client)
        await probe.check()
        server.pages["/v1/models"] = (models, b"")
        engine.note_refused(403)
        assert engine.state == "up"
        asked = server.asked.count("/v1/models")
        await probe.check()
        await eventually(lambda: engine.state == state and server.asked.count("/v1/models") > asked)
        await eventually(lambda: engine.access.doubted is (state == "refused"))
        await probe.aclose()


@pytest.mark.parametrize(
    ("pages", "cause"),
    [({"health": (503, b"")}, "status 503"), (None, "connection refused")],
)
async def test_why_an_engine_is_down_is_logged_as_a_warning(
    client: EngineClient, caplog: pytest.LogCaptureFixture, pages: dict[str, tuple[int, bytes]] | None, cause: str
) -> None:
    async with Pages(**(pages or {})) as server:
        engine = engine_at(server.url if pages else "http://127.0.0.1:9")
        await EngineProbe(Catalog([Model("m", "1")], [engine]), client).check()
    lines = [(record.levelname, record.message) for record in caplog.records if record.name == "roundhouse.engines"]
    assert lines == [("WARNING", f"engine a is down: {cause}")]


@pytest.mark.parametrize(
    ("page", "cause"),
    [((500, b""), "status 500"), ((404, b""), "status 404"), ((200, b"# none\n"), "they are missing")],
)
async def test_an_engine_whose_counters_cannot_be_read_any_more_is_logged_once_and_again_when_they_can(
    client: EngineClient, caplog: pytest.LogCaptureFixture, page: tuple[int, bytes], cause: str
) -> None:
    counters = (200, b"vllm:generation_tokens_total 1\n")
    caplog.set_level("INFO", "roundhouse.engines")
    async with Pages(health=(200, b""), v1_models=(200, b"{}"), metrics=counters) as server:
        engine = engine_at(server.url)
        probe = EngineProbe(Catalog([Model("m", "1")], [engine]), client)
        for metrics in (counters, page, page, page, counters, counters):
            server.pages["/metrics"] = metrics
            await probe.check()
            assert engine.up is True
    lines = [record.getMessage().partition(",")[0] for record in caplog.records if "counters" in record.message]
    assert lines == [
        f"engine a: its counters cannot be read from /metrics ({cause})",
        "engine a: its counters can be read from /metrics",
    ]


async def test_the_ranks_of_a_server_share_its_pages_and_each_has_its_own_gauges(client: EngineClient) -> None:
    pages = {
        b"/health": b"ok",
        b"/metrics": b'vllm:num_requests_running{engine="0"} 5\nvllm:num_requests_running{engine="1"} 7\n',
    }
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ")[1]
                asked.append(path)
                body = pages.get(path, b"{}")
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    ranks = [
        Engine(EngineConfig(name=f"a.{rank}", model="m", task="any", url=url, served_model="m", rank=rank, kind="vllm"))
        for rank in range(2)
    ]
    probe = EngineProbe(Catalog([Model("m", "1")], ranks), client)
    await probe.check()
    assert [(rank.up, rank.gauges.running) for rank in ranks] == [(True, 5), (True, 7)]
    assert (asked.count(b"/health"), asked.count(b"/metrics")) == (1, 1)
    pages[b"/metrics"] = pages[b"/metrics"].replace(b"7", b"9")
    await probe.check()
    assert ranks[1].gauges.running == 9
    server.close()
