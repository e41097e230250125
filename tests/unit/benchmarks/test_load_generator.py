"""The open loop, on real sockets."""

import asyncio
import time
from typing import Any

import pytest

from benchmarks.arrivals import Mix, Phase
from benchmarks.chat_connection import Response
from benchmarks.load_generator import LoadGenerator, LoadPlan
from benchmarks.load_results import LoadResults
from tests.support.ports import free_port
from tests.support.scripted_engine import ScriptedEngine
from tests.support.waiting import eventually

EVENT, DONE = b'data: {"choices":[]}\n\n', b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"no","type":"server_error","code":"engine_failed"}}\n\n'


async def send(engine: ScriptedEngine, phases: list[Phase], **options: Any) -> LoadResults:
    await engine.start()
    try:
        on_response = options.pop("on_response", None)
        plan = LoadPlan(engine.url, "llama", phases, **{"poisson": False, **options})
        return await LoadGenerator(plan, on_response).run()
    finally:
        await engine.stop()


async def test_all_requests_of_the_phases_are_sent_and_measured() -> None:
    engine = ScriptedEngine(EVENT, DONE)
    results = await send(engine, [Phase(100, 0.1), Phase(200, 0.1)])
    assert (results.sent, results.completed, results.failed, len(engine.bodies)) == (30, 30, 0, 30)
    times = results.times["(none)"]
    assert (times.first.count, times.total.count) == (30, 30)
    assert results.summary()["cache"] == {"(none)": 30}


async def test_requests_are_sent_while_none_is_answered() -> None:
    engine = ScriptedEngine(EVENT, DONE, paced=True)
    await engine.start()
    generator = LoadGenerator(LoadPlan(engine.url, "llama", [Phase(100, 0.2)], poisson=False))
    running = asyncio.create_task(generator.run())
    await eventually(lambda: generator.results.sent == 20)
    assert generator.results.completed == 0
    for _ in range(20):
        engine.chunk_permits.release()
    results = await running
    assert (results.most_in_flight, results.completed) == (20, 20)
    await engine.stop()


async def test_a_request_that_is_sent_late_counts_from_its_intended_time() -> None:
    blocked: list[bool] = []

    def block(_response: Response, _seconds: float) -> None:
        if not blocked:
            blocked.append(True)
            time.sleep(0.3)

    results = await send(ScriptedEngine(EVENT, DONE), [Phase(100, 0.2)], on_response=block)
    # Those due early in the pause were sent at its end.
    assert results.lag.max > 0.2
    assert results.all_times.total.max > 0.2
    assert results.doubts


@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        ((EVENT, ERROR), "error event engine_failed"),
        ((EVENT,), "a stream without [DONE]"),
    ],
)
async def test_a_stream_that_does_not_complete_is_an_error(pieces: tuple[bytes, ...], kind: str) -> None:
    results = await send(ScriptedEngine(*pieces), [Phase(20, 0.1)])
    assert (results.completed, dict(results.errors)) == (0, {kind: 2})


async def test_a_status_is_an_error_with_the_code_of_its_body() -> None:
    body = b'{"error":{"message":"full","type":"server_error","code":"queue_full"}}'
    results = await send(ScriptedEngine(body, status=503, content_type="application/json"), [Phase(20, 0.1)])
    assert dict(results.errors) == {"HTTP 503 queue_full": 2}


async def test_a_refused_connection_is_an_error() -> None:
    plan = LoadPlan(f"http://127.0.0.1:{free_port()}", "llama", [Phase(20, 0.1)], poisson=False)
    results = await LoadGenerator(plan).run()
    assert dict(results.errors) == {"connect: ConnectionRefusedError": 2}


async def test_a_request_without_a_response_ends_after_the_timeout() -> None:
    results = await send(ScriptedEngine(EVENT, DONE, paced=True), [Phase(20, 0.1)], timeout=0.1)
    assert dict(results.errors) == {"timeout": 2}


async def test_more_than_the_maximum_in_flight_are_not_sent() -> None:
    engine = ScriptedEngine(EVENT, DONE, paced=True)
    await engine.start()
    plan = LoadPlan(engine.url, "llama", [Phase(100, 0.05)], poisson=False, most_in_flight=3)
    generator = LoadGenerator(plan)
    running = asyncio.create_task(generator.run())
    await eventually(lambda: dict(generator.results.errors) == {"not sent: too many requests in flight": 2})
    for _ in range(6):
        engine.chunk_permits.release()
    results = await running
    assert (results.completed, len(engine.bodies)) == (3, 3)
    await engine.stop()


async def test_a_client_that_leaves_is_no_error() -> None:
    engine = ScriptedEngine(*[EVENT] * 10, hold=True, paced=True)
    engine.chunk_permits = asyncio.Semaphore(1000)
    results = await send(engine, [Phase(20, 0.1)], mix=Mix(leave=1.0))
    assert (results.left, results.completed, results.failed) == (2, 0, 0)


async def test_followers_repeat_a_prompt_that_is_in_flight() -> None:
    engine = ScriptedEngine(EVENT, DONE, paced=True)
    await engine.start()
    plan = LoadPlan(engine.url, "llama", [Phase(100, 0.1)], poisson=False, mix=Mix(followers=1.0))
    generator = LoadGenerator(plan)
    running = asyncio.create_task(generator.run())
    await eventually(lambda: generator.results.sent == 10)
    for _ in range(10):
        engine.chunk_permits.release()
    results = await running
    assert (results.followers, len(set(engine.bodies))) == (9, 1)
    await engine.stop()


async def test_new_prompts_are_all_different_and_names_have_prompts_of_their_own() -> None:
    bodies = set()
    for name in ("a", "b"):
        engine = ScriptedEngine(EVENT, DONE)
        await send(engine, [Phase(100, 0.1)], mix=Mix(new=1.0), name=name)
        bodies |= set(engine.bodies)
    assert len(bodies) == 20


async def test_the_same_seed_sends_the_same_requests() -> None:
    sent = []
    for _ in range(2):
        engine = ScriptedEngine(EVENT, DONE)
        await send(engine, [Phase(200, 0.1)], mix=Mix(new=0.3, stream=0.5), prompts=50)
        sent.append(sorted(engine.bodies))
    assert sent[0] == sent[1]


async def test_while_it_holds_each_request_that_ends_is_replaced() -> None:
    results = await send(ScriptedEngine(EVENT, DONE), [Phase(50, 0.1)], hold=0.5)
    assert results.sent > 5
    assert results.most_in_flight <= 5
    assert (results.completed, results.failed) == (results.sent, 0)


async def test_stop_ends_a_load_early() -> None:
    engine = ScriptedEngine(EVENT, DONE)
    await engine.start()
    plan = LoadPlan(engine.url, "llama", [Phase(50, 3600)])
    generator = LoadGenerator(plan, lambda _response, _seconds: generator.stop())
    results = await generator.run()
    assert results.completed == results.sent
    await engine.stop()
