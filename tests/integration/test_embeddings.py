"""/v1/embeddings through the router, with a pooling engine: stored as JSON, its only form."""

from collections.abc import AsyncIterator
from typing import Any, Final

import httpx
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from tests.support.redis_process import RedisServer
from tests.support.router_server import LLAMA, MakeRouter, RouterServer, router_config
from tests.support.simulated_engine import SimulatedEngine

pytestmark = pytest.mark.asyncio(loop_scope="session")

PATH: Final = "/v1/embeddings"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running() -> AsyncIterator[SimulatedEngine]:
    async with SimulatedEngine(LLAMA, runner="pooling") as engine:
        yield engine


@pytest_asyncio.fixture(loop_scope="session")
async def engine(running: SimulatedEngine) -> AsyncIterator[SimulatedEngine]:
    yield running
    await running.clear_faults()


@pytest.fixture
def pooling(redis_server: RedisServer, engine: SimulatedEngine) -> str:
    """The configuration with an engine for embeddings."""
    return router_config(redis_server.url, {"embedder": ("llama", "any", engine.url)})


@pytest_asyncio.fixture(loop_scope="session")
async def embedder(pooling: str, make_router: MakeRouter) -> RouterServer:
    return await make_router(pooling)


async def embed(router: RouterServer, input_: Any = "The sea", **fields: Any) -> httpx.Response:
    return await router.post(PATH, {"model": "llama", "input": input_, **fields})


@pytest.mark.parametrize("input_", ["The sea", ["The sea", "The sky"], [1, 2, 3], [[1, 2], [3]]])
async def test_embeddings_are_generated_once_and_stored(
    embedder: RouterServer, engine: SimulatedEngine, input_: Any
) -> None:
    before = (await engine.stats())["received"]
    answers = [await embed(embedder, input_) for _ in range(2)]
    assert [answer.headers["x-cache"] for answer in answers] == ["MISS", "HIT"]
    assert answers[0].content == answers[1].content
    assert answers[1].headers["content-type"] == "application/json"
    assert answers[1].headers["x-engine"] == "embedder"
    count = len(input_) if isinstance(input_, list) and not isinstance(input_[0], int) else 1
    assert len(answers[1].json()["data"]) == count
    assert (await engine.stats())["received"] == before + 1


@pytest.mark.parametrize(
    ("input_", "fields"),
    [
        ("The Sea", {}), (["The sea"], {}), ("The sea", {"dimensions": 8}), ("The sea", {"encoding_format": "base64"}),
        ("The sea", {"frobnicate": 1}),
    ],
)  # fmt: skip
async def test_a_changed_field_is_another_entry(embedder: RouterServer, input_: Any, fields: dict[str, Any]) -> None:
    first = await embed(embedder)
    other = await embed(embedder, input_, **fields)
    assert other.headers["x-cache"] == "MISS"
    assert first.headers["x-cache-key"] != other.headers["x-cache-key"]


async def test_the_user_and_stream_fields_do_not_change_the_key(embedder: RouterServer) -> None:
    answers = [await embed(embedder), await embed(embedder, user="u"), await embed(embedder, stream=True)]
    assert [answer.headers["x-cache"] for answer in answers] == ["MISS", "HIT", "HIT"]
    assert answers[0].content == answers[1].content == answers[2].content
    assert answers[2].headers["content-type"] == "application/json"


async def test_embeddings_are_stored_where_only_deterministic_responses_are(
    make_router: MakeRouter, pooling: str
) -> None:
    router = await make_router(pooling.replace("[cache]", '[cache]\nstore = "deterministic"'))
    assert [(await embed(router)).headers["x-cache"] for _ in range(2)] == ["MISS", "HIT"]


@pytest.mark.parametrize("fault", ["malformed", "drop", "error"])
async def test_the_error_of_an_engine_is_returned_and_nothing_is_stored(
    embedder: RouterServer, engine: SimulatedEngine, fault: str
) -> None:
    await engine.set_faults({"fault": fault})
    assert (await embed(embedder)).status_code == 502
    await engine.clear_faults()
    assert (await embed(embedder)).headers["x-cache"] == "MISS"


async def test_responses_with_too_few_vectors_are_not_stored(scripted: Any) -> None:
    body = b'{"object":"list","data":[{"index":0,"object":"embedding","embedding":[0.5]}],"model":"m"}'
    router, _ = await scripted(body, content_type="application/json")
    assert [(await embed(router, ["a", "b"])).headers["x-cache"] for _ in range(2)] == ["MISS", "MISS"]
    assert [(await embed(router, ["a"])).headers["x-cache"] for _ in range(2)] == ["MISS", "HIT"]


async def test_a_request_that_cannot_be_served_as_json_is_refused(embedder: RouterServer) -> None:
    answer = await embed(embedder, encoding_format="bytes")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "encoding_format")


async def test_openais_client_reads_them(embedder: RouterServer) -> None:
    http = DefaultAsyncHttpxClient(verify=False, trust_env=False)
    async with AsyncOpenAI(base_url=f"{embedder.url}/v1", api_key="none", http_client=http) as client:
        # The client requests base64 and decodes it.
        answers = [await client.embeddings.create(model="llama", input=["The sea", "The sky"]) for _ in range(2)]
        plain = await client.embeddings.create(model="llama", input=["The sea", "The sky"], encoding_format="float")
    vectors = [[item.embedding for item in answer.data] for answer in (*answers, plain)]
    assert vectors[0] == vectors[1]
    assert vectors[0] == [pytest.approx(vector) for vector in vectors[2]]
    assert answers[0].usage.prompt_tokens == answers[1].usage.prompt_tokens > 0
