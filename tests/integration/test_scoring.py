"""/rerank, /score, /classify and /pooling through the router, with a cross-encoder."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx
import pytest
import pytest_asyncio

from router.api.auth import hash_key
from tests.support.redis_process import RedisServer
from tests.support.router_server import LLAMA, MakeRouter, RouterServer, router_config
from tests.support.simulated_engine import SimulatedEngine

pytestmark = pytest.mark.asyncio(loop_scope="session")

DOCUMENTS: Final = ["The sea is deep.", "The sky is blue today.", "Ships"]
REQUESTS: Final[dict[str, dict[str, Any]]] = {
    "/rerank": {"query": "What is deep?", "documents": DOCUMENTS},
    "/v1/rerank": {"query": "What is deep?", "documents": DOCUMENTS, "top_n": 2},
    "/v2/rerank": {"query": "What is deep?", "documents": "One text"},
    "/score": {"queries": "What is deep?", "documents": DOCUMENTS},
    "/v1/score": {"text_1": ["a", "b"], "text_2": ["c", "d"]},
    "/classify": {"input": ["The sea", "The sky"]},
    "/pooling": {"input": "The sea"},
}
ADMIN: Final = {"authorization": "Bearer admin"}
PATHS: Final = pytest.mark.parametrize("path", REQUESTS)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running() -> AsyncIterator[SimulatedEngine]:
    async with SimulatedEngine(LLAMA, runner="pooling", pooling_task="classify", max_model_len=1024) as engine:
        yield engine


@pytest_asyncio.fixture(loop_scope="session")
async def engine(running: SimulatedEngine) -> AsyncIterator[SimulatedEngine]:
    yield running
    await running.clear_faults()


@pytest.fixture
def configuration(redis_server: RedisServer, engine: SimulatedEngine) -> str:
    admin = f'[auth]\nadmin_keys = ["{hash_key(b"admin")}"]'
    return router_config(redis_server.url, {"scorer": ("llama", "any", engine.url)}, rest=admin)


@pytest_asyncio.fixture(loop_scope="session")
async def router(configuration: str, redis: Any, make_router: MakeRouter) -> RouterServer:
    return await make_router(configuration)  # after `redis`, which has emptied the cache


async def ask(router: RouterServer, path: str, **fields: Any) -> httpx.Response:
    return await router.post(path, {"model": "llama", **REQUESTS[path], **fields})


async def received(engine: SimulatedEngine) -> int:
    count: int = (await engine.stats())["received"]
    return count


@PATHS
async def test_a_response_is_generated_once_and_replayed_exactly(
    router: RouterServer, engine: SimulatedEngine, path: str
) -> None:
    before = await received(engine)
    answers = [await ask(router, path) for _ in range(2)]
    assert [answer.headers["x-cache"] for answer in answers] == ["MISS", "HIT"]
    assert answers[0].content == answers[1].content
    assert answers[1].headers["x-engine"] == "scorer"
    assert await received(engine) == before + 1


async def test_a_ranking_has_the_documents_with_their_index_in_the_order_of_their_scores(router: RouterServer) -> None:
    results = (await ask(router, "/rerank")).json()["results"]
    assert sorted((result["index"], result["document"]["text"]) for result in results) == list(enumerate(DOCUMENTS))
    scores = [result["relevance_score"] for result in results]
    assert scores == sorted(scores, reverse=True)
    assert (await ask(router, "/v1/rerank")).json()["results"] == results[:2]


async def test_the_paths_of_one_api_share_their_entries(router: RouterServer, engine: SimulatedEngine) -> None:
    body = {"model": "llama", **REQUESTS["/rerank"]}
    answers = [await router.post(path, body) for path in ("/v2/rerank", "/v1/rerank", "/rerank")]
    assert [answer.headers["x-cache"] for answer in answers] == ["MISS", "HIT", "HIT"]
    assert (await engine.stats())["requests"][-1]["path"] == "/v2/rerank"  # the engine was asked at the client's path


@pytest.mark.parametrize(("path", "name"), [("/rerank", "documents"), ("/score", "documents"), ("/v1/score", "text_2")])
async def test_other_documents_are_the_reason_of_a_miss(router: RouterServer, path: str, name: str) -> None:
    await ask(router, path)
    other = await ask(router, path, **{name: ["Another text", "and one more"]})
    assert (other.headers["x-cache"], other.headers["x-cache-reason"]) == ("MISS", "rag")


async def test_another_query_and_another_option_are_reasons_too(router: RouterServer) -> None:
    await ask(router, "/rerank")
    assert (await ask(router, "/rerank", query="Why?")).headers["x-cache-reason"] == "query"
    assert (await ask(router, "/rerank", max_tokens_per_doc=5)).headers["x-cache-reason"] == "params"


@pytest.mark.parametrize("path", ["/rerank", "/score"])
async def test_a_purge_by_a_documents_text_finds_the_entries_with_it(router: RouterServer, path: str) -> None:
    await ask(router, path)
    for text, result in (("Another text", "HIT"), (DOCUMENTS[1], "MISS")):
        purge = await router.http.post("/admin/cache/purge", json={"document": text}, headers=ADMIN)
        purge.raise_for_status()
        assert (await ask(router, path)).headers["x-cache"] == result


@pytest.mark.parametrize("fault", ["malformed", "drop", "error"])
@PATHS
async def test_the_error_of_an_engine_is_returned_and_nothing_is_stored(
    router: RouterServer, engine: SimulatedEngine, path: str, fault: str
) -> None:
    await engine.set_faults({"fault": fault})
    assert (await ask(router, path)).status_code == 502
    await engine.clear_faults()
    assert (await ask(router, path)).headers["x-cache"] == "MISS"


async def test_an_engines_refusal_is_passed_on(router: RouterServer) -> None:
    refused = await ask(router, "/rerank", documents=["long " * 3000])
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input_tokens")
    images = await ask(router, "/rerank", documents=[{"content": [{"type": "text", "text": "x"}]}])
    assert (images.status_code, "MultiModalParam" in images.json()["error"]["message"]) == (400, True)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/rerank", {"query": None}, "query"), ("/rerank", {"documents": []}, "documents"),
        ("/rerank", {"documents": 3}, "documents"), ("/rerank", {"top_n": "two"}, "top_n"),
        ("/score", {"queries": None}, "queries"), ("/v1/score", {"text_2": None}, "text_2"),
        ("/classify", {"input": None}, "input"), ("/pooling", {"encoding_format": "bytes"}, "encoding_format"),
    ],
)  # fmt: skip
async def test_an_invalid_request_is_refused_without_an_engine(
    router: RouterServer, engine: SimulatedEngine, path: str, fields: dict[str, Any], param: str
) -> None:
    before = await received(engine)
    answer = await ask(router, path, **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert await received(engine) == before


async def test_content_behind_an_address_is_not_cached(router: RouterServer) -> None:
    image = {"content": [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]}
    answer = await ask(router, "/rerank", documents=["text", image])
    assert (answer.headers["x-cache"], answer.headers["x-cache-reason"]) == ("BYPASS", "uncacheable")


async def test_equal_requests_at_the_same_time_share_one_generation(
    router: RouterServer, engine: SimulatedEngine
) -> None:
    before = await received(engine)
    answers = await asyncio.gather(*(ask(router, "/score") for _ in range(8)))
    assert len({answer.content for answer in answers}) == 1
    assert await received(engine) == before + 1


async def test_incomplete_responses_are_passed_on_and_not_stored(scripted: Any) -> None:
    body = b'{"id":"s","results":[{"index":0,"document":{"text":"a"},"relevance_score":0.5}]}'
    router, _ = await scripted(body, content_type="application/json")
    for documents, second in ((["a", "b"], "MISS"), (["a"], "HIT")):
        answers = [await ask(router, "/rerank", documents=documents) for _ in range(2)]
        assert [answer.headers["x-cache"] for answer in answers] == ["MISS", second]
        assert {answer.content for answer in answers} == {body}


@pytest.mark.parametrize("fields", [{"queries": "", "documents": ["a"]}, {"queries": "a", "documents": ""}])
async def test_an_empty_text_is_scored_and_stored_as_any_other(scripted: Any, fields: dict[str, Any]) -> None:
    body = b'{"id":"s","data":[{"index":0,"score":0.5}]}'
    router, _ = await scripted(body, content_type="application/json")
    answers = [await router.post("/score", {"model": "llama", **fields}) for _ in range(2)]
    assert [(answer.status_code, answer.headers["x-cache"]) for answer in answers] == [(200, "MISS"), (200, "HIT")]


async def test_without_a_model_the_only_one_answers(router: RouterServer) -> None:
    answers = [await ask(router, "/rerank"), await router.post("/rerank", REQUESTS["/rerank"])]
    assert [answer.headers["x-cache"] for answer in answers] == ["MISS", "HIT"]
    fresh = await router.post("/score", {"model": None, "queries": "a", "documents": ["b"]})
    assert (fresh.status_code, fresh.json()["model"]) == (200, LLAMA)


async def test_scores_and_classes_count_as_prompt_tokens(router: RouterServer) -> None:
    before = (await router.metrics()).get(TOKENS, 0.0)
    usage = (await ask(router, "/rerank")).json()["usage"]
    assert (await router.metrics())[TOKENS] == before + usage["prompt_tokens"]


TOKENS: Final = 'llm_tokens_total{kind="prompt",model="llama",tenant="default"}'
