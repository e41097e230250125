"""The watchdog with real processes: supervised engines, Redis, and a router under continuous load."""

import asyncio
import itertools
import json
import re
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio

from engines.announcer import Announcer
from engines.process import ManagedProcess
from engines.spec import EngineSpec
from engines.supervisor import EngineSupervisor
from engines.watchdog.planned_restart import Outcome
from engines.watchdog.scrape import is_healthy
from engines.watchdog.settings import WatchdogSpec
from engines.watchdog.watchdog import Watchdog, WatchedEngine
from router.core.cache.redis_keys import DRAINS_KEY, WATCHDOG_LOG_KEY
from router.shared.announcements import AnnouncedEngine
from tests.support.ports import free_port
from tests.support.redis_process import RedisServer
from tests.support.router_server import LLAMA, MakeRouter, RouterServer, chat_body, router_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

CLIENTS = 8
SETTINGS = WatchdogSpec(interval=0.05, degraded_for=0.3, drain_timeout=30.0)


class Launched:
    """A supervised engine that runs two requests at a time; the others wait in it."""

    def __init__(self, name: str, folder: Path, client: httpx.AsyncClient) -> None:
        port = free_port()
        self.spec = EngineSpec(name=name, model="llama", task="any", url=f"http://127.0.0.1:{port}", served_model=LLAMA)
        options = ["--model", LLAMA, "--port", str(port), "--max-num-seqs", "2", "--tokens-per-second", "200"]
        argv = [sys.executable, "-m", "engines.simulator", *options]
        self.process = ManagedProcess(name, argv, folder / f"{name}.log")
        self.supervisor = EngineSupervisor(
            self.process, partial(is_healthy, client, self.spec.url), ready_timeout=30, poll_interval=0.05,
            report=lambda _: None,
        )  # fmt: skip
        self._client = client

    @property
    def announced(self) -> AnnouncedEngine:
        spec = self.spec
        return AnnouncedEngine(
            name=spec.name, model=spec.model, task="any", url=spec.url, served_model=spec.served_model
        )

    async def slow_down(self) -> None:
        """To an eighth of its speed."""
        faults = {"fault": "tps", "rate": 25}
        (await self._client.post(f"{self.spec.url}/_sim/faults", json=faults)).raise_for_status()


@pytest_asyncio.fixture(loop_scope="session")
async def launched(tmp_path: Path) -> AsyncIterator[list[Launched]]:
    async with httpx.AsyncClient(trust_env=False) as client:
        engines = [Launched(f"e{number}", tmp_path, client) for number in range(2)]
        await asyncio.gather(*(engine.supervisor.start() for engine in engines))
        running = [asyncio.ensure_future(engine.supervisor.run()) for engine in engines]
        yield engines
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.gather(*(engine.process.stop() for engine in engines))


class Load:
    """Clients that send one request after another, half of them for a stream. A request that fails ends the test."""

    def __init__(self, router: RouterServer) -> None:
        self._router = router
        self.ended_at: dict[str, list[float]] = {"e0": [], "e1": []}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for client in range(CLIENTS):
                group.create_task(self._send_requests(client))

    async def _send_requests(self, client: int) -> None:
        for number in itertools.count():
            body = chat_body(f"{client}, {number}", stream=client % 2 == 0, max_tokens=10, ignore_eos=True)
            response = await self._router.http.post("/v1/chat/completions", json=body)
            assert response.status_code == 200, response.text
            assert client % 2 or response.text.endswith("data: [DONE]\n\n")
            self.ended_at[response.headers["x-engine"]].append(time.monotonic())


async def test_a_degraded_engine_is_drained_restarted_and_resumed_and_no_request_fails(
    launched: list[Launched], redis_server: RedisServer, redis: Any, make_router: MakeRouter
) -> None:
    slow, _ = launched
    reports: list[str] = []
    announcer = Announcer.connect(redis_server.url, "test", reports.append)
    await announcer.announce(*(engine.announced for engine in launched))
    table = {engine.spec.name: ("llama", "any", engine.spec.url) for engine in launched}
    router = await make_router(router_config(redis_server.url, table))
    client = httpx.AsyncClient(trust_env=False)
    watchdog = Watchdog(
        SETTINGS, engines=[engine.spec for engine in launched], client=client, redis_url=redis_server.url,
        announcer=announcer, read_gpus=None, report=reports.append, poll_interval=0.05,
    )  # fmt: skip
    watches = [WatchedEngine(e.spec, partial(str, e.spec.url), e.supervisor.restart) for e in launched]
    watching = [asyncio.ensure_future(watchdog.watch(watch)) for watch in watches]
    load = Load(router)
    loading = asyncio.ensure_future(load.run())

    async def events() -> list[str]:
        assert not loading.done(), loading.exception()
        return [entry["event"] for _, entry in await redis.xrange(WATCHDOG_LOG_KEY)]

    await eventually(lambda: all(len(ended) > 100 for ended in load.ended_at.values()))
    assert await events() == [], "nothing is done while they are as fast as ever"
    pid = slow.process.pid
    await slow.slow_down()

    async def was_restarted() -> bool:
        return await events() == ["drain and restart", "restarted"]

    await eventually(was_restarted, timeout=60)
    restarted_at = time.monotonic()
    await eventually(lambda: load.ended_at["e0"][-1] > restarted_at + 0.5)
    assert slow.process.pid != pid
    assert (await redis.hget(DRAINS_KEY, "e0")).startswith("resumed")
    (_, decided), _ = await redis.xrange(WATCHDOG_LOG_KEY)
    assert (decided["engine"], decided["reason"]) == ("e0", "degraded")
    assert float(decided["waiting"]) > 0
    assert "of its baseline" in decided["text"]
    assert reports[0].startswith("e0: watchdog: drain and restart: degraded for ")

    async def is_counted() -> bool:
        metrics = await router.metrics()
        return metrics.get('roundhouse_watchdog_restarts_total{engine="e0",reason="degraded"}') == 1

    await eventually(is_counted)  # the router reads the announcements from time to time
    assert not loading.done()
    for task in (loading, *watching):
        task.cancel()
    await asyncio.gather(loading, *watching, return_exceptions=True)
    await watchdog.aclose()
    await announcer.aclose()
    await client.aclose()


async def test_long_streams_go_on_at_another_engine_when_the_bound_of_a_drain_is_over(
    launched: list[Launched], redis_server: RedisServer, redis: Any, make_router: MakeRouter
) -> None:
    settings = msgspec.structs.replace(SETTINGS, drain_timeout=0.5, continued_models=frozenset({"llama"}))
    announcer = Announcer.connect(redis_server.url, "test", lambda _: None)
    await announcer.announce(*(engine.announced for engine in launched))
    table = {engine.spec.name: ("llama", "any", engine.spec.url) for engine in launched}
    router = await make_router(router_config(redis_server.url, table))
    client = httpx.AsyncClient(trust_env=False)
    faults = [{"fault": "tps", "rate": 60}]  # 400 tokens: far longer than the drain may take
    await asyncio.gather(*(client.post(f"{engine.spec.url}/_sim/faults", json=faults) for engine in launched))

    async def stream(number: int) -> tuple[str, str]:
        body = chat_body(f"long {number}", stream=True, temperature=0, max_tokens=400, ignore_eos=True)
        response = await router.http.post("/v1/chat/completions", json=body, timeout=60)
        return response.headers["x-engine"], response.text

    streams = [asyncio.ensure_future(stream(number)) for number in range(4)]
    first, _ = launched

    async def both_are_busy() -> bool:
        pages = [(await client.get(f"{engine.spec.url}/metrics")).text for engine in launched]
        return all(re.search(r"^vllm:num_requests_running\S* 2\.0$", page, re.MULTILINE) for page in pages)

    await eventually(both_are_busy)
    watchdog = Watchdog(
        settings, engines=[engine.spec for engine in launched], client=client, redis_url=redis_server.url,
        announcer=announcer, read_gpus=None, report=lambda _: None, poll_interval=0.05,
    )  # fmt: skip
    watch = WatchedEngine(first.spec, partial(str, first.spec.url), first.supervisor.restart)
    pid = first.process.pid
    outcome = await watchdog._engine_watch(watch, None)._restart.run(stalled=False)
    assert outcome == Outcome("restarted", "0.5 s after its drain it still had requests, which went on elsewhere")
    assert first.process.pid != pid
    responses = await asyncio.gather(*streams)
    for engine, text in responses:
        assert text.endswith("data: [DONE]\n\n"), (engine, text[-300:])
        events = [json.loads(event[6:]) for event in text.split("\n\n")[:-2]]
        assert sum(bool(event["choices"][0]["delta"].get("content")) for event in events) == 400
        assert len({event["id"] for event in events}) == 1
    assert [engine for engine, _ in responses].count("e0") == 2
    await watchdog.aclose()
    await announcer.aclose()
    await client.aclose()
