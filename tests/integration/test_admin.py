"""The admin API: authentication, responses and refusals."""

import json
from typing import Any

import httpx
import pytest
import pytest_asyncio

from router.api.access.auth import hash_key
from router.core.cache.redis_keys import claim_key
from tests.support.entry_factory import entry_key, make_entry, make_streamed_entry, store_entry
from tests.support.purge_log import NO_REPLICAS, logged_scopes
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, chat_body, router_config
from tests.support.sse_answers import DONE_FRAME, chat_text
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADMIN = {"authorization": "Bearer admin-key"}
REST = (
    f'[auth]\nmode = "keys"\nadmin_keys = ["{hash_key(b"another")}", "{hash_key(b"admin-key")}"]\n'
    f'[[tenant]]\nname = "acme"\nkeys = ["{hash_key(b"acme-key")}"]\n'
)
PAGES = [
    ("GET", "/admin/cache/stats"), ("GET", "/admin/cache/entries"), ("GET", f"/admin/cache/entries/{entry_key()}"),
    ("DELETE", f"/admin/cache/entries/{entry_key()}"), ("POST", "/admin/cache/purge"), ("POST", "/admin/cache/grep"),
    ("POST", "/admin/cache/explain"),
    ("GET", "/admin"), ("GET", "/admin/nothing/here"), ("POST", "/admin/cache/stats"),
]  # fmt: skip


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(redis_server: RedisServer, engines: EngineSet, make_router: MakeRouter) -> RouterServer:
    """A router with tenant keys and admin keys."""
    return await make_router(router_config(redis_server.url, engines.as_config(), rest=REST))


async def get(router: RouterServer, path: str, **query: Any) -> Any:
    answer = await router.http.get(f"/admin/cache/{path}", params=query, headers=ADMIN)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def post(router: RouterServer, path: str, body: Any) -> Any:
    answer = await router.http.post(f"/admin/cache/{path}", json=body, headers=ADMIN)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def stored_chat(router: RouterServer, client: Any, prompt: str, **fields: Any) -> httpx.Response:
    """The response to a request of acme, once its entry is in Redis. The client gets it before: the router writes and
    an administrator reads over connections of their own.
    """
    answer = await router.chat(prompt, headers={"authorization": "Bearer acme-key"}, **fields)
    await eventually(lambda: client.exists(answer.headers["x-cache-key"]))
    return answer


# -- authentication ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path"), PAGES)
async def test_without_an_admin_key_in_the_configuration_every_admin_page_is_closed(
    router: RouterServer, method: str, path: str
) -> None:
    for headers in ({}, ADMIN, {"authorization": "Bearer"}):
        answer = await router.http.request(method, path, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "admin_closed")
        assert answer.headers["x-request-id"]


@pytest.mark.parametrize(("method", "path"), PAGES)
async def test_a_request_without_an_admin_key_is_refused(
    guarded: RouterServer, client: Any, method: str, path: str
) -> None:
    await store_entry(client, entry_key())
    for headers in ({}, {"authorization": "Bearer acme-key"}, {"authorization": f"Bearer {hash_key(b'admin-key')}"}):
        answer = await guarded.http.request(method, path, headers=headers, content=b'{"all": true}')
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
    assert await client.exists(entry_key())


async def test_any_admin_key_is_accepted_and_no_tenant_is_needed(guarded: RouterServer) -> None:
    for one in ("admin-key", "another"):
        answer = await guarded.http.get("/admin/cache/stats", headers={"authorization": f"Bearer {one}"})
        assert answer.status_code == 200


async def test_an_admin_key_is_not_a_tenants_key(guarded: RouterServer) -> None:
    assert (await guarded.chat("Hi", headers=ADMIN)).status_code == 401


@pytest.mark.parametrize(("method", "path"), PAGES[-3:-1])
async def test_an_unknown_page_is_404_with_a_key(guarded: RouterServer, method: str, path: str) -> None:
    answer = await guarded.http.request(method, path, headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_a_wrong_method_is_405_with_a_key(guarded: RouterServer) -> None:
    answer = await guarded.http.post("/admin/cache/stats", headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")


# -- read -------------------------------------------------------------------------------------------------------------


async def test_an_entry_appears_in_the_counts_and_the_listing_and_under_its_key(
    guarded: RouterServer, client: Any
) -> None:
    sent = await stored_chat(guarded, client, "Tell me about the sea.")
    at = sent.headers["x-cache-key"]
    amount = (await get(guarded, "stats"))["tenants"]["acme"]["llama"]
    assert (amount["entries"], amount["tokens"]) == (1, sent.json()["usage"]["completion_tokens"])
    assert amount["bytes_per_token"] == pytest.approx(amount["bytes"] / amount["tokens"], abs=0.01)
    (listed,) = (await get(guarded, "entries", tenant="acme"))["entries"]
    assert (listed["key"], listed["engine"]) == (at, sent.headers["x-engine"])
    details = await get(guarded, f"entries/{at}")
    assert (details["entry"]["key"], details["problem"]) == (at, None)
    assert json.loads(details["fields"]["body"]) == sent.json()
    assert details["text"] == sent.json()["choices"][0]["message"]["content"]


async def test_an_entry_from_a_stream_shows_the_text_and_the_json_form(guarded: RouterServer, client: Any) -> None:
    sent = await stored_chat(guarded, client, "The sea?", stream=True)
    details = await get(guarded, f"entries/{sent.headers['x-cache-key']}")
    assert (details["text"], details["problem"]) == (chat_text(sent), None)
    assert details["stream"]["bytes"] == len(details["fields"]["stream"])
    assert details["stream"]["lossless"]
    usage_event = details["stream"]["events"] - len(sent.content.removesuffix(DONE_FRAME))
    assert 0 < usage_event < 500, "the client did not ask for it"


async def test_the_listing_continues_at_its_cursor(guarded: RouterServer, client: Any) -> None:
    expected = [await store_entry(client, entry_key(number)) for number in range(5)]
    first = await get(guarded, "entries", limit=3)
    second = await get(guarded, "entries", limit=3, cursor=first["cursor"])
    assert [e["key"] for e in first["entries"] + second["entries"]] == expected
    assert second["cursor"] is None


@pytest.mark.parametrize(
    "query",
    [
        {"limit": "0"}, {"limit": "1001"}, {"limit": "x"}, {"limit": "²"}, {"limit": "9" * 5000}, {"tenant": "*"},
        {"system": "abc"}, {"color": "red"}, {"all": "true"}, {"sort": "size"}, {"sort": "hits", "cursor": "x"},
    ],
    ids=str,
)  # fmt: skip
async def test_a_listing_with_invalid_parameters_is_refused(guarded: RouterServer, query: dict[str, str]) -> None:
    answer = await guarded.http.get("/admin/cache/entries", params=query, headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_query")


async def test_a_damaged_entry_can_be_listed_shown_and_deleted(guarded: RouterServer, client: Any) -> None:
    await store_entry(client, entry_key(1))
    await client.hset(entry_key(2), mapping={"body": b"\xff", "created": "x"})
    assert len((await get(guarded, "entries"))["entries"]) == 2
    assert (await get(guarded, f"entries/{entry_key(2)}"))["problem"] is not None
    answer = await guarded.http.delete(f"/admin/cache/entries/{entry_key(2)}", headers=ADMIN)
    assert answer.json() == {"entries": 1, "claims": 0, "responses": 0, "replicas": NO_REPLICAS, "recorded": True}
    assert await client.exists(entry_key(1))
    assert not await client.exists(entry_key(2))


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_a_missing_entry_is_404_and_an_invalid_key_is_400(guarded: RouterServer, method: str) -> None:
    answer = await guarded.http.request(method, f"/admin/cache/entries/{entry_key()}", headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_such_entry")
    for wrong in ("foreign", "rh:1:purge", entry_key() + "%0A", "*"):
        answer = await guarded.http.request(method, f"/admin/cache/entries/{wrong}", headers=ADMIN)
        assert answer.status_code == 400, wrong


# -- purge ------------------------------------------------------------------------------------------------------------


async def test_a_purged_entry_is_generated_again(guarded: RouterServer) -> None:
    acme = {"authorization": "Bearer acme-key"}
    first = await guarded.chat("Tell me about the sea.", headers=acme)
    assert (await guarded.chat("Tell me about the sea.", headers=acme)).headers["x-cache"] == "HIT"
    assert await post(guarded, "purge", {"tenant": "acme"}) == {
        "entries": 1,
        "claims": 0,
        "replicas": NO_REPLICAS,
        "responses": 0,
        "recorded": True,
    }
    again = await guarded.chat("Tell me about the sea.", headers=acme)
    assert (first.headers["x-cache"], again.headers["x-cache"]) == ("MISS", "MISS")


async def test_a_purge_reaches_every_router_and_deletes_the_claims(guarded: RouterServer, client: Any) -> None:
    await store_entry(client, entry_key(rag="b" * 16), make_entry(documents=("handbook",)))
    await client.set(claim_key(entry_key()), "flight")
    assert await post(guarded, "purge", {"document": "handbook"}) == {
        "entries": 1,
        "claims": 0,
        "replicas": NO_REPLICAS,
        "responses": 0,
        "recorded": True,
    }
    assert await post(guarded, "purge", {"all": True}) == {
        "entries": 0,
        "claims": 1,
        "replicas": NO_REPLICAS,
        "responses": 0,
        "recorded": True,
    }
    assert [(scope.document, scope.all) for scope in await logged_scopes(client)] == [("handbook", False), (None, True)]


async def test_the_log_names_what_was_purged_without_the_text_of_a_document(
    guarded: RouterServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "roundhouse.admin"):
        await post(guarded, "purge", {"tenant": "acme", "document": "my secret text"})
    assert 'purged {"tenant":"acme","document":"' in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("body", [b"", b"{}", b"nonsense", b'{"tenant": "*"}', b'{"all": true, "key": "x"}'])
async def test_a_purge_without_a_filter_is_refused_and_deletes_nothing(
    guarded: RouterServer, client: Any, body: bytes
) -> None:
    await store_entry(client, entry_key())
    answer = await guarded.http.post("/admin/cache/purge", content=body, headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_purge")
    assert await client.exists(entry_key())
    assert not await logged_scopes(client)


@pytest.mark.parametrize(("path", "size"), [("purge", 1 << 20), ("grep", 1 << 20), ("explain", (4 << 20) + 4096)])
async def test_request_bodies_have_a_size_limit(guarded: RouterServer, path: str, size: int) -> None:
    answer = await guarded.http.post(f"/admin/cache/{path}", content=b" " * (size + 1), headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


# -- grep -------------------------------------------------------------------------------------------------------------


async def test_a_bad_answer_is_found_and_purged_by_its_words(
    guarded: RouterServer, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    acme = {"authorization": "Bearer acme-key"}
    sent = await stored_chat(guarded, client, "Tell me about the sea.")
    words = sent.json()["choices"][0]["message"]["content"].upper()[10:60]
    other = await store_entry(client, entry_key(), make_streamed_entry("Another answer."))
    found = await post(guarded, "grep", {"text": words, "tenant": "acme"})
    assert [entry["key"] for entry in found["entries"]] == [sent.headers["x-cache-key"]]
    assert (found["matches"], found["looked_at"], found["everything"], found["purge"]) == (1, 2, True, None)
    with caplog.at_level("INFO", "roundhouse.admin"):
        purged = await post(guarded, "grep", {"text": words, "purge": True})
    assert purged["purge"] == {"entries": 1, "claims": 0, "responses": 0, "replicas": NO_REPLICAS, "recorded": True}
    assert "purged by text among all: 1 entry" in caplog.text
    assert words not in caplog.text
    assert (await guarded.chat("Tell me about the sea.", headers=acme)).headers["x-cache"] == "MISS"
    assert await client.exists(other)


async def test_the_entries_that_a_search_finds_can_be_sorted_and_limited(guarded: RouterServer, client: Any) -> None:
    for number in range(3):
        await store_entry(client, entry_key(number), make_streamed_entry("sea " * (1 + number)))
    found = await post(guarded, "grep", {"text": "sea", "sort": "tokens", "limit": 2})
    assert [entry["completion_tokens"] for entry in found["entries"]] == [3, 2]
    listed = await get(guarded, "entries", sort="tokens", limit=1)
    assert [entry["preview"] for entry in listed["entries"]] == ["sea sea sea"]
    following = await get(guarded, "entries", sort="tokens", limit=2, cursor=listed["cursor"])
    assert [entry["completion_tokens"] for entry in following["entries"]] == [2, 1]


@pytest.mark.parametrize(
    "question",
    [{}, {"text": " "}, {"text": "a", "tenant": "*"}, {"text": "a", "sort": "size"}, {"text": "a", "limit": 0}, [], 1,
     {"text": "a", "more": 1}],
    ids=str,
)  # fmt: skip
async def test_a_search_that_is_invalid_is_refused(guarded: RouterServer, question: Any) -> None:
    answer = await guarded.http.post("/admin/cache/grep", json=question, headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_query")


# -- explain ----------------------------------------------------------------------------------------------------------


async def test_a_request_is_explained_before_and_after_its_response_is_stored(
    guarded: RouterServer, client: Any
) -> None:
    body = chat_body("Tell me about the sea.")
    before = await post(guarded, "explain", {"tenant": "acme", "body": body})
    assert (before["result"], before["reason"]) == ("MISS", "new")
    sent = await stored_chat(guarded, client, "Tell me about the sea.")
    after = await post(guarded, "explain", {"tenant": "acme", "path": "/v1/chat/completions", "body": body})
    assert (after["result"], after["key"]) == ("HIT", sent.headers["x-cache-key"])
    other = await post(guarded, "explain", {"tenant": "acme", "body": {**body, "model": "mistral"}})
    assert other["result"] == "MISS"
    assert other["nearest"]["key"] == after["key"]


@pytest.mark.parametrize(
    "question",
    [
        {}, {"body": {}}, {"tenant": "acme"}, {"body": chat_body("Hi")}, {"tenant": "acme", "body": "text"},
        {"tenant": "acme", "body": chat_body("Hi"), "path": "/metrics"}, {"tenant": 1, "body": {}}, [], "x",
        {"tenant": "acme", "body": chat_body("Hi"), "more": 1},
    ],
    ids=str,
)  # fmt: skip
async def test_an_explain_request_that_is_invalid_is_refused(guarded: RouterServer, question: Any) -> None:
    answer = await guarded.http.post("/admin/cache/explain", json=question, headers=ADMIN)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


async def test_explaining_an_unknown_model_is_404(guarded: RouterServer) -> None:
    question = {"tenant": "acme", "body": chat_body("Hi", model="nope")}
    answer = await guarded.http.post("/admin/cache/explain", json=question, headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


# -- Redis is down ----------------------------------------------------------------------------------------------------


async def test_without_redis_the_admin_api_returns_503_with_retry_after(
    own_redis: RedisServer, engines: EngineSet, make_router: MakeRouter
) -> None:
    await own_redis.start()
    router = await make_router(router_config(own_redis.url, engines.as_config(), rest=REST))
    own_redis.kill()
    explained = {"tenant": "acme", "body": chat_body("Hi")}
    for method, path, body in (
        ("GET", "stats", None), ("GET", "entries", None), ("GET", f"entries/{entry_key()}", None),
        ("DELETE", f"entries/{entry_key()}", None), ("POST", "purge", {"all": True}), ("POST", "grep", {"text": "a"}),
        ("POST", "explain", explained),
    ):  # fmt: skip
        answer = await router.http.request(method, f"/admin/cache/{path}", json=body, headers=ADMIN)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "redis_down")
        assert answer.headers["retry-after"]
        assert str(own_redis.socket) not in answer.text
    await own_redis.start()
    assert (await get(router, "stats"))["total"]["entries"] == 0
