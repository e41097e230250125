"""What all endpoints have in common, for each of them: tests/support/endpoint_table.py."""

import asyncio
import json
import logging
from typing import Any, Final

import httpx
import pytest

from router.api.access.auth import hash_key
from router.core.endpoints.table import ENDPOINT_BY_PATH
from tests.support.endpoint_table import ENDPOINT_CASES, STREAMING_CASES, EndpointCase
from tests.support.purge_log import keys_except_log
from tests.support.router_server import LLAMA, router_config
from tests.support.scripted_engine import ScriptedEngine
from tests.support.waiting import eventually
from tests.world.processes import WorldEngine, WorldRouter
from tests.world.scenario import PROBED, World, scenario

PATHS: Final = pytest.mark.parametrize("case", ENDPOINT_CASES, ids=lambda case: case.path)
ENDPOINTS: Final = pytest.mark.parametrize(
    "case",
    [case for case in ENDPOINT_CASES if ENDPOINT_BY_PATH[case.path].alias_of is None],
    ids=lambda case: case.path,
)
"""One path of each API."""
STREAMING: Final = pytest.mark.parametrize("case", STREAMING_CASES, ids=lambda case: case.path)

REJECTED: Final = "llm_requests_rejected_total"
TENANTS: Final = '[auth]\nmode = "keys"\n' + "".join(
    f'[[tenant]]\nname = "{name}"\nkeys = ["{hash_key(name.encode())}"]\n' for name in ("acme", "beta")
)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def start(world: World, case: EndpointCase, **options: Any) -> tuple[WorldRouter, WorldEngine]:
    """A router, and its only engine, which serves this endpoint; `options` are texts of the configuration."""
    engine = await world.engine(**case.engine)
    return await world.router(configuration(world, engine, **options)), engine


def configuration(world: World, *engines: WorldEngine | ScriptedEngine, **options: Any) -> str:
    """The first engine is preferred."""
    tables = {f"engine-{number}": ("llama", "chat" if number == 0 else "any", engine.url)
              for number, engine in enumerate(engines)}  # fmt: skip
    return router_config(world.redis.url, tables, **options)


async def received(*engines: WorldEngine) -> int:
    return sum([(await engine.stats())["received"] for engine in engines])


def test_the_table_has_every_endpoint() -> None:
    assert {case.path for case in ENDPOINT_CASES} == ENDPOINT_BY_PATH.keys()
    assert {case.path for case in STREAMING_CASES} == {
        path for path, endpoint in ENDPOINT_BY_PATH.items() if endpoint.streaming is not None
    }


# -- the cache --------------------------------------------------------------------------------------------------------


@PATHS
@scenario
async def test_a_response_is_generated_once_and_replayed_exactly(world: World, case: EndpointCase) -> None:
    router, engine = await start(world, case)
    miss, hit = [await case.ask(router) for _ in range(2)]
    assert [(answer.status_code, answer.headers["x-cache"]) for answer in (miss, hit)] == [(200, "MISS"), (200, "HIT")]
    assert miss.content == hit.content
    assert miss.headers["x-cache-key"] == hit.headers["x-cache-key"]
    for answer in (miss, hit):
        assert (answer.headers["content-type"], answer.headers["x-engine"]) == ("application/json", "engine-0")
    assert await received(engine) == 1
    assert (await engine.stats())["requests"][-1]["path"] == case.path


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("first", [False, True])
@STREAMING
@scenario
async def test_an_entry_serves_json_and_streams_whichever_form_it_was_stored_from(
    world: World, case: EndpointCase, first: bool, second: bool
) -> None:
    router, engine = await start(world, case)
    text = "  \tif x:\r\n\r\n    naïve  é e\u0301 👩‍👩‍👧 \u200b…\n"
    await engine.set_faults({"fault": "say", "text": text})
    miss, hit = [await case.ask(router, stream=stream) for stream in (first, second)]
    assert [answer.headers["x-cache"] for answer in (miss, hit)] == ["MISS", "HIT"]
    assert miss.headers["x-cache-key"] == hit.headers["x-cache-key"]
    assert case.content(miss) == case.content(hit) == text
    if first == second:
        assert miss.content == hit.content
    for answer, stream in ((miss, first), (hit, second)):
        assert (answer.headers["content-type"] == "application/json") is not stream
        if stream:
            assert case.last_event in answer.content
    assert await received(engine) == 1


@ENDPOINTS
@scenario
async def test_another_input_is_another_entry(world: World, case: EndpointCase) -> None:
    router, _ = await start(world, case)
    first = await case.ask(router)
    other = await case.ask(router, frobnicate=1)
    assert other.headers["x-cache"] == "MISS"
    assert first.headers["x-cache-key"] != other.headers["x-cache-key"]


@ENDPOINTS
@scenario
async def test_a_client_may_bypass_the_cache_or_ask_for_nothing_else(world: World, case: EndpointCase) -> None:
    router, engine = await start(world, case)
    only = await case.ask(router, headers={"cache-control": "only-if-cached"})
    assert only.status_code == 504
    assert await received(engine) == 0
    answers = [await case.ask(router, headers={"cache-control": "no-store"}) for _ in range(2)]
    assert [answer.headers["x-cache"] for answer in answers] == ["BYPASS", "BYPASS"]
    assert await received(engine) == 2
    kept = {key for key in await keys_except_log(world.redis.client) if key.startswith("rh:1:response:")}
    assert await keys_except_log(world.redis.client) == kept


@ENDPOINTS
@scenario
async def test_tenants_share_no_entry(world: World, case: EndpointCase) -> None:
    router, engine = await start(world, case, rest=TENANTS)
    case.error_of(await case.ask(router), 401)
    answers = [await case.ask(router, headers=bearer(key)) for key in ("acme", "beta", "acme", "beta")]
    assert [answer.headers["x-cache"] for answer in answers] == ["MISS", "MISS", "HIT", "HIT"]
    assert [answer.headers["x-cache-key"].split(":")[2] for answer in answers[:2]] == ["acme", "beta"]
    assert await received(engine) == 2


@ENDPOINTS
@scenario
async def test_the_tokens_of_a_generation_are_counted_once(world: World, case: EndpointCase) -> None:
    router, _ = await start(world, case)
    answers = [await case.ask(router) for _ in range(2)]
    counted = {
        kind: (await router.metrics()).get(f'llm_tokens_total{{kind="{kind}",model="llama",tenant="default"}}', 0)
        for kind in ("prompt", "completion")
    }
    usage = answers[0].json().get("usage") if case.is_counted else None
    reported = usage or {}
    prompt = reported.get("prompt_tokens", reported.get("input_tokens", 0))
    completion = reported.get("completion_tokens", reported.get("output_tokens", 0))
    assert counted == {"prompt": prompt, "completion": completion}
    assert (prompt > 0) is case.is_counted
    entry = await eventually(lambda: world.redis.client.hgetall(answers[0].headers["x-cache-key"]))
    assert json.loads(entry["body"]) == answers[0].json()
    assert (int(entry["prompt_tokens"]), int(entry["completion_tokens"])) == (prompt, completion)


# -- coalescing -------------------------------------------------------------------------------------------------------


@ENDPOINTS
@scenario
async def test_equal_requests_at_the_same_time_share_one_generation_over_two_routers(
    world: World, case: EndpointCase
) -> None:
    router, engine = await start(world, case)
    routers = [router, await world.router(configuration(world, engine))]
    await asyncio.sleep(PROBED)  # until it listens, a router does not hear that another one follows
    await engine.set_faults({"fault": "ttft", "ms": 300})
    answers = await asyncio.gather(*(case.ask(routers[number % 2]) for number in range(8)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert [answer.headers["x-cache"] for answer in answers].count("MISS") == 1
    assert await received(engine) == 1


# -- engines that fail ------------------------------------------------------------------------------------------------


@ENDPOINTS
@scenario
async def test_an_engine_that_fails_is_replaced(world: World, case: EndpointCase) -> None:
    first, second = await world.engine(**case.engine), await world.engine(**case.engine)
    router = await world.router(configuration(world, first, second, rest="[breaker]\nfailures = 100"))
    # The last one leaves the engine out for a while.
    faults: list[dict[str, object]] = [
        {"fault": "drop"}, {"fault": "malformed"}, {"fault": "error"}, {"fault": "status", "code": 503},
    ]  # fmt: skip
    for number, fault in enumerate(faults):
        await first.set_faults(fault)
        asked = await received(first)
        answer = await case.ask(router, nonce=number)
        assert (answer.status_code, answer.headers["x-engine"]) == (200, "engine-1"), fault
        assert await received(first) > asked, fault
        assert (await case.ask(router, nonce=number)).headers["x-cache"] == "HIT"
        await first.clear_faults()


@ENDPOINTS
@scenario
async def test_the_error_of_an_engine_is_returned_and_nothing_is_stored(world: World, case: EndpointCase) -> None:
    router, engine = await start(world, case, rest="[breaker]\nfailures = 100")
    for fault in ("malformed", "drop", "error"):
        await engine.set_faults({"fault": fault})
        case.error_of(await case.ask(router, nonce=fault), 502)
        await engine.clear_faults()
        after = await case.ask(router, nonce=fault)
        assert (after.status_code, after.headers["x-cache"]) == (200, "MISS")


@ENDPOINTS
@scenario
async def test_an_engines_refusal_is_passed_on_and_neither_stored_nor_tried_again(
    world: World, case: EndpointCase
) -> None:
    first, second = await world.engine(**case.engine), await world.engine(**case.engine)
    router = await world.router(configuration(world, first, second, rest="[breaker]\nfailures = 1"))
    await first.set_faults({"fault": "status", "code": 422, "message": "No such language"})
    for count in (1, 2):
        assert "No such language" in case.error_of(await case.ask(router), 422)["message"]
        assert await received(first, second) == count
    await first.clear_faults()
    assert ((again := await case.ask(router)).headers["x-cache"], again.headers["x-engine"]) == ("MISS", "engine-0")


@PATHS
@scenario
async def test_all_engines_are_asked_once_for_what_they_do_not_serve_then_one_and_the_client_is_told(
    world: World, case: EndpointCase, caplog: pytest.LogCaptureFixture
) -> None:
    page = b'{"detail":"Not Found"}'  # FastAPI's response to a path without a route
    lacking = [await world.scripted_engine(page, status=404, content_type="application/json") for _ in range(2)]
    router = await world.router(configuration(world, *lacking))
    with caplog.at_level(logging.INFO, "roundhouse"):
        answers = [await case.ask(router, nonce=number) for number in range(5)]
    # The first request asks both, each later one asks one.
    assert sum(len(engine.heads) for engine in lacking) == 2 + 4
    for answer in answers:
        error = case.error_of(answer, 404)
        assert error.get("code", "unsupported_endpoint") == "unsupported_endpoint"  # Anthropic's errors have no code
        assert error["type"] == "not_found_error"
        assert error["message"] == f"The engines of the model `llama` do not serve {case.path}."
    said = [record.getMessage() for record in caplog.records if record.name == "roundhouse.engines"]
    assert sorted(line for line in said if case.path in line) == [
        f"engine engine-{number} does not serve {case.path}" for number in range(2)
    ]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    engines = (await router.http.get("/healthz")).json()["engines"]
    assert {engine["breaker"] for engine in engines.values()} == {"closed"}


# -- what is sent to an engine, and what is refused without one --------------------------------------------------------


@PATHS
@scenario
async def test_an_engine_gets_the_clients_request_with_only_the_model_replaced(
    world: World, case: EndpointCase
) -> None:
    engine = await world.scripted_engine(b"{}", content_type="application/json")
    router = await world.router(configuration(world, engine))
    await case.ask(router, frobnicate=1)
    assert json.loads(engine.bodies[0]) == {**case.body, "frobnicate": 1, "model": LLAMA}
    assert engine.heads[0].startswith(b"POST %b HTTP/1.1\r\n" % case.path.encode())


@PATHS
@scenario
async def test_an_invalid_request_is_refused_in_the_form_of_the_endpoint_and_without_an_engine(
    world: World, case: EndpointCase
) -> None:
    router, engine = await start(world, case, router='max_body = "2KiB"')
    fields, param = case.wrong
    coded = {"content-encoding": "gzip"}
    refusals: list[tuple[httpx.Response, int, str | None, str | None]] = [
        (await case.ask(router, **fields), 400, None, param),
        (await router.post(case.path, b"{"), 400, "invalid_json", None),
        (await router.post(case.path, b"[]"), 400, "invalid_json", None),
        (await case.ask(router, model="gpt-9"), 404, "model_not_found", "model"),
        (await case.ask(router, model=1), 400, None, "model"),
        (await router.http.get(case.path), 405, "method_not_allowed", None),
        (await router.http.post(case.path, content=b"x", headers=coded), 415, "unsupported_encoding", None),
        (await case.ask(router, padding="x" * 2048), 413, "body_too_large", None),
    ]
    for answer, status, code, name in refusals:
        error = case.error_of(answer, status)
        kind = "not_found_error" if status == 404 else "invalid_request_error"
        if case.has_anthropics_errors:
            kind = "request_too_large" if status == 413 else kind
            assert error["type"] == kind
            assert name is None or name in error["message"]
        else:
            assert (error["type"], error["code"], error["param"]) == (kind, code, name)
    assert refusals[5][0].headers["allow"] == "OPTIONS, POST"
    assert await received(engine) == 0
    metrics = await router.metrics()
    assert {name: count for name, count in metrics.items() if name.startswith(REJECTED)} == {
        f'{REJECTED}{{reason="{reason}",tenant="default"}}': count
        for reason, count in {
            "invalid_request_error": 2, "invalid_json": 2, "model_not_found": 1, "unsupported_encoding": 1,
            "body_too_large": 1,
        }.items()
    }  # fmt: skip


@ENDPOINTS
@scenario
async def test_a_request_without_a_model_is_for_the_only_one_and_refused_where_there_are_several(
    world: World, case: EndpointCase
) -> None:
    router, engine = await start(world, case)
    nameless = {name: value for name, value in case.body.items() if name != "model"}
    answers = [await router.post(case.path, body) for body in (case.body, nameless, {**nameless, "model": None})]
    assert [answer.headers["x-cache"] for answer in answers] == ["MISS", "HIT", "HIT"]
    table = {"one": ("llama", "any", engine.url), "other": ("mistral", "any", engine.url)}
    several = await world.router(router_config(world.redis.url, table))
    for body in (nameless, {**nameless, "model": None}, {**nameless, "model": ""}):
        error = case.error_of(await several.post(case.path, body), 400)
        assert "`model` is required" in error["message"]
        if not case.has_anthropics_errors:
            assert (error["param"], error["code"]) == ("model", "model_required")
