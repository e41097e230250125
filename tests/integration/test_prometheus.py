"""A real Prometheus scrapes a router with two workers, and has what was sent."""

import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from router.core.endpoints.chat import CHAT
from router.core.types import CacheStatus
from router.flow.exchange import Exchange
from router.telemetry.telemetry import Telemetry
from tests.support.prometheus_process import PrometheusServer, needs_prometheus
from tests.support.router_process import RouterProcess, http_client
from tests.support.router_server import RouterServer, chat_body
from tests.support.waiting import eventually

pytestmark = [pytest.mark.asyncio(loop_scope="session"), needs_prometheus]


@pytest_asyncio.fixture(loop_scope="session")
async def served(tmp_path: Path, redis: Any, config: str) -> AsyncIterator[RouterProcess]:
    served = RouterProcess(tmp_path, config.replace("[router]", "[router]\nworkers = 2"))
    served.start()
    try:
        await served.wait_until_ready()
        yield served
    finally:
        served.kill()


async def test_its_counters_are_what_was_sent(served: RouterProcess, redis: Any, tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    async with PrometheusServer(tmp_path, [served.url]) as prometheus:
        for number in range(24):
            async with http_client(served.url) as http:  # a new connection each, which either worker accepts
                body = chat_body(f"Question {number % 8}", model=("llama", "nobody's")[number % 12 == 11])
                answer = await http.post("/v1/chat/completions", json=body)
                seen[answer.headers.get("x-cache", "NONE")] += 1
                if answer.status_code == 200:
                    tokens[answer.headers["x-cache"]] += answer.json()["usage"]["completion_tokens"]
                    # A worker stores it while its client already has it.
                    await eventually(partial(redis.exists, answer.headers["x-cache-key"]))
        assert seen == {"MISS": 8, "HIT": 14, "NONE": 2}

        expected = {
            'sum(llm_requests_total{status="200"})': 22,
            'sum(llm_requests_total{status="404"})': 2,
            'sum(llm_cache_requests_total{result="hit"})': 14,
            'sum(llm_cache_requests_total{result="miss"})': 8,
            "sum(llm_cache_writes_total)": 8,
            'sum(llm_request_duration_seconds_count{cache="HIT"})': 14,
            'sum(llm_request_duration_seconds_bucket{le="+Inf"})': 24,
            'sum(llm_tokens_total{kind="completion"})': tokens["MISS"],
            'sum(llm_tokens_total{kind="saved"})': tokens["HIT"],
            'llm_cache_hit_ratio{model="llama"}': 14 / 22,
            "count(roundhouse_engine_up == 1)": 3,
            "roundhouse_redis_up": 1,
            'count(llm_gpu_seconds_total{kind="spent"} > 0)': 1,
            'count(llm_gpu_seconds_total{kind="saved"} > 0)': 1,
        }

        async def has_all() -> bool:
            return {promql: await prometheus.value(promql) for promql in expected} == expected

        await eventually(has_all)


async def test_it_reads_every_metric_with_its_type(served: RouterProcess, tmp_path: Path) -> None:
    page = Telemetry(log_format="text").render(as_openmetrics=True).decode()
    expected = dict(re.findall(r"^# TYPE (\w+) (\w+)$", page, re.MULTILINE))
    assert len(expected) > 25
    async with PrometheusServer(tmp_path, [served.url]) as prometheus:
        async with http_client(served.url) as http:
            await http.post("/v1/chat/completions", json=chat_body("The sea?"))
        await prometheus.wait_for_scrape()
        found = await prometheus.metric_types()
        present = expected.keys() & found.keys()  # of several workers, a family without samples is not there
        assert {name: found[name] for name in present} == {name: expected[name] for name in present}
        assert len(present) > 20


async def test_it_has_the_exemplars(router: RouterServer, tmp_path: Path) -> None:
    trace_id, now = f"{0xABC:032x}", time.perf_counter()
    exchange = Exchange(endpoint=CHAT, request_id="r", started_at=now - 0.2, trace_id=trace_id)
    exchange.model, exchange.engine, exchange.task = "llama", "llama-chat", "chat"
    exchange.cache_status, exchange.status = CacheStatus.HIT, 200
    async with PrometheusServer(tmp_path, [router.url]) as prometheus:
        router.application._process_state.telemetry.record(exchange, now)
        for metric in ("llm_request_duration_seconds", "llm_time_to_first_token_seconds"):
            (exemplar,) = await eventually(partial(prometheus.exemplars, f'{metric}_bucket{{cache="HIT"}}'))
            assert exemplar["labels"] == {"trace_id": trace_id}
            assert float(exemplar["value"]) == pytest.approx(0.2)
