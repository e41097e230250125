"""/rerank and /score with a cross-encoder: keys, reasons and purges of documents; see test_endpoints.py."""

from typing import Any, Final

import httpx
import pytest

from router.api.access.auth import hash_key
from tests.support.router_server import router_config
from tests.world.processes import WorldEngine, WorldRouter
from tests.world.scenario import World, scenario
from tests.world.scripted import scripted_router

DOCUMENTS: Final = ["The sea is deep.", "The sky is blue today.", "Ships"]
REQUESTS: Final[dict[str, dict[str, Any]]] = {
    "/rerank": {"query": "What is deep?", "documents": DOCUMENTS},
    "/v1/rerank": {"query": "What is deep?", "documents": DOCUMENTS, "top_n": 2},
    "/score": {"queries": "What is deep?", "documents": DOCUMENTS},
    "/v1/score": {"text_1": ["a", "b"], "text_2": ["c", "d"]},
}
ADMIN: Final = {"authorization": "Bearer admin"}


async def start(world: World) -> tuple[WorldRouter, WorldEngine]:
    engine = await world.engine(pooling=True, pooling_task="classify", max_model_len=1024)
    admin = f'[auth]\nadmin_keys = ["{hash_key(b"admin")}"]'
    return await world.router(router_config(world.redis.url, {"one": ("llama", "any", engine.url)}, rest=admin)), engine


async def ask(router: WorldRouter, path: str, **fields: Any) -> httpx.Response:
    return await router.post(path, {"model": "llama", **REQUESTS[path], **fields})


@scenario
async def test_a_ranking_has_the_documents_with_their_index_in_the_order_of_their_scores(world: World) -> None:
    router, _ = await start(world)
    results = (await ask(router, "/rerank")).json()["results"]
    assert sorted((result["index"], result["document"]["text"]) for result in results) == list(enumerate(DOCUMENTS))
    scores = [result["relevance_score"] for result in results]
    assert scores == sorted(scores, reverse=True)
    assert (await ask(router, "/v1/rerank")).json()["results"] == results[:2]


@scenario
async def test_the_paths_of_one_api_share_their_entries(world: World) -> None:
    router, engine = await start(world)
    body = {"model": "llama", **REQUESTS["/rerank"]}
    answers = [await router.post(path, body) for path in ("/v2/rerank", "/v1/rerank", "/rerank")]
    assert [answer.headers["x-cache"] for answer in answers] == ["MISS", "HIT", "HIT"]
    assert (await engine.stats())["requests"][-1]["path"] == "/v2/rerank"  # the engine was asked at the client's path


@pytest.mark.parametrize(("path", "name"), [("/rerank", "documents"), ("/score", "documents"), ("/v1/score", "text_2")])
@scenario
async def test_other_documents_are_the_reason_of_a_miss(world: World, path: str, name: str) -> None:
    router, _ = await start(world)
    await ask(router, path)
    other = await ask(router, path, **{name: ["Another text", "and one more"]})
    assert (other.headers["x-cache"], other.headers["x-cache-reason"]) == ("MISS", "rag")


@scenario
async def test_another_query_and_another_option_are_reasons_too(world: World) -> None:
    router, _ = await start(world)
    await ask(router, "/rerank")
    assert (await ask(router, "/rerank", query="Why?")).headers["x-cache-reason"] == "query"
    assert (await ask(router, "/rerank", max_tokens_per_doc=5)).headers["x-cache-reason"] == "params"


@pytest.mark.parametrize("path", ["/rerank", "/score"])
@scenario
async def test_a_purge_by_a_documents_text_finds_the_entries_with_it(world: World, path: str) -> None:
    router, _ = await start(world)
    await ask(router, path)
    for text, result in (("Another text", "HIT"), (DOCUMENTS[1], "MISS")):
        purge = await router.http.post("/admin/cache/purge", json={"document": text}, headers=ADMIN)
        purge.raise_for_status()
        assert (await ask(router, path)).headers["x-cache"] == result


@scenario
async def test_an_engines_refusal_is_passed_on(world: World) -> None:
    router, _ = await start(world)
    refused = await ask(router, "/rerank", documents=["long " * 3000])
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input_tokens")
    images = await ask(router, "/rerank", documents=[{"content": [{"type": "text", "text": "x"}]}])
    assert (images.status_code, "MultiModalParam" in images.json()["error"]["message"]) == (400, True)


@scenario
async def test_content_behind_an_address_is_not_cached(world: World) -> None:
    router, _ = await start(world)
    image = {"content": [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]}
    answer = await ask(router, "/rerank", documents=["text", image])
    assert (answer.headers["x-cache"], answer.headers["x-cache-reason"]) == ("BYPASS", "uncacheable")


@scenario
async def test_incomplete_responses_are_passed_on_and_not_stored(world: World) -> None:
    body = b'{"id":"s","results":[{"index":0,"document":{"text":"a"},"relevance_score":0.5}]}'
    router, _ = await scripted_router(world, body, content_type="application/json")
    for documents, second in ((["a", "b"], "MISS"), (["a"], "HIT")):
        answers = [await ask(router, "/rerank", documents=documents) for _ in range(2)]
        assert [answer.headers["x-cache"] for answer in answers] == ["MISS", second]
        assert {answer.content for answer in answers} == {body}


@pytest.mark.parametrize("fields", [{"queries": "", "documents": ["a"]}, {"queries": "a", "documents": ""}])
@scenario
async def test_an_empty_text_is_scored_and_stored_as_any_other(world: World, fields: dict[str, Any]) -> None:
    body = b'{"id":"s","data":[{"index":0,"score":0.5}]}'
    router, _ = await scripted_router(world, body, content_type="application/json")
    answers = [await router.post("/score", {"model": "llama", **fields}) for _ in range(2)]
    assert [(answer.status_code, answer.headers["x-cache"]) for answer in answers] == [(200, "MISS"), (200, "HIT")]
