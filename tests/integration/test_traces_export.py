"""Spans on their way to a collector: a real router, OTLP over HTTP, and what happens when the collector fails."""

import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.collector import Collector
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess, http_client
from tests.support.router_server import EngineSet, RouterServer, chat_body, router_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

DROPPED = 'roundhouse_spans_dropped_total{reason="export_failed"}'


def traced_config(
    redis_server: RedisServer, engines: EngineSet, endpoint: str, router: str = "", rest: str = ""
) -> str:
    tracing = f'[tracing]\nendpoint = "{endpoint}"\n{rest}'
    return router_config(redis_server.url, engines.as_config(), rest=tracing, router=router)


@pytest_asyncio.fixture(loop_scope="session")
async def processes(tmp_path: Path) -> AsyncIterator[list[RouterProcess]]:
    """Processes that the test starts; they are killed at its end."""
    started: list[RouterProcess] = []
    yield started
    for process in started:
        process.kill()


async def ask(process: RouterProcess, prompt: str) -> str:
    async with http_client(process.url) as http:
        answer = await http.post("/v1/chat/completions", json=chat_body(prompt))
        assert answer.status_code == 200
        return str(answer.headers["x-cache"])


async def test_a_collector_receives_the_spans_of_a_miss_and_a_hit(
    redis: object, redis_server: RedisServer, engines: EngineSet, processes: list[RouterProcess], tmp_path: Path
) -> None:
    with Collector() as collector:
        settings = 'service_name = "edge"\nheaders = { authorization = "${OTLP_AUTHORIZATION:-Bearer s3cret}" }\n'
        process = RouterProcess(tmp_path, traced_config(redis_server, engines, collector.url, rest=settings))
        processes.append(process)
        process.start()
        await process.wait_until_ready()
        assert [await ask(process, "The sea?"), await ask(process, "The sea?")] == ["MISS", "HIT"]
        process.send_signal(signal.SIGINT)
        await eventually(lambda: not process.is_running)
        assert sorted(span.name for span in collector.spans) == [
            "cache lookup", "cache lookup", "cache write", "chat llama", "chat llama", "chat llama",
        ]  # fmt: skip
        miss, hit = sorted((span for span in collector.spans if span.kind == "server"), key=lambda span: span.start)
        (attempt,) = [span for span in collector.spans if span.kind == "client"]
        assert (attempt.trace_id, attempt.parent_id) == (miss.trace_id, miss.span_id)
        assert [span.attributes["roundhouse.cache.status"] for span in (miss, hit)] == ["MISS", "HIT"]
        assert miss.start <= attempt.start < attempt.end <= miss.end
        assert miss.resource.items() >= {"service.name": "edge"}.items()
        documented = (ROOT / "docs" / "tracing.md").read_text()
        names = {name for span in collector.spans for name in (*span.attributes, *span.resource, span.name)}
        assert {name for name in names if f"`{name}" not in documented and "telemetry.sdk" not in name} == set()
        assert set(collector.paths) == {"/v1/traces"}
        assert {headers["authorization"] for headers in collector.headers} == {"Bearer s3cret"}
    assert "s3cret" not in process.log.read_text()


async def test_every_worker_exports_its_spans(
    redis: object, redis_server: RedisServer, engines: EngineSet, processes: list[RouterProcess], tmp_path: Path
) -> None:
    with Collector() as collector:
        text = traced_config(redis_server, engines, collector.url, router="workers = 2")
        process = RouterProcess(tmp_path, text)
        processes.append(process)
        process.start()
        await process.wait_until_ready()

        async def two_workers_have_answered() -> bool:
            await ask(process, "The sea?")
            return len({span.resource["process.pid"] for span in collector.spans}) == 2

        await eventually(two_workers_have_answered)
        assert len({span.resource["service.instance.id"] for span in collector.spans}) == 2


async def test_a_collector_that_is_down_costs_one_warning_and_no_request(
    redis: object, redis_server: RedisServer, engines: EngineSet, processes: list[RouterProcess], tmp_path: Path
) -> None:
    port = free_port()
    process = RouterProcess(tmp_path, traced_config(redis_server, engines, f"http://127.0.0.1:{port}/otlp"))
    processes.append(process)
    # Without it, a failed export is retried for ten seconds.
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_TIMEOUT": "0.2"}
    process.start(argv=["env", *(f"{name}={value}" for name, value in environment.items() if "OTEL" in name),
                        sys.executable, "-m", "router", "serve", "-c", str(process.config)])  # fmt: skip
    await process.wait_until_ready()

    async def dropped() -> float:
        async with http_client(process.url) as http:
            text = (await http.get("/metrics")).text
        found = re.search(rf"^{re.escape(DROPPED)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    await ask(process, "one")
    before: float = await eventually(dropped)
    await ask(process, "two")

    async def more_are_dropped() -> bool:
        return await dropped() > float(before)

    await eventually(more_are_dropped)
    warnings = [line for line in process.log.read_text().splitlines() if "traces" in line]
    (warning,) = warnings
    assert f"the collector at http://127.0.0.1:{port} does not accept them" in warning
    assert "otlp" not in warning
    with Collector(port) as collector:

        async def spans_arrive() -> bool:
            await ask(process, "three")
            return bool(collector.spans)

        async def success_is_logged() -> bool:
            return "accepts them again" in process.log.read_text()

        await eventually(spans_arrive)
        await eventually(success_is_logged)  # after the collector's answer
    assert set(collector.paths) == {"/otlp/v1/traces"}


@pytest.mark.usefixtures("traced_process")
async def test_a_refusing_collector_does_not_hold_up_the_stop(
    redis: object, redis_server: RedisServer, engines: EngineSet
) -> None:
    with Collector() as collector:
        collector.status = 503
        async with RouterServer(traced_config(redis_server, engines, collector.url)) as router:
            assert (await router.chat("The sea?")).status_code == 200
        assert collector.paths  # it has been tried
