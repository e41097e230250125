"""A round of probes, with engines in their own processes."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from router.net.client.transport import HTTPTransport
from router.upstream.catalog import Catalog, Engine, Model
from router.upstream.client import EngineClient
from router.upstream.probe import EngineProbe
from tests.support.scripted_engine import ScriptedEngine
from tests.support.simulated_engine import SimulatedEngine

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def client() -> AsyncIterator[EngineClient]:
    opened = EngineClient(HTTPTransport(), connect_timeout=5)
    yield opened
    await opened.aclose()


def engine_at(url: str, *, max_model_len: int | None = None) -> Engine:
    return Engine(name="a", model="m", task="any", url=url, served_model="m", max_model_len=max_model_len)


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
