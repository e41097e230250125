"""LoRA adapters of engines: found, listed, cached, routed, loaded and unloaded."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from router.api.access.auth import hash_key
from router.core.api_keys import key_id
from router.core.cache.redis_keys import AUDIT_KEY
from router.upstream.adapters import adapter_name
from tests.support.redis_process import RedisServer
from tests.support.router_server import LLAMA, EngineSet, MakeRouter, RouterServer, router_config, with_fallback
from tests.support.scripted_engine import Request, Response, json_response, served
from tests.support.simulated_engine import SimulatedEngine
from tests.support.waiting import TEST_TIMEOUT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADMIN = {"authorization": "Bearer admin-key"}
REST = f'[auth]\nadmin_keys = ["{hash_key(b"admin-key")}"]\n'
SQL = adapter_name("llama", "team/SQL")


class AdapterScript:
    """Does what vLLM does for chats and adapters; its answer to a chat names the path of the adapter.

    - `load_status`: of the answer to a load, which is done in any case but for a 4xx.
    - `open`: chats wait for it. `received` counts them.
    """

    def __init__(self, **paths_by_id: str) -> None:
        self.paths = dict(paths_by_id)
        self.load_status = 200
        self.open = asyncio.Event()
        self.open.set()
        self.received = 0

    async def __call__(self, request: Request) -> Response:
        body = json.loads(request.body or b"{}")
        match request.path:
            case "/v1/models":
                base = {"id": LLAMA, "object": "model", "owned_by": "vllm", "root": LLAMA, "parent": None}
                adapters = [{**base, "id": id_, "root": path, "parent": LLAMA} for id_, path in self.paths.items()]
                return json_response({"object": "list", "data": [base, *adapters]})
            case "/v1/chat/completions" if request.method == "POST":
                self.received += 1
                await self.open.wait()
                message = {"role": "assistant", "content": f"from {self.paths.get(body['model'])}"}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
                return json_response({"id": "c", "object": "chat.completion", "model": body["model"], "created": 1,
                                      "choices": [choice], "usage": usage})  # fmt: skip
            case "/v1/load_lora_adapter":
                if not 400 <= self.load_status < 500:
                    self.paths[body["lora_name"]] = body["lora_path"]
                return Response(b"Success", self.load_status)
            case "/v1/unload_lora_adapter":
                del self.paths[body["lora_name"]]
                return Response(b"Success")
            case "/health" | "/metrics":
                return Response()
        return json_response({"detail": "Not Found"}, 404)


class Pair:
    """Two replicas of llama; the first starts with the adapter team/SQL."""

    def __init__(self) -> None:
        options: dict[str, Any] = {"max_model_len": 4096, "enable_lora": True, "allow_runtime_lora_updating": True}
        self.first = SimulatedEngine(LLAMA, lora_modules=("team/SQL=/adapters/sql",), **options)
        self.second = SimulatedEngine(LLAMA, **options)

    def config(self, redis: RedisServer, **options: str) -> str:
        engines = {"first": ("llama", "any", self.first.url), "second": ("llama", "any", self.second.url)}
        return router_config(redis.url, engines, rest=REST, **options)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def running_pair() -> AsyncIterator[Pair]:
    pair = Pair()
    async with pair.first, pair.second:
        yield pair


@pytest_asyncio.fixture(loop_scope="session")
async def pair(running_pair: Pair) -> Pair:
    """Both run, and have the adapters of their start."""
    for engine in (running_pair.first, running_pair.second):
        if not engine.is_running:
            await engine.start()
        async with httpx.AsyncClient(trust_env=False, timeout=TEST_TIMEOUT) as client:
            listed = (await client.get(f"{engine.url}/v1/models")).json()["data"]
        for model in listed:
            if model["parent"] is not None:
                await at_engine(engine, "unload_lora_adapter", lora_name=model["id"])
    await at_engine(running_pair.first, "load_lora_adapter", lora_name="team/SQL", lora_path="/adapters/sql")
    return running_pair


async def models(router: RouterServer) -> dict[str, Any]:
    return {model["id"]: model for model in (await router.http.get("/v1/models")).json()["data"]}


async def load(router: RouterServer, **fields: Any) -> httpx.Response:
    body = {"lora_name": "team/SQL", "lora_path": "/adapters/sql", **fields}
    return await router.http.post("/v1/load_lora_adapter", json=body, headers=ADMIN)


async def unload(router: RouterServer, **fields: Any) -> httpx.Response:
    return await router.http.post("/v1/unload_lora_adapter", json={"lora_name": "team/SQL", **fields}, headers=ADMIN)


def states(response: httpx.Response) -> dict[str, str]:
    assert response.status_code == 200, response.text
    return {change["engine"]: change["state"] for change in response.json()["engines"]}


async def at_engine(engine: SimulatedEngine, path: str, **body: Any) -> None:
    """A change that no router knows of."""
    async with httpx.AsyncClient(trust_env=False, timeout=TEST_TIMEOUT) as client:
        (await client.post(f"{engine.url}/v1/{path}", json=body)).raise_for_status()


# -- found and routed -------------------------------------------------------------------------------------------------


async def test_an_adapter_is_a_model_that_only_its_engine_gets_under_its_own_id(
    redis_server: RedisServer, make_router: MakeRouter, pair: Pair
) -> None:
    router = await make_router(pair.config(redis_server))
    listed = (await models(router))["team/SQL"]
    assert (listed["parent"], listed["root"], listed["max_model_len"]) == ("llama", SQL, 4096)
    assert (await router.http.get("/v1/models/team/SQL")).json() == listed
    assert "/adapters/sql" not in (await router.http.get("/v1/models")).text
    before = await pair.second.stats()
    for number in range(6):
        response = await router.chat(f"Query {number}?", model="team/SQL")
        assert (response.headers["x-engine"], response.json()["model"]) == ("first", "team/SQL")
    sent = [request["body"] for request in (await pair.first.stats())["requests"][-6:]]
    assert all('"team/SQL"' in body for body in sent)
    assert await pair.second.stats() == before


async def test_an_adapter_and_its_base_model_do_not_share_responses(
    redis_server: RedisServer, make_router: MakeRouter, pair: Pair
) -> None:
    router = await make_router(pair.config(redis_server))
    base, adapted = [await router.chat("The sea?", model=model) for model in ("llama", "team/SQL")]
    assert [response.headers["x-cache"] for response in (base, adapted)] == ["MISS", "MISS"]
    assert adapted.headers["x-cache-key"].startswith(f"rh:1:default:{SQL}:")
    assert base.json()["choices"] != adapted.json()["choices"]
    again = await router.chat("The sea?", model="team/SQL", stream=False)
    assert (again.headers["x-cache"], again.json()) == ("HIT", adapted.json())
    page = await router.metrics()
    assert page[f'llm_cache_requests_total{{model="{SQL}",result="hit",tenant="default"}}'] == 1


async def test_a_replica_that_is_down_or_drained_leaves_the_adapter_to_the_others(
    redis_server: RedisServer, make_router: MakeRouter, pair: Pair
) -> None:
    await at_engine(pair.second, "load_lora_adapter", lora_name="team/SQL", lora_path="/adapters/sql")
    router = await make_router(pair.config(redis_server))
    (await router.http.post("/admin/engines/first/drain", headers=ADMIN)).raise_for_status()
    assert (await router.chat("One?", model="team/SQL")).headers["x-engine"] == "second"
    (await router.http.post("/admin/engines/first/resume", headers=ADMIN)).raise_for_status()
    await pair.second.kill()
    assert (await router.chat("Two?", model="team/SQL")).headers["x-engine"] == "first"


async def test_an_adapter_of_an_engine_that_is_down_is_still_served_from_the_cache_and_has_no_fallback(
    redis_server: RedisServer, make_router: MakeRouter, engines: EngineSet, pair: Pair
) -> None:
    tables = {"first": ("llama", "any", pair.first.url), "mistral": ("mistral", "any", engines.mistral.url)}
    router = await make_router(with_fallback(router_config(redis_server.url, tables)))
    answered = await router.chat("The sea?", model="team/SQL")
    await pair.first.kill()
    assert (await router.chat("The moon?")).headers["x-fallback"] == "mistral"
    refused = await router.chat("The moon?", model="team/SQL")
    assert refused.status_code in (502, 503), refused.text
    hit = await router.chat("The sea?", model="team/SQL")
    assert (hit.headers["x-cache"], hit.json()) == ("HIT", answered.json())


async def test_a_request_for_an_adapter_that_its_engine_has_lost_is_404_and_the_router_forgets_the_adapter(
    redis_server: RedisServer, make_router: MakeRouter, pair: Pair
) -> None:
    router = await make_router(pair.config(redis_server))
    await at_engine(pair.first, "unload_lora_adapter", lora_name="team/SQL")
    assert (await router.chat("The sea?", model="team/SQL")).status_code == 404

    async def is_forgotten() -> bool:
        return "team/SQL" not in await models(router)

    await eventually(is_forgotten)
    response = await router.chat("The sea?", model="team/SQL")
    assert response.json()["error"]["code"] == "model_not_found"


async def test_an_endpoint_that_the_engines_of_an_adapter_lack_is_reported_with_the_name_of_the_adapter(
    redis_server: RedisServer, make_router: MakeRouter, pair: Pair
) -> None:
    router = await make_router(pair.config(redis_server))
    answer = await router.post("/rerank", {"model": "team/SQL", "query": "The sea?", "documents": ["deep"]})
    expected = "The engines of the model `team/SQL` do not serve /rerank."
    assert (answer.status_code, answer.json()["error"]["message"]) == (404, expected)


async def test_an_engine_that_restarts_without_its_adapter_does_not_get_it_any_more(
    redis_server: RedisServer, make_router: MakeRouter, pair: Pair
) -> None:
    await at_engine(pair.second, "load_lora_adapter", lora_name="team/SQL", lora_path="/adapters/sql")
    router = await make_router(pair.config(redis_server))
    await pair.second.kill()
    page = router.application._runtime.catalog

    await eventually(lambda: page.engines["second"].up is False)
    assert [engine.name for engine in page.engines_for(SQL)] == ["first", "second"]
    await pair.second.start()
    await eventually(lambda: [engine.name for engine in page.engines_for(SQL)] == ["first"])


async def test_a_name_of_the_configuration_counts_more_than_an_adapter(
    redis_server: RedisServer, make_router: MakeRouter, pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    text = pair.config(redis_server).replace('"llama-alias"', '"team/SQL"')
    router = await make_router(text)
    assert (await models(router))["team/SQL"]["parent"] is None
    assert (await router.chat("The sea?", model="team/SQL")).json()["model"] == LLAMA
    assert caplog.text.count("'team/SQL': the configuration has a model or an alias of that name") == 1


async def test_a_model_of_the_configuration_can_be_an_adapter(
    redis_server: RedisServer, make_router: MakeRouter, pair: Pair
) -> None:
    text = pair.config(redis_server).replace(f'served_model = "{LLAMA}"', 'served_model = "team/SQL"')
    router = await make_router(text)
    response = await router.chat("The sea?")
    assert (response.headers["x-engine"], response.json()["model"]) == ("first", "team/SQL")
    assert "team/SQL" not in await models(router)


# -- loaded and unloaded ----------------------------------------------------------------------------------------------


async def test_a_load_reaches_all_replicas_and_can_be_repeated(
    redis_server: RedisServer, make_router: MakeRouter, pair: Pair
) -> None:
    router = await make_router(pair.config(redis_server))
    assert states(await load(router)) == {"first": "already_loaded", "second": "loaded"}
    catalog = router.application._runtime.catalog
    assert [engine.name for engine in catalog.engines_for(SQL)] == ["first", "second"]
    assert states(await load(router)) == {"first": "already_loaded", "second": "already_loaded"}
    assert states(await unload(router)) == {"first": "unloaded", "second": "unloaded"}
    response = await unload(router)
    assert (response.status_code, response.json()["error"]["code"]) == (404, "no_such_adapter")
    assert "team/SQL" not in await models(router)


async def test_a_load_and_an_unload_are_in_the_audit_with_what_each_engine_did(
    redis_server: RedisServer, make_router: MakeRouter, pair: Pair
) -> None:
    await redis_server.command("DEL", AUDIT_KEY)
    router = await make_router(pair.config(redis_server))
    assert (await load(router, lora_name="none", lora_path="")).status_code == 400
    await load(router)
    await load(router)
    await load(router, load_inplace=True)
    await unload(router)
    records = [fields for _, fields in await redis_server.command("XRANGE", AUDIT_KEY, "-", "+")]
    assert {(fields["actor"], fields["subject"]) for fields in records} == {
        (f"key {key_id(hash_key(b'admin-key'))}", "team/SQL")
    }
    assert [(fields["action"], json.loads(fields["details"])) for fields in records] == [
        ("adapter_loaded", {"model": "llama", "engines": ["first: already_loaded", "second: loaded"]}),
        ("adapter_loaded", {"model": "llama", "engines": ["first: loaded", "second: loaded"], "in_place": True}),
        ("adapter_unloaded", {"model": "llama", "engines": ["first: unloaded", "second: unloaded"]}),
    ]  # fmt: skip


async def test_other_routers_learn_of_a_load_and_an_unload_at_once(
    redis_server: RedisServer, make_router: MakeRouter, pair: Pair
) -> None:
    router, other = [await make_router(pair.config(redis_server)) for _ in range(2)]
    await load(router, lora_name="new", lora_path="/adapters/new")

    async def knows_new(expected: bool) -> bool:
        return ("new" in await models(other)) is expected

    # Less than the interval at which the lists are read anyway.
    await eventually(lambda: knows_new(True), timeout=8)
    assert (await other.chat("The sea?", model="new")).status_code == 200
    await unload(router, lora_name="new")
    await eventually(lambda: knows_new(False), timeout=8)


async def test_a_partial_failure_names_both_sides_and_a_repetition_completes_it(
    redis_server: RedisServer, make_router: MakeRouter, pair: Pair
) -> None:
    router = await make_router(pair.config(redis_server))
    await pair.second.kill()
    response = await load(router, lora_name="new", lora_path="/adapters/new")
    assert (response.status_code, response.json()["error"]["code"]) == (502, "adapter_change_incomplete")
    message = response.json()["error"]["message"]
    assert "second: the engine cannot be reached" in message
    assert "first (loaded)" in message
    assert (await router.chat("The sea?", model="new")).headers["x-engine"] == "first"
    await pair.second.start()
    assert states(await load(router, lora_name="new", lora_path="/adapters/new")) == {
        "first": "already_loaded", "second": "loaded",
    }  # fmt: skip


async def test_another_path_under_the_same_id_does_not_serve_the_old_responses(
    redis_server: RedisServer, make_router: MakeRouter, pair: Pair
) -> None:
    router = await make_router(pair.config(redis_server))
    old = await router.chat("The sea?", model="team/SQL")
    refused = await load(router, lora_path="/adapters/sql-2")
    assert refused.status_code == 502  # the second engine has loaded it, the first has the old one
    assert "it has the adapter from '/adapters/sql'" in refused.json()["error"]["message"]
    assert states(await load(router, lora_path="/adapters/sql-2", load_inplace=True)) == {
        "first": "loaded", "second": "loaded",
    }  # fmt: skip
    new = await router.chat("The sea?", model="team/SQL")
    assert new.headers["x-cache"] == "MISS"
    assert new.json()["choices"] != old.json()["choices"]


async def test_an_adapter_that_is_replaced_in_place_from_the_same_path_loses_its_entries(
    redis_server: RedisServer, make_router: MakeRouter, pair: Pair
) -> None:
    router = await make_router(pair.config(redis_server))
    for model in ("team/SQL", "llama"):
        await router.chat("The sea?", model=model)
    response = await load(router, load_inplace=True)
    assert states(response) == {"first": "loaded", "second": "loaded"}
    assert response.json()["purged"] == 1
    assert (await router.chat("The sea?", model="team/SQL")).headers["x-cache"] == "MISS"
    assert (await router.chat("The sea?")).headers["x-cache"] == "HIT"


async def test_a_failure_that_may_have_replaced_an_adapter_in_place_purges_and_a_refusal_does_not(
    redis_server: RedisServer, redis: Any, make_router: MakeRouter
) -> None:
    engine = AdapterScript(sql="/adapters/sql")
    async with served(engine) as url:
        router = await make_router(router_config(redis_server.url, {"own": ("llama", "any", url)}, rest=REST))
        await eventually(lambda: answers(router, "sql"))
        for status, result in ((400, "HIT"), (500, "MISS")):
            engine.load_status = status
            await load(router, lora_name="sql", load_inplace=True)
            assert (await router.chat("The sea?", model="sql")).headers["x-cache"] == result


async def test_what_a_replaced_adapter_answers_to_a_request_that_waited_is_not_stored(
    redis_server: RedisServer, redis: Any, make_router: MakeRouter
) -> None:
    engine = AdapterScript(sql="/adapters/sql")
    async with served(engine) as url:
        config = router_config(redis_server.url, {"own": ("llama", "any", url)}, rest=REST)
        router = await make_router(config.replace("served_model", "max_in_flight = 1\nserved_model"))
        await eventually(lambda: answers(router, "sql"))
        engine.open.clear()
        first = asyncio.create_task(router.chat("Occupies the engine"))
        await eventually(lambda: engine.received == 2)
        waiting = asyncio.create_task(router.chat("Which?", model="sql"))
        await eventually(lambda: is_queued(router))
        states(await unload(router, lora_name="sql"))
        states(await load(router, lora_name="sql", lora_path="/adapters/sql-2"))
        engine.open.set()
        assert (await first).status_code == 200
        assert "from /adapters/sql-2" in (await waiting).text
        states(await unload(router, lora_name="sql"))
        states(await load(router, lora_name="sql", lora_path="/adapters/sql"))
        again = await router.chat("Which?", model="sql")
        assert (again.headers["x-cache"], "from /adapters/sql-2" in again.text) == ("MISS", False)


async def is_queued(router: RouterServer) -> bool:
    return (await router.metrics())['llm_requests_queued{model="llama"}'] == 1


async def answers(router: RouterServer, model: str) -> bool:
    return (await router.chat("The sea?", model=model)).status_code == 200


async def test_what_all_engines_refuse_is_the_fault_of_the_request(
    redis_server: RedisServer, make_router: MakeRouter, pair: Pair
) -> None:
    router = await make_router(pair.config(redis_server))
    response = await load(router, lora_name="new", lora_path="/missing/new")
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "adapter_refused")
    assert "No adapter found for /missing/new" in error["message"]
    assert pair.first.url.removeprefix("http://") not in response.text


async def test_an_engine_that_takes_no_adapters_at_run_time_is_told_as_such(
    redis_server: RedisServer, make_router: MakeRouter, engines: EngineSet
) -> None:
    tables = {"chat": ("llama", "any", engines.chat.url)}
    router = await make_router(router_config(redis_server.url, tables, rest=REST))
    response = await load(router)
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"lora_name": "x"}, "lora_path"),
        ({"lora_name": "", "lora_path": "/x"}, "lora_name"),
        ({"lora_name": "a\nb", "lora_path": "/x"}, "lora_name"),
        ({"lora_name": "x" * 257, "lora_path": "/x"}, "lora_name"),
        ({"lora_name": "x", "lora_path": "/x", "model": "nobody"}, "model"),
        ({"lora_name": "x", "lora_path": "/x", "lora_nam": 1}, None),
        ([], None),
    ],
)
async def test_an_invalid_load_reaches_no_engine(
    redis_server: RedisServer, make_router: MakeRouter, pair: Pair, body: Any, param: str | None
) -> None:
    router = await make_router(pair.config(redis_server))
    response = await router.http.post("/v1/load_lora_adapter", json=body, headers=ADMIN)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "invalid_adapter", param)
    assert set(await models(router)) == {"llama", "llama-alias", "team/SQL", "auto"}


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"])
async def test_adapters_are_changed_by_administrators_only(
    redis_server: RedisServer, make_router: MakeRouter, pair: Pair, path: str
) -> None:
    router = await make_router(pair.config(redis_server))
    for headers in ({}, {"authorization": "Bearer wrong"}):
        response = await router.http.post(path, json={"lora_name": "team/SQL"}, headers=headers)
        assert response.status_code == 401
    assert "team/SQL" in await models(router)
