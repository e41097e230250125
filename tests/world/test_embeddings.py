"""/v1/embeddings: what is in its key, and OpenAI's client; test_endpoints.py has what all endpoints have in common."""

from typing import Any, Final

import httpx
import pytest
from openai import AsyncOpenAI

from tests.support.router_server import router_config
from tests.world.processes import WorldEngine, WorldRouter
from tests.world.scenario import World, scenario
from tests.world.scripted import scripted_router

PATH: Final = "/v1/embeddings"


async def start(world: World, **options: Any) -> tuple[WorldRouter, WorldEngine]:
    engine = await world.engine(pooling=True)
    text = router_config(world.redis.url, {"embedder": ("llama", "any", engine.url)}, **options)
    return await world.router(text), engine


async def embed(router: WorldRouter, input_: Any = "The sea", **fields: Any) -> httpx.Response:
    return await router.post(PATH, {"model": "llama", "input": input_, **fields})


@scenario
async def test_texts_and_tokens_each_have_their_vectors(world: World) -> None:
    router, _ = await start(world)
    for input_, count in (("The sea", 1), (["The sea", "The sky"], 2), ([1, 2, 3], 1), ([[1, 2], [3]], 2)):
        answers = [await embed(router, input_) for _ in range(2)]
        assert [answer.headers["x-cache"] for answer in answers] == ["MISS", "HIT"]
        assert len(answers[1].json()["data"]) == count


@pytest.mark.parametrize(
    ("input_", "fields"),
    [
        ("The Sea", {}), (["The sea"], {}), ("The sea", {"dimensions": 8}), ("The sea", {"encoding_format": "base64"}),
    ],
)  # fmt: skip
@scenario
async def test_a_changed_field_is_another_entry(world: World, input_: Any, fields: dict[str, Any]) -> None:
    router, _ = await start(world)
    first = await embed(router)
    other = await embed(router, input_, **fields)
    assert other.headers["x-cache"] == "MISS"
    assert first.headers["x-cache-key"] != other.headers["x-cache-key"]


@scenario
async def test_the_user_and_stream_fields_do_not_change_the_key(world: World) -> None:
    router, _ = await start(world)
    answers = [await embed(router), await embed(router, user="u"), await embed(router, stream=True)]
    assert [answer.headers["x-cache"] for answer in answers] == ["MISS", "HIT", "HIT"]
    assert answers[0].content == answers[1].content == answers[2].content
    assert answers[2].headers["content-type"] == "application/json"


@scenario
async def test_embeddings_are_stored_where_only_deterministic_responses_are(world: World) -> None:
    router, _ = await start(world, cache='store = "deterministic"')
    assert [(await embed(router)).headers["x-cache"] for _ in range(2)] == ["MISS", "HIT"]


@scenario
async def test_responses_with_too_few_vectors_are_not_stored(world: World) -> None:
    body = b'{"object":"list","data":[{"index":0,"object":"embedding","embedding":[0.5]}],"model":"m"}'
    router, _ = await scripted_router(world, body, content_type="application/json")
    assert [(await embed(router, ["a", "b"])).headers["x-cache"] for _ in range(2)] == ["MISS", "MISS"]
    assert [(await embed(router, ["a"])).headers["x-cache"] for _ in range(2)] == ["MISS", "HIT"]


@scenario
async def test_openais_client_reads_them(world: World) -> None:
    router, _ = await start(world)
    http: Any = router.http  # the library wants its own fork of httpx
    client = AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0, http_client=http)
    # The client requests base64 and decodes it.
    answers = [await client.embeddings.create(model="llama", input=["The sea", "The sky"]) for _ in range(2)]
    plain = await client.embeddings.create(model="llama", input=["The sea", "The sky"], encoding_format="float")
    vectors = [[item.embedding for item in answer.data] for answer in (*answers, plain)]
    assert vectors[0] == vectors[1]
    assert vectors[0] == [pytest.approx(vector) for vector in vectors[2]]
    assert answers[0].usage.prompt_tokens == answers[1].usage.prompt_tokens > 0
