"""The content of /metrics after requests."""

import asyncio
import json
import logging
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.telemetry.metric_table import METRICS
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, ScriptedRouter, chat_body
from tests.support.scripted_engine import Request, Response
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame
from tests.support.streaming_client import open_stream
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

EXPECTED = {
    "llm_requests",
    "llm_request_duration_seconds",
    "llm_time_to_first_token_seconds",
    "llm_tokens_per_second",
    "llm_inter_token_latency_seconds",
    "llm_tokens",
    "llm_gpu_seconds",
    "llm_cache_requests",
    "llm_cache_hit_ratio",
    "llm_cache_writes",
    "llm_requests_in_flight",
    "llm_requests_rejected",
    "llm_retries",
    "llm_router_overhead_seconds",
    "vllm_spec_acceptance_rate",
    "vllm_spec_tokens_per_step",
    "vllm_kv_cache_usage",
    "vllm_prefix_cache_hit_rate",
    "roundhouse_engine_up",
    "roundhouse_redis_up",
}
"""The families that have samples after the requests of the first test."""


async def test_the_names_and_labels_are_those_that_dashboards_use(
    router: RouterServer, make_router: MakeRouter, config: str, engines: EngineSet
) -> None:
    await engines.chat.set_faults({"fault": "status", "code": 500, "times": 1})
    for n in range(3):
        await router.chat(f"The sea {n}?", stream=True)
    await router.chat("hello", model="nobody's")
    later = await make_router(config)  # its first probe finds metrics that the engines had not yet reported to `router`
    page = ""
    for one in (router, later):
        answer = await one.http.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        page += answer.text
    collected: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            collected.setdefault(family.name, set()).update(sample.labels.keys() - {"le"})
    assert collected.keys() >= EXPECTED
    # The text format has no kind `info`, so that the parser leaves its suffix.
    labels = {row.name if row.kind == "info" else row.family: set(row.labels) for row in METRICS.values()}
    described = {name: found for name, found in collected.items() if not name.endswith("_created")}
    assert {name: labels.get(name) for name in described} == described


async def test_requests_are_counted_by_cache_status(router: RouterServer) -> None:
    for prompt in ("a", "a", "a", "b"):
        await router.chat(prompt)
    await router.chat("c", model="mistral")

    async def all_written() -> bool:
        return (await router.metrics())['llm_cache_writes_total{result="stored"}'] == 3

    await eventually(all_written)
    metrics = await router.metrics()
    labels = 'model="llama",result="{}",tenant="default"'
    assert metrics[f"llm_cache_requests_total{{{labels.format('hit')}}}"] == 2
    assert metrics[f"llm_cache_requests_total{{{labels.format('miss')}}}"] == 2
    assert metrics['llm_cache_hit_ratio{model="llama"}'] == 0.5
    assert metrics['llm_cache_hit_ratio{model="mistral"}'] == 0.0
    by_status = 'llm_requests_total{engine="llama-chat",model="llama",status="200",task="chat",tenant="default"}'
    assert metrics[by_status] == 4
    assert metrics['llm_request_duration_seconds_count{cache="HIT",model="llama"}'] == 2
    assert metrics['llm_router_overhead_seconds_count{cache="MISS"}'] == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_generated_tokens_and_saved_tokens_are_counted_separately(router: RouterServer, stream: bool) -> None:
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
    answer = await router.chat("The sea?", stream=stream, **options)
    data = answer.content.removesuffix(b"data: [DONE]\n\n").split(b"data: ")[-1]
    usage = json.loads(data)["usage"]
    for _ in range(2):
        assert (await router.chat("The sea?")).headers["x-cache"] == "HIT"
    metrics = await router.metrics()
    tokens = {kind: f'llm_tokens_total{{kind="{kind}",model="llama",tenant="default"}}' for kind in ("prompt", "saved")}
    completion = 'llm_tokens_total{kind="completion",model="llama",tenant="default"}'
    assert metrics[completion] == usage["completion_tokens"]
    assert metrics[tokens["prompt"]] == usage["prompt_tokens"]
    assert metrics[tokens["saved"]] == 2 * usage["completion_tokens"]


async def test_the_time_to_first_token_is_that_of_the_engine(router: RouterServer, engines: EngineSet) -> None:
    await engines.chat.set_faults({"fault": "ttft", "ms": 150})
    await router.chat("The sea?", stream=True)
    metrics = await router.metrics()
    assert metrics['llm_time_to_first_token_seconds_sum{cache="MISS",model="llama"}'] > 0.14
    total = metrics['llm_request_duration_seconds_sum{cache="MISS",model="llama"}']
    assert total - metrics['llm_router_overhead_seconds_sum{cache="MISS"}'] > 0.14


async def test_a_heartbeat_is_no_first_token_and_its_status_is_that_of_the_response(
    scripted: ScriptedRouter, caplog: pytest.LogCaptureFixture
) -> None:
    has_beaten = asyncio.Event()

    async def after_a_heartbeat(request: Request) -> Response:
        if request.method == "POST":
            await has_beaten.wait()
        return Response((ROLE_FRAME, chat_frame(content="Sea", finish="stop") + DONE_FRAME), 200, "text/event-stream")

    router, _ = await scripted(rest='[timeouts]\nheartbeat = "50ms"\n', script=after_a_heartbeat)
    with caplog.at_level(logging.INFO, "roundhouse.access"):
        async with open_stream(router, "The sea?") as answer:
            await answer.read_until(b": heartbeat\n\n")
            await asyncio.sleep(0.15)  # so the first token comes 0.2 s after the request at the earliest
            has_beaten.set()
            assert (await answer.read_to_end()).endswith(DONE_FRAME)
        assert answer.received.startswith(b": heartbeat\n\n")
        assert "x-engine" not in answer.headers
    metrics = await router.metrics()
    assert metrics['llm_time_to_first_token_seconds_sum{cache="MISS",model="llama"}'] > 0.19
    assert metrics['llm_time_to_first_token_seconds_count{cache="MISS",model="llama"}'] == 1
    lines = [record.getMessage() for record in caplog.records if record.name == "roundhouse.access"]
    assert (_fact(lines[0], "status"), _fact(lines[0], "engine")) == ("200", "scripted")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_without_a_token_has_no_time_to_first_token(
    router: RouterServer, engines: EngineSet, stream: bool
) -> None:
    await asyncio.gather(*(engine.set_faults({"fault": "status", "code": 500}) for engine in engines))
    assert (await router.chat("The sea?", stream=stream)).status_code == 502
    metrics = await router.metrics()
    assert metrics['llm_request_duration_seconds_count{cache="MISS",model="llama"}'] == 1
    assert metrics.get('llm_time_to_first_token_seconds_count{cache="MISS",model="llama"}', 0) == 0


async def test_the_metrics_of_engines_are_exported_by_engine(
    make_router: MakeRouter, config: str, engines: EngineSet
) -> None:
    await engines.code.set_faults({"fault": "kv", "usage": 0.25})
    await engines.mistral.set_faults({"fault": "kv", "metric": "missing"})
    router = await make_router(config)
    metrics: dict[str, float] = {}

    async def speculated() -> bool:
        # A check that takes too long leaves an engine without gauges, and requests for others, until the next one.
        await router.chat(f"The sea {len(metrics)}?", headers={"cache-control": "no-store"})
        metrics.update(await router.metrics())
        measured = {f'vllm_{name}{{engine="llama-chat"}}' for name in ("spec_acceptance_rate", "spec_tokens_per_step")}
        return (
            measured <= metrics.keys()
            and metrics.get('vllm_kv_cache_usage{engine="llama-code"}') == 0.25
            and metrics['roundhouse_engine_up{engine="mistral"}'] == 1
        )

    await eventually(speculated)
    assert 'vllm_kv_cache_usage{engine="mistral"}' not in metrics, "unknown is not 0"
    assert 0 < metrics['vllm_spec_acceptance_rate{engine="llama-chat"}'] <= 1
    assert 1 <= metrics['vllm_spec_tokens_per_step{engine="llama-chat"}'] <= 5
    assert 'vllm_spec_acceptance_rate{engine="mistral"}' not in metrics, "it has no draft"
    assert metrics["roundhouse_redis_up"] == 1


async def test_a_gauge_disappears_when_its_value_is_no_longer_known(make_router: MakeRouter, config: str) -> None:
    router = await make_router(config)
    assert 'vllm_kv_cache_usage{engine="mistral"}' in await router.metrics()
    body = chat_body("[[sim:kv metric=missing]]", model="mistral")
    await router.http.post("/v1/chat/completions", json=body)

    async def unknown() -> bool:
        return 'vllm_kv_cache_usage{engine="mistral"}' not in await router.metrics()

    await eventually(unknown)


async def test_values_from_clients_create_no_series(router: RouterServer) -> None:
    async def strange(number: int) -> None:
        headers = {"x-tenant-id": f"t{number}", "x-request-id": f"id{number}", "user-agent": f"agent{number}"}
        for fields in ({"model": f"model-{number}"}, {"user": f"user{number}"}, {f"field{number}": number}):
            await router.chat(f"prompt {number}", headers=headers, **fields)
        await router.post("/v1/chat/completions", {"model": "llama", "messages": [], f"x{number}": 1})
        await router.http.get(f"/path/{number}")

    async def names() -> set[str]:
        measured = ("vllm_", "roundhouse_engine_tokens_per_second", "roundhouse_draft_")  # of engines, at any time
        return {name for name in await router.metrics() if not name.startswith(measured)}

    async def are_stored(count: int) -> bool:
        return (await router.metrics()).get('llm_cache_writes_total{result="stored"}') == count

    await strange(0)
    await eventually(lambda: are_stored(2))
    before = await names()
    for number in range(1, 5):
        await strange(number)
    await eventually(lambda: are_stored(10))
    assert await names() == before


async def test_every_request_has_one_line_in_the_log(router: RouterServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "roundhouse.access"):
        for stream in (False, True):
            await router.chat("The sea?", headers={"x-request-id": "mine"}, stream=stream)
        await router.chat("hello", model="nobody's", headers={"x-request-id": "mine"})
    lines = [record.getMessage() for record in caplog.records if record.name == "roundhouse.access"]
    assert [_fact(line, "cache") for line in lines] == ["MISS", "HIT", "NONE"]
    assert [_fact(line, "status") for line in lines] == ["200", "200", "404"]
    assert {_fact(line, "request") for line in lines} == {"mine"}
    assert "The sea?" not in caplog.text, "prompts are not logged"


def _fact(line: str, name: str) -> Any:
    return dict(word.split("=", 1) for word in line.split(" "))[name]
