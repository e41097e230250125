"""The spans of requests: what a miss, a hit, a follower, a retry, a failure and a disconnect look like."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from router.api.access.auth import hash_key
from router.settings import parse
from tests.integration.test_wire import last_request
from tests.support.recorded_spans import TRACING, RecordedSpans
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, RouterServer, router_config, with_fallback
from tests.support.scripted_engine import ScriptedEngine
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame
from tests.support.streaming_client import open_stream
from tests.support.toy_model import ToyModel
from tests.support.toy_script import Break, ToyScript, toy_engines
from tests.support.trace_fixtures import TracedRouter
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

TRACE_ID, CLIENT_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE_ID}-{CLIENT_SPAN}-01"
NOT_SAMPLED = f"00-{TRACE_ID}-{CLIENT_SPAN}-00"
ANSWER = (ROLE_FRAME + chat_frame(content="one "), chat_frame(content="two", finish="stop") + DONE_FRAME)


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    assert span.attributes is not None
    return span.attributes


def ids(span: ReadableSpan) -> tuple[str, str]:
    assert span.context is not None
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"


def parent_of(span: ReadableSpan) -> tuple[str, str] | None:
    return (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") if span.parent is not None else None


def traceparent_at(engine: ScriptedEngine, number: int = 0) -> bytes:
    return engine.heads[number].partition(b"traceparent: ")[2].partition(b"\r\n")[0]


@pytest_asyncio.fixture(loop_scope="session")
async def paced() -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine(*ANSWER, paced=True)
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture
def paced_text(redis_server: RedisServer, paced: ScriptedEngine) -> str:
    return router_config(redis_server.url, {"scripted": ("llama", "any", paced.url)})


@pytest.fixture
def two_models(redis_server: RedisServer, engines: EngineSet) -> str:
    table = {"llama": ("llama", "any", engines.chat.url), "mistral": ("mistral", "any", engines.mistral.url)}
    return with_fallback(router_config(redis_server.url, table, rest="[breaker]\nfailures = 1000\n"))


# -- one request ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_miss_has_spans_for_the_lookup_the_engine_and_the_write(
    traced: TracedRouter, config: str, engines: EngineSet, stream: bool
) -> None:
    router, spans = await traced(config)
    answer = await router.chat("The sea?", stream=stream, model="llama-alias")
    (request,), (attempt,) = await spans.requests(1), await spans.attempts(1)
    (lookup,), (write,) = await spans.named("cache lookup"), await spans.named("cache write")
    assert (request.name, attempt.name, request.parent) == ("chat llama", "chat llama", None)
    assert {parent_of(span) for span in (attempt, lookup, write)} == {ids(request)}
    times: list[Any] = [
        request.start_time, lookup.start_time, lookup.end_time, attempt.start_time, attempt.end_time, write.start_time,
        write.end_time,
    ]  # fmt: skip
    assert times == sorted(times)
    assert attributes(request).items() >= {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "vllm", "gen_ai.request.model": "llama",
        "gen_ai.response.model": "llama", "http.request.method": "POST", "http.route": "/v1/chat/completions",
        "http.response.status_code": 200, "roundhouse.cache.status": "MISS", "roundhouse.cache.reason": "new",
        "roundhouse.task": "chat", "roundhouse.tenant": "default", "roundhouse.engine": "llama-chat",
        "roundhouse.request_id": answer.headers["x-request-id"],
    }.items()  # fmt: skip
    assert attributes(request)["gen_ai.usage.output_tokens"] > 0
    assert ("gen_ai.response.time_to_first_chunk" in attributes(request)) is stream
    assert attributes(lookup) == {
        "roundhouse.cache.result": "miss", "roundhouse.cache.reason": "new",
        "roundhouse.cache.key": answer.headers["x-cache-key"],
    }  # fmt: skip
    assert attributes(write) == {"roundhouse.cache.write": "stored"}
    assert attributes(attempt).items() >= {
        "server.address": "127.0.0.1", "server.port": engines.chat.port, "http.response.status_code": 200,
        "roundhouse.engine": "llama-chat", "gen_ai.request.model": "llama",
    }.items()  # fmt: skip
    assert {event.name for event in attempt.events} >= {"first token"}
    assert not any("usage" in name for name in attributes(attempt))  # else a sum over spans counts tokens twice
    assert {span.status.status_code for span in spans.all} == {StatusCode.UNSET}


async def test_a_hit_has_spans_for_the_request_and_the_lookup_alone(traced: TracedRouter, config: str) -> None:
    router, spans = await traced(config)
    await router.chat("The sea?")
    await spans.named("cache write")
    spans.exporter.clear()
    assert (await router.chat("The sea?")).headers["x-cache"] == "HIT"
    (request,), (lookup,) = await spans.requests(1), await spans.named("cache lookup")
    assert len(spans.all) == 2
    assert attributes(request)["roundhouse.cache.status"] == "HIT"
    assert attributes(request)["gen_ai.usage.output_tokens"] > 0
    assert attributes(lookup)["roundhouse.cache.result"] == "hit"

    async def is_local() -> bool:  # once the router receives invalidations
        await router.chat("The sea?")
        return any(attributes(span).get("roundhouse.cache.local") is True for span in spans.all)

    await eventually(is_local)


async def test_the_spans_hold_no_prompt_no_response_and_no_key_of_a_client(
    traced: TracedRouter, redis_server: RedisServer, engines: EngineSet
) -> None:
    rest = f'[auth]\nmode = "keys"\n[[tenant]]\nname = "acme"\nkeys = ["{hash_key(b"sk-secret")}"]\n'
    router, spans = await traced(router_config(redis_server.url, engines.as_config(), rest=rest))
    answer = await router.chat("Zanzibar", headers={"authorization": "Bearer sk-secret", "x-session-id": "session-7"})
    response = answer.json()["choices"][0]["message"]["content"]
    await spans.requests(1)
    await spans.named("cache write")
    written = "".join(span.to_json() for span in spans.all)
    assert '"acme"' in written
    assert not any(text in written for text in ("Zanzibar", "sk-secret", hash_key(b"sk-secret"), "session-7", response))


async def test_an_invalid_request_has_a_span_with_its_status_and_no_failure(traced: TracedRouter, config: str) -> None:
    router, spans = await traced(config)
    await router.http.post("/v1/completions", content=b"{")
    (request,) = await spans.requests(1)
    assert (request.name, request.status.status_code) == ("text_completion", StatusCode.UNSET)
    assert attributes(request)["http.response.status_code"] == 400
    assert attributes(request)["error.type"]
    assert attributes(request)["roundhouse.outcome"] == "refused"


async def test_a_bypass_looks_nothing_up(traced: TracedRouter, config: str) -> None:
    router, spans = await traced(config)
    await router.chat("The sea?", headers={"cache-control": "no-store"})
    (request,) = await spans.requests(1)
    await spans.attempts(1)
    assert attributes(request)["roundhouse.cache.status"] == "BYPASS"
    assert attributes(request)["roundhouse.cache.reason"] == "no-store"
    assert {span.kind for span in spans.all} == {SpanKind.SERVER, SpanKind.CLIENT}


# -- the context of the trace -----------------------------------------------------------------------------------------


async def test_a_request_belongs_to_the_clients_trace_and_the_engine_gets_the_span_of_its_attempt(
    traced: TracedRouter, config: str, engines: EngineSet
) -> None:
    router, spans = await traced(config)
    await router.chat("The sea?", headers={"traceparent": SAMPLED, "tracestate": "a=1,b=2"})
    (request,), (attempt,) = await spans.requests(1), await spans.attempts(1)
    assert parent_of(request) == (TRACE_ID, CLIENT_SPAN)
    assert request.context is not None
    assert dict(request.context.trace_state) == {"a": "1", "b": "2"}
    headers = (await last_request(engines.chat))["headers"]
    assert headers["traceparent"] == "00-{}-{}-01".format(*ids(attempt))
    assert headers["tracestate"] == "a=1,b=2"


async def test_a_request_that_its_client_does_not_trace_is_not_traced_here(
    traced: TracedRouter, config: str, engines: EngineSet
) -> None:
    router, spans = await traced(config)
    await router.chat("The sea?", headers={"traceparent": NOT_SAMPLED})
    assert (await last_request(engines.chat))["headers"]["traceparent"] == NOT_SAMPLED
    await router.chat("The lake?", headers={"traceparent": SAMPLED})
    (request,) = await spans.requests(1)
    assert ids(request)[0] == TRACE_ID
    assert parent_of(request) == (TRACE_ID, CLIENT_SPAN)


async def test_without_a_sample_only_the_clients_traces_are_traced_and_engines_know_it(
    traced: TracedRouter, config: str, engines: EngineSet
) -> None:
    router, spans = await traced(config, "sample = 0\n")
    await router.chat("The sea?")
    assert (await last_request(engines.chat))["headers"]["traceparent"].endswith("-00")
    await router.chat("The lake?", headers={"traceparent": SAMPLED})
    (request,) = await spans.requests(1)
    assert ids(request)[0] == TRACE_ID


async def test_without_tracing_the_clients_context_reaches_the_engine_unchanged(
    router: RouterServer, engines: EngineSet
) -> None:
    await router.chat("The sea?", headers={"traceparent": SAMPLED, "tracestate": "a=1"})
    headers = (await last_request(engines.chat))["headers"]
    assert (headers["traceparent"], headers["tracestate"]) == (SAMPLED, "a=1")
    await router.chat("The lake?", headers={"tracestate": "a=1"})
    headers = (await last_request(engines.chat))["headers"]
    assert not {"traceparent", "tracestate"} & set(headers)


# -- several engines, several requests --------------------------------------------------------------------------------


async def test_each_attempt_has_a_span_and_an_id_that_its_engine_gets(
    traced: TracedRouter, redis_server: RedisServer, engines: EngineSet
) -> None:
    rest = "[breaker]\nfailures = 1000\n"
    router, spans = await traced(
        router_config(redis_server.url, {"one": ("llama", "any", engines.chat.url)}, rest=rest)
    )
    await engines.chat.set_faults({"fault": "status", "code": 500, "times": 1})
    assert (await router.chat("The sea?")).status_code == 200
    first, second = await spans.attempts(2)
    assert first.status.status_code is StatusCode.ERROR
    assert attributes(first)["error.type"] == "status-500"
    assert attributes(first)["http.response.status_code"] == 500
    assert attributes(second)["http.request.resend_count"] == 1
    assert "error.type" not in attributes(second)
    assert (await last_request(engines.chat))["headers"]["traceparent"] == "00-{}-{}-01".format(*ids(second))
    (request,) = await spans.requests(1)
    assert request.status.status_code is StatusCode.UNSET


async def test_a_fallback_is_an_attempt_for_another_model(
    traced: TracedRouter, engines: EngineSet, two_models: str
) -> None:
    router, spans = await traced(two_models)
    await engines.chat.set_faults({"fault": "status", "code": 501})
    assert (await router.chat("The sea?")).headers["x-fallback"] == "mistral"
    (request,), (first, second) = await spans.requests(1), await spans.attempts(2)
    assert (first.name, second.name, request.name) == ("chat llama", "chat mistral", "chat llama")
    assert attributes(request)["gen_ai.response.model"] == "mistral"
    assert attributes(second)["roundhouse.cache.not_stored"] == "fallback"
    assert not [span for span in spans.all if span.name == "cache write"]


async def test_a_failure_of_all_engines_is_one_of_the_request(
    traced: TracedRouter, engines: EngineSet, redis_server: RedisServer
) -> None:
    table = {"one": ("llama", "any", engines.chat.url)}
    router, spans = await traced(router_config(redis_server.url, table, rest="[breaker]\nfailures = 1000\n"))
    await engines.chat.set_faults({"fault": "status", "code": 500})
    assert (await router.chat("The sea?")).status_code == 502
    (request,) = await spans.requests(1)
    assert request.status.status_code is StatusCode.ERROR
    assert attributes(request)["http.response.status_code"] == 502
    assert attributes(request)["error.type"] == "engine_failed"
    attempts = [span for span in spans.all if span.kind is SpanKind.CLIENT]
    assert len(attempts) > 1
    assert {span.status.status_code for span in attempts} == {StatusCode.ERROR}


async def test_a_stream_that_breaks_off_is_a_failure_after_a_200(
    traced: TracedRouter, engines: EngineSet, redis_server: RedisServer
) -> None:
    table = {"one": ("llama", "any", engines.chat.url)}
    router, spans = await traced(router_config(redis_server.url, table))
    await engines.chat.set_faults({"fault": "drop", "after": 3})
    await router.chat("The sea?", stream=True)
    (request,), (attempt,) = await spans.requests(1), await spans.attempts(1)
    assert {request.status.status_code, attempt.status.status_code} == {StatusCode.ERROR}
    assert attributes(request)["http.response.status_code"] == 200
    assert attributes(request)["roundhouse.outcome"] == "failed"
    assert attributes(attempt)["error.type"] == attributes(request)["error.type"]
    assert attributes(attempt)["roundhouse.cache.not_stored"]


async def test_a_client_that_disconnects_ends_its_span_and_cancels_the_attempt(
    traced: TracedRouter, paced: ScriptedEngine, paced_text: str
) -> None:
    router, spans = await traced(paced_text)
    async with open_stream(router, "x") as stream:
        await stream.read_until_text("one ")
    (request,) = await spans.requests(1)
    assert attributes(request)["roundhouse.outcome"] == "left"
    assert request.status.status_code is StatusCode.UNSET
    (attempt,) = await spans.attempts(1)
    assert attributes(attempt)["error.type"] == "cancelled"


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_follower_links_to_the_request_that_started_the_generation(
    traced: TracedRouter, paced: ScriptedEngine, paced_text: str, processes: int
) -> None:
    first, spans = await traced(paced_text)
    second = first if processes == 1 else (await traced(paced_text, spans=spans))[0]
    async with open_stream(first, "x") as leading:
        await leading.read_until_text("one ")
        async with open_stream(second, "x") as following:
            await following.read_until_text("one ")
            assert following.headers["x-cache"] == "COALESCED"
            paced.chunk_permits.release()
            await following.read_to_end()
        await leading.read_to_end()
    leader, follower = await spans.requests(2)
    assert not leader.links
    (link,) = follower.links
    assert (f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") == ids(leader)
    assert attributes(follower)["roundhouse.cache.status"] == "COALESCED"
    (attempt,) = await spans.attempts(1)
    assert parent_of(attempt) == ids(leader)
    assert traceparent_at(paced).decode() == "00-{}-{}-01".format(*ids(attempt))


async def test_the_wait_for_a_slot_is_a_span(traced: TracedRouter, paced: ScriptedEngine, paced_text: str) -> None:
    text = paced_text.replace("served_model", "max_in_flight = 1\nserved_model")
    router, spans = await traced(text)
    first = asyncio.ensure_future(router.chat("first", stream=True))
    await eventually(lambda: len(paced.heads) == 1)
    second = asyncio.ensure_future(router.chat("second", stream=True))

    async def is_queued() -> bool:
        return (await router.metrics())['llm_requests_queued{model="llama"}'] == 1

    await eventually(is_queued)
    paced.chunk_permits.release()
    paced.chunk_permits.release()
    await asyncio.gather(first, second)
    (wait,), requests = await spans.named("queue"), await spans.requests(2)
    assert parent_of(wait) == ids(requests[1])
    (_, attempt) = await spans.attempts(2)
    assert wait.end_time is not None
    assert attempt.start_time is not None
    assert wait.end_time <= attempt.start_time


# -- the configuration ------------------------------------------------------------------------------------------------


async def test_tracing_begins_ends_and_stays_with_reloads(traced: TracedRouter, config: str) -> None:
    router, spans = await traced(config)
    await router.application.reload(parse(f"{config}\n{TRACING}", {}))
    await router.chat("one")
    await spans.requests(1)
    await router.application.reload(parse(config, {}))
    assert (await router.chat("two")).status_code == 200
    await eventually(lambda: spans.exporter._stopped)
    assert len([span for span in spans.all if span.kind is SpanKind.SERVER]) == 1
    again = RecordedSpans()
    router.application._process_state.open_exporter = lambda _: again.exporter
    await router.application.reload(parse(f"{config}\n{TRACING}", {}))
    await router.chat("three")
    await again.requests(1)


# -- streams that an engine breaks off --------------------------------------------------------------------------------


@pytest.mark.parametrize("lacks_only_its_end", [False, True])
async def test_the_attempt_of_a_broken_stream_has_failed_and_has_the_first_token(
    traced: TracedRouter, redis_server: RedisServer, lacks_only_its_end: bool
) -> None:
    toy = ToyModel("The sea is wide, and the birds fly over it.", [3, 1, 2])
    after = -len(DONE_FRAME) if lacks_only_its_end else 1500
    broken, other = ToyScript(toy, Break(after, "close"), name="a"), ToyScript(toy, name="b")
    async with toy_engines(broken, other) as both:
        router, spans = await traced(router_config(redis_server.url, both))
        answer = await router.chat("x", stream=True, temperature=0)
        assert answer.content.endswith(DONE_FRAME)
        attempts = await spans.attempts(1 if lacks_only_its_end else 2)
    names = [{event.name for event in attempt.events} - {"connected"} for attempt in attempts]
    assert names == [{"first token"}, {"continued"}][: len(attempts)]
    assert [attempt.status.status_code for attempt in attempts] == [StatusCode.ERROR, StatusCode.UNSET][: len(attempts)]
    assert attributes(attempts[0])["error.type"] == "broken-off"
