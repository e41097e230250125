"""/tokenize, /detokenize and /v1/messages/count_tokens through the router, with engines that generate."""

from typing import Any, Final

import httpx
import pytest

from router.api.auth import hash_key
from tests.support.router_server import EngineSet, MakeRouter, RouterServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

USER: Final = {"role": "user", "content": "What is <context>The sea.</context> about?"}
REQUESTS: Final[dict[str, dict[str, Any]]] = {
    "/tokenize": {"prompt": "Hello there", "return_token_strs": True},
    "/detokenize": {"tokens": [20, 30, 40]},
    "/v1/messages/count_tokens": {"system": "Be brief.", "messages": [USER]},
}
PATHS: Final = pytest.mark.parametrize("path", REQUESTS)
KEYS: Final = f'[auth]\nmode = "keys"\n\n[[tenant]]\nname = "acme"\nkeys = ["{hash_key(b"k")}"]'
ADMIN: Final = {"authorization": "Bearer admin"}


async def ask(router: RouterServer, path: str, **fields: Any) -> httpx.Response:
    return await router.post(path, {"model": "llama", **REQUESTS[path], **fields})


@PATHS
async def test_the_tokenizer_is_asked_once(router: RouterServer, redis: Any, path: str) -> None:
    answers = [await ask(router, path, nonce=path) for _ in range(2)]
    assert [answer.headers["x-cache"] for answer in answers] == ["MISS", "HIT"]
    assert answers[0].content == answers[1].content


async def test_answers_have_vllms_form(router: RouterServer) -> None:
    tokens = (await ask(router, "/tokenize")).json()
    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"]) > 0
    assert (await ask(router, "/tokenize", prompt="")).json()["tokens"] == []
    assert (await ask(router, "/detokenize")).json() == {"prompt": "<20><30><40>"}
    count = (await ask(router, "/v1/messages/count_tokens")).json()
    assert count["context_management"] == {"original_input_tokens": count["input_tokens"]}


@pytest.mark.parametrize("field", ["messages", "prompt"])
async def test_the_parts_of_a_conversation_are_parts_of_the_key(router: RouterServer, field: str) -> None:
    texts = [USER["content"].replace("sea", word) for word in ("sea", "sky")]
    inputs = [[{"role": "user", "content": text}] if field == "messages" else text for text in texts]
    answers = [await router.post("/tokenize", {"model": "llama", field: value, "nonce": field}) for value in inputs]
    assert [answer.headers["x-cache-reason"] for answer in answers][1:] == ["rag"]
    system = {"model": "llama", "nonce": field, "messages": [{"role": "system", "content": "x"}, USER]}
    first = await router.post("/tokenize", system)
    system["messages"] = [{"role": "system", "content": "y"}, USER]
    assert (await router.post("/tokenize", system)).headers["x-cache-reason"] == "system"
    assert first.status_code == 200


async def test_no_context_length_bounds_what_is_tokenized(make_router: MakeRouter, config: str) -> None:
    short = config.replace('task = "chat"', 'task = "chat"\nmax_model_len = 16')
    router = await make_router(short.replace('task = "code"', 'task = "code"\nmax_model_len = 16'))
    assert (await ask(router, "/detokenize", tokens=list(range(100)))).status_code == 200


async def test_tokenizing_costs_requests_and_no_tokens(make_router: MakeRouter, config: str) -> None:
    limits = "tokens_per_minute = 5\nrequests_per_minute = 4"
    router = await make_router(f"{config}\n\n{KEYS}\n{limits}")
    for number in range(4):
        answer = await router.post(
            "/tokenize", {"model": "llama", "prompt": "x " * 99, "n": number}, authorization="Bearer k"
        )
        assert answer.status_code == 200
    answer = await router.post("/tokenize", {"model": "llama", "prompt": "x"}, authorization="Bearer k")
    assert answer.status_code == 429
    metrics = await router.metrics()
    assert not any(count for name, count in metrics.items() if name.startswith("llm_tokens_total") and "acme" in name)


async def test_anthropics_clients_may_send_their_key_as_usual(make_router: MakeRouter, config: str) -> None:
    router = await make_router(
        f'{config}\n\n[auth]\nmode = "keys"\n\n[[tenant]]\nname = "acme"\nkeys = ["{hash_key(b"k")}"]'
    )
    body = {"model": "llama", **REQUESTS["/v1/messages/count_tokens"]}
    answers = [
        await router.post(path, body, x_api_key=key)
        for path in ("/v1/messages/count_tokens", "/v1/messages")
        for key in ("k", "wrong")
    ]
    assert [answer.status_code for answer in answers] == [200, 401, 400, 401]  # /v1/messages lacks `max_tokens`
    assert answers[1].json()["error"] == answers[3].json()["error"]
    assert answers[1].json()["error"]["type"] == "authentication_error"


async def test_a_refusal_has_anthropics_form_where_tokens_are_counted(router: RouterServer) -> None:
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    answer = await ask(router, "/v1/messages/count_tokens", tools=tools)
    assert answer.status_code == 400
    assert "--enable-auto-tool-choice" in answer.json()["error"]["message"]
    assert answer.json()["error"].keys() == {"message", "type"}


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_without_a_model_and_with_several_the_answer_says_what_is_missing(
    router: RouterServer, engines: EngineSet, path: str
) -> None:
    for fields in (REQUESTS[path], {"model": None, **REQUESTS[path]}, {"model": "", **REQUESTS[path]}):
        answer = await router.post(path, fields)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (400, "model", "model_required")


async def test_no_other_model_answers_for_one_that_fails(
    make_router: MakeRouter, config: str, engines: EngineSet
) -> None:
    router = await make_router(config.replace('name = "llama"', 'name = "llama"\nfallback = "mistral"', 1))
    for engine in engines.chat, engines.code:
        await engine.set_faults({"fault": "status", "code": 503})
    assert (await ask(router, "/tokenize", nonce="fallback")).status_code == 503


async def test_a_purge_of_a_document_covers_its_tokens(make_router: MakeRouter, config: str) -> None:
    router = await make_router(f'{config}\n\n[auth]\nadmin_keys = ["{hash_key(b"admin")}"]')
    path = "/v1/messages/count_tokens"
    await ask(router, path)
    assert (await ask(router, path)).headers["x-cache"] == "HIT"
    (await router.http.post("/admin/cache/purge", json={"document": "The sea."}, headers=ADMIN)).raise_for_status()
    assert (await ask(router, path)).headers["x-cache"] == "MISS"
