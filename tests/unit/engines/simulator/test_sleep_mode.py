"""Sleep and wake of the simulator, with the answers of vLLM 0.32."""

import asyncio
from typing import Any

import httpx
import pytest

from engines.simulator.app import create_app
from engines.simulator.settings import SimulatorSettings
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROMPT = "The lamp of the harbour was lit. " * 20


class Engine:
    def __init__(self, **settings: Any) -> None:
        app = create_app(SimulatorSettings("m", **{"server_dev_mode": True, **settings}))
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine")

    async def call(self, path: str) -> Any:
        return (await self.http.post(path)).json()

    async def is_sleeping(self) -> bool:
        answer: dict[str, bool] = (await self.http.get("/is_sleeping")).json()
        return answer["is_sleeping"]

    def ask(self, **fields: Any) -> "asyncio.Task[httpx.Response]":
        body = {"model": "m", "prompt": PROMPT, "max_tokens": 4, "ignore_eos": True, **fields}
        return asyncio.ensure_future(self.http.post("/v1/completions", json=body))

    async def metric(self, name: str) -> float:
        lines = (await self.http.get("/metrics")).text.splitlines()
        (value,) = [line.rsplit(" ", 1)[1] for line in lines if line.startswith(f"vllm:{name}")]
        return float(value)

    async def state(self) -> str:
        names = ("awake", "weights_offloaded", "discard_all")
        samples = {
            name: await self.metric(f'engine_sleep_state{{engine="0",model_name="m",sleep_state="{name}"}}')
            for name in names
        }
        return ", ".join(name for name in names if samples[name])

    async def until_running(self) -> None:
        async def runs() -> bool:
            return await self.metric("num_requests_running") == 1

        await eventually(runs)


async def ended(request: "asyncio.Task[httpx.Response]") -> tuple[str, int]:
    """The finish reason, and the generated tokens."""
    answer = (await request).json()
    return answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]


async def test_a_request_at_a_sleeping_engine_is_answered_after_the_wake() -> None:
    engine = Engine()
    assert (await engine.is_sleeping(), await engine.state()) == (False, "awake")
    assert await engine.call("/sleep") == {"status": "sleeping", "level": 1}
    assert (await engine.is_sleeping(), await engine.state()) == (True, "weights_offloaded")
    assert (await engine.http.get("/health")).status_code == 200
    request = engine.ask()
    assert (await asyncio.wait([request], timeout=0.05))[1], "it waits"
    assert await engine.metric("num_requests_waiting{") == 0
    assert await engine.call("/wake_up") == {"status": "awake", "tags": None}
    assert await ended(request) == ("length", 4)
    assert (await engine.is_sleeping(), await engine.state()) == (False, "awake")


@pytest.mark.parametrize(("level", "found"), [(0, True), (1, False), (2, False)])
async def test_sleep_empties_the_prefix_cache_but_at_level_0(level: int, found: bool) -> None:
    engine = Engine()
    await engine.ask()
    await engine.call(f"/sleep?level={level}")
    await engine.call("/wake_up")
    await engine.ask()
    assert (await engine.metric("prefix_cache_hits_total") > 0) == found


@pytest.mark.parametrize(("mode", "reason"), [("wait", "length"), ("abort", "abort")])
async def test_a_running_request_runs_to_its_end_or_is_aborted(mode: str, reason: str) -> None:
    engine = Engine(tokens_per_second=100)
    request = engine.ask(max_tokens=20)
    await engine.until_running()
    await engine.call(f"/sleep?mode={mode}")
    assert request.done()
    found, tokens = await ended(request)
    assert (found, tokens == 20) == (reason, mode == "wait")


async def test_a_running_request_may_stand_still() -> None:
    engine = Engine(tokens_per_second=100)
    request = engine.ask(max_tokens=10)
    await engine.until_running()
    await engine.call("/sleep?level=0&mode=keep")
    assert (await asyncio.wait([request], timeout=0.2))[1], "it stands still"
    await engine.call("/wake_up")
    assert await ended(request) == ("length", 10)


async def test_it_sleeps_until_all_parts_are_awake() -> None:
    engine = Engine()
    await engine.call("/sleep?level=2")
    assert await engine.state() == "discard_all"
    assert await engine.call("/wake_up?tags=weights") == {"status": "sleeping", "tags": ["weights"]}
    assert await engine.is_sleeping()
    assert await engine.call("/collective_rpc") == {"results": [None]}
    assert await engine.call("/wake_up?tags=kv_cache") == {"status": "awake", "tags": ["kv_cache"]}
    assert not await engine.is_sleeping()
    await engine.call("/sleep?level=0")
    assert await engine.call("/wake_up?tags=scheduling") == {"status": "awake", "tags": ["scheduling"]}


LEVEL_TOO_HIGH = """{'type': 'less_than_equal', 'loc': 'query.level', \
'msg': 'Input should be less than or equal to 2', 'input': '3', 'ctx': {'le': 2}}"""
LEVEL_NO_NUMBER = """{'type': 'int_parsing', 'loc': 'query.level', \
'msg': 'Input should be a valid integer, unable to parse string as an integer', 'input': 'x'}"""
MODE_UNKNOWN = """{'type': 'literal_error', 'loc': 'query.mode', 'msg': "Input should be 'abort', 'wait' or 'keep'", \
'input': 'foo', 'ctx': {'expected': "'abort', 'wait' or 'keep'"}}"""


@pytest.mark.parametrize(
    ("query", "problem"), [("level=3", LEVEL_TOO_HIGH), ("level=x", LEVEL_NO_NUMBER), ("mode=foo", MODE_UNKNOWN)]
)
async def test_a_wrong_query_is_refused_in_vllms_words(query: str, problem: str) -> None:
    answer = await Engine().http.post(f"/sleep?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": f"1 validation error:\n  {problem}", "type": "Bad Request",
        "param": f"query.{query.partition('=')[0]}", "code": 400,
    }  # fmt: skip


async def test_other_methods_are_refused() -> None:
    answer = await Engine().http.get("/sleep")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    answer = await Engine().http.post("/is_sleeping")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")


async def test_without_the_development_mode_there_is_no_sleep() -> None:
    assert (await Engine(server_dev_mode=False).http.post("/sleep")).status_code == 404
