"""When the engines' lists of models are read, and what a failure changes."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from router.net.client.transport import HTTPTransport
from router.upstream.adapters import ListedAdapter
from router.upstream.catalog import Catalog, Model
from router.upstream.client import EngineClient
from router.upstream.engine import Engine
from router.upstream.engine_config import EngineConfig
from router.upstream.model_lists import MIN_REREAD_INTERVAL, AdapterRefresh, ModelListReader
from router.upstream.probe import EngineProbe
from tests.support.scripted_engine import Request, Response, ScriptedEngine, json_response, served
from tests.support.simulated_engine import SimulatedEngine
from tests.support.waiting import TEST_TIMEOUT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

SQL = ListedAdapter("sql", "/a")


@pytest_asyncio.fixture(loop_scope="session")
async def client() -> AsyncIterator[EngineClient]:
    opened = EngineClient(HTTPTransport(), connect_timeout=5)
    yield opened
    await opened.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def simulated() -> AsyncIterator[SimulatedEngine]:
    async with SimulatedEngine("m", enable_lora=True, allow_runtime_lora_updating=True) as engine:
        yield engine


@pytest_asyncio.fixture(loop_scope="session")
async def engine(simulated: SimulatedEngine) -> Engine:
    """Has the adapter `sql`, and is not yet known to be up."""
    if not simulated.is_running:
        await simulated.start()
    await change(simulated, "load", lora_path=SQL.root, load_inplace=True)
    return Engine(EngineConfig(name="a", model="m", task="any", url=simulated.url, served_model="m"))


async def change(simulated: SimulatedEngine, what: str, **fields: object) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=TEST_TIMEOUT) as client:
        body = {"lora_name": SQL.id, **fields}
        (await client.post(f"{simulated.url}/v1/{what}_lora_adapter", json=body)).raise_for_status()


def catalog_of(engine: Engine) -> Catalog:
    return Catalog([Model("m", "1")], [engine])


async def test_an_engine_that_stays_up_is_read_again_after_the_interval(
    client: EngineClient, simulated: SimulatedEngine, engine: Engine
) -> None:
    catalog = catalog_of(engine)
    patient, eager = (
        EngineProbe(catalog, client, model_lists=ModelListReader(catalog, client, interval=interval))
        for interval in (3600.0, 0.0)
    )
    await patient.check()
    await patient.check()
    await eager.check()
    assert "sql" in dict(catalog.named_models())
    await change(simulated, "unload")
    await patient.check()
    assert "sql" in dict(catalog.named_models())
    await eager.check()
    await eventually(lambda: not engine.adapters)
    await eager.aclose()
    assert "sql" not in dict(catalog.named_models())


async def test_an_engine_that_is_down_or_fails_to_answer_keeps_its_adapters(
    client: EngineClient, simulated: SimulatedEngine, engine: Engine
) -> None:
    catalog = catalog_of(engine)
    lists = ModelListReader(catalog, client, interval=0)
    probe = EngineProbe(catalog, client, model_lists=lists)
    await probe.check()
    await simulated.kill()
    assert not await lists.reread(engine)
    await probe.check()
    assert (engine.up, engine.adapters, engine.max_model_len) == (False, (SQL,), 8192)
    await simulated.start()  # without the adapter
    await probe.check()
    assert (engine.up, engine.adapters) == (True, ())


async def test_the_checks_that_follow_a_slow_read_start_no_second_one(client: EngineClient) -> None:
    asked = 0
    answer = asyncio.Event()

    async def script(request: Request) -> Response:
        nonlocal asked
        if request.path == "/v1/models":
            asked += 1
            if asked > 1:
                await answer.wait()
        return Response()

    scripted = ScriptedEngine(script=script)
    await scripted.start()
    engine = Engine(EngineConfig(name="a", model="m", task="any", url=scripted.url, served_model="m"))
    catalog = catalog_of(engine)
    probe = EngineProbe(catalog, client, model_lists=ModelListReader(catalog, client, interval=0, timeout=TEST_TIMEOUT))
    for _ in range(5):
        await probe.check()
    await eventually(lambda: asked == 2)
    await probe.check()
    assert asked == 2
    answer.set()
    await probe.aclose()
    await scripted.stop()


async def test_a_slow_answer_does_not_replace_what_a_later_read_has_told(client: EngineClient) -> None:
    may_answer = asyncio.Event()
    asked = 0

    async def script(_: Request) -> Response:
        nonlocal asked
        asked += 1
        adapters = [{"id": SQL.id, "root": SQL.root, "parent": "m"}] if asked == 2 else []
        if asked == 1:
            await may_answer.wait()
        return json_response({"data": [{"id": "m", "owned_by": "vllm", "root": "m", "parent": None}, *adapters]})

    async with served(script) as url:
        engine = Engine(EngineConfig(name="a", model="m", task="any", url=url, served_model="m"))
        reader = ModelListReader(catalog_of(engine), client, timeout=TEST_TIMEOUT)
        slow = asyncio.ensure_future(reader.reread(engine))
        await eventually(lambda: asked == 1)
        assert await reader.reread(engine)
        assert engine.adapters == (SQL,)
        may_answer.set()
        assert await slow
        assert engine.adapters == (SQL,)


async def test_a_catalog_learns_what_the_reader_of_another_catalog_has_read_for_the_same_engine(
    client: EngineClient, engine: Engine
) -> None:
    old, new = catalog_of(engine), catalog_of(engine)
    await ModelListReader(old, client).reread(engine)
    await ModelListReader(new, client).reread(engine)
    assert "sql" in dict(new.named_models())


async def test_an_api_that_has_no_adapters_is_not_asked_again(client: EngineClient, engine: Engine) -> None:
    hosted = Engine(EngineConfig(name="a", model="m", task="any", url=engine.url, served_model="m", kind="openai"))
    catalog = catalog_of(hosted)
    lists = ModelListReader(catalog, client, interval=0)
    await lists.read_first(hosted)
    hosted.adapters = ()
    await lists.refresh(hosted)
    assert hosted.adapters == ()


async def test_a_refresh_reads_all_engines_that_are_up_and_not_more_often_than_once_in_a_second(
    client: EngineClient, engine: Engine
) -> None:
    engine.up = True
    down = Engine(EngineConfig(name="b", model="m", task="any", url=engine.url, served_model="m"))
    down.up = False
    catalog = Catalog([Model("m", "1")], [engine, down])
    reads: list[float] = []
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_read() -> None:
        reads.append(loop.time())
        if len(reads) == 2:
            done.set()
        elif len(reads) == 1:
            for _ in range(5):
                refresh.request()

    refresh = AdapterRefresh(catalog, ModelListReader(catalog, client), on_read=on_read)
    started = loop.time()
    refresh.request()
    async with asyncio.timeout(TEST_TIMEOUT):
        await done.wait()
    assert (engine.adapters, down.adapters) == ((SQL,), ())
    assert reads[1] - started > 0.9 * MIN_REREAD_INTERVAL
    await refresh.aclose()
    assert len(reads) == 2
