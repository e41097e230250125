"""The watchdog of a launcher, while a router sends requests to its engines."""

import asyncio
import itertools
import json
import time
from functools import partial
from pathlib import Path

from engines.watchdog.planned_restart import Outcome
from engines.watchdog.watchdog import WatchedEngine
from router.core.cache.redis_keys import DRAINS_KEY, WATCHDOG_LOG_KEY
from tests.support.router_server import LLAMA, chat_body, router_config
from tests.support.waiting import eventually
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario

CLIENTS = 8


def config(world: World, watchdog: str) -> str:
    """The engines e0 and e1, which run two requests at a time; the others wait in them."""
    table = {name: ("llama", "any", f"http://{name}:8000") for name in ("e0", "e1")}
    launch = f'[engine.launch]\ntarget = "{LLAMA}"\nmax_num_seqs = 2\n'
    text = router_config(world.redis.url, table).replace("[[engine]]", f"{launch}\n[[engine]]")
    # Each launch belongs to the engine before it.
    return text.replace(launch, "", 1) + f"\n{launch}\n[watchdog]\n{watchdog}\n"


class Load:
    """Clients that send one request after another, half of them for a stream. A request that fails ends the test."""

    def __init__(self, router: WorldRouter) -> None:
        self._router = router
        self.ended_at: dict[str, list[float]] = {"e0": [], "e1": []}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for client in range(CLIENTS):
                group.create_task(self._send_requests(client))

    async def _send_requests(self, client: int) -> None:
        for number in itertools.count():
            body = chat_body(f"{client}, {number}", stream=client % 2 == 0, max_tokens=6, ignore_eos=True)
            response = await self._router.http.post("/v1/chat/completions", json=body)
            assert response.status_code == 200, response.text
            assert client % 2 or response.text.endswith("data: [DONE]\n\n")
            self.ended_at[response.headers["x-engine"]].append(time.monotonic())


@scenario
async def test_a_degraded_engine_is_drained_restarted_and_resumed_and_no_request_fails(
    world: World, tmp_path: Path
) -> None:
    text = config(world, 'interval = "1s"\ndegraded_for = "3s"')
    launcher, router = await world.launcher(text, tmp_path), await world.router(text)
    redis, slow = world.redis.client, launcher.running["e0"]
    load = Load(router)
    loading = asyncio.create_task(load.run())

    async def events() -> list[str]:
        assert not loading.done(), loading.exception()
        return [entry["event"] for _, entry in await redis.xrange(WATCHDOG_LOG_KEY)]

    await eventually(lambda: all(len(ended) > 40 for ended in load.ended_at.values()))
    assert await events() == [], "nothing is done while they are as fast as ever"
    await slow.set_faults({"fault": "tps", "rate": 10})  # an eighth of its speed

    async def was_restarted() -> bool:
        return await events() == ["drain and restart", "restarted"]

    await eventually(was_restarted, timeout=60)
    restarted_at = time.monotonic()
    await eventually(lambda: load.ended_at["e0"][-1] > restarted_at + 0.5)
    assert launcher.running["e0"] is not slow
    assert (await redis.hget(DRAINS_KEY, "e0")).startswith("resumed")
    (_, decided), _ = await redis.xrange(WATCHDOG_LOG_KEY)
    assert (decided["engine"], decided["reason"]) == ("e0", "degraded")
    assert float(decided["waiting"]) > 0
    assert "of its baseline" in decided["text"]
    assert any(line.startswith("e0: watchdog: drain and restart: degraded for ") for line in launcher.output)

    async def is_counted() -> bool:
        metrics = await router.metrics()
        return metrics.get('roundhouse_watchdog_restarts_total{engine="e0",reason="degraded"}') == 1

    await eventually(is_counted)  # the router reads the announcements from time to time
    assert not loading.done()
    loading.cancel()
    await asyncio.wait([loading])


@scenario
async def test_long_streams_go_on_at_another_engine_when_the_bound_of_a_drain_is_over(
    world: World, tmp_path: Path
) -> None:
    text = config(world, 'enabled = false\ndrain_timeout = "1s"')
    launcher, router = await world.launcher(text, tmp_path), await world.router(text)

    async def stream(number: int) -> tuple[str, str]:
        # 400 tokens: far longer than the drain may take.
        body = chat_body(f"long {number}", stream=True, temperature=0, max_tokens=400, ignore_eos=True)
        response = await router.http.post("/v1/chat/completions", json=body, timeout=60)
        return response.headers["x-engine"], response.text

    streams = [asyncio.create_task(stream(number)) for number in range(4)]
    first = launcher.running["e0"]
    for engine in launcher.running.values():
        await engine.stats(in_flight=2)
    running = launcher.fleet.engines["e0"]
    watched = WatchedEngine(running.spec, partial(str, running.spec.url), running.supervisor.restart)
    restart = launcher.fleet._watchdog._engine_watch(watched, None)._restart
    outcome = await launcher.run_inside(restart.run(stalled=False))
    assert outcome == Outcome("restarted", "1 s after its drain it still had requests, which went on elsewhere")
    assert launcher.running["e0"] is not first
    responses = await asyncio.gather(*streams)
    for engine_name, received in responses:
        assert received.endswith("data: [DONE]\n\n"), (engine_name, received[-300:])
        events = [json.loads(event[6:]) for event in received.split("\n\n")[:-2]]
        assert sum(bool(event["choices"][0]["delta"].get("content")) for event in events) == 400
        assert len({event["id"] for event in events}) == 1
    assert [engine_name for engine_name, _ in responses].count("e0") == 2
