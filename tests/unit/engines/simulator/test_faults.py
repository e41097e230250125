"""Every fault occurs when it is requested, by marker and by control endpoint, and is counted."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from router.net.tasks import cancel_and_wait
from tests.support.http_exchange import ReceivedResponse, send_request
from tests.support.simulated_engine import SimulatedEngine
from tests.support.waiting import TEST_TIMEOUT

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def running() -> AsyncIterator[SimulatedEngine]:
    async with SimulatedEngine() as engine:
        yield engine


@pytest_asyncio.fixture(loop_scope="module")
async def engine(running: SimulatedEngine) -> AsyncIterator[SimulatedEngine]:
    yield running
    await running.clear_faults()


async def ask(engine: SimulatedEngine, prompt: str, *, stream: bool = True) -> ReceivedResponse:
    body = {"messages": [{"role": "user", "content": prompt}], "stream": stream}
    headers = {"content-type": "application/json"}
    return await send_request(engine.url, "POST", "/v1/chat/completions", json.dumps(body), **headers)


def texts(response: ReceivedResponse) -> list[str]:
    """The non-empty content deltas of a stream."""
    events = [event.removeprefix(b"data: ") for event in response.body.split(b"\n\n")]
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events if event.startswith(b'{"id"')]
    return [delta["content"] for delta in deltas if delta.get("content")]


async def test_a_fault_set_by_the_control_endpoint_applies_the_given_number_of_times(engine: SimulatedEngine) -> None:
    await engine.set_faults({"fault": "status", "code": 503, "times": 2})
    assert [(await ask(engine, "hello")).status for _ in range(3)] == [503, 503, 200]


async def test_cleared_faults_are_gone(engine: SimulatedEngine) -> None:
    await engine.set_faults({"fault": "status", "code": 500}, {"fault": "kv", "usage": 0.95})
    await engine.clear_faults()
    assert (await ask(engine, "hello")).status == 200
    assert await engine.metric("kv_cache_usage_perc") == 0


async def test_a_fault_can_apply_to_some_prompts_only(engine: SimulatedEngine) -> None:
    await engine.set_faults({"fault": "status", "code": 500, "match": "red"})
    assert [(await ask(engine, prompt)).status for prompt in ("red", "blue")] == [500, 200]


async def test_an_unknown_fault_is_refused_in_both_forms(engine: SimulatedEngine) -> None:
    async with httpx.AsyncClient(timeout=TEST_TIMEOUT) as http:
        assert (await http.post(f"{engine.url}/_sim/faults", json=[{"fault": "typo"}])).status_code == 400
        assert (await http.post(f"{engine.url}/_sim/faults", content=b"{")).status_code == 400
        assert (await http.get(f"{engine.url}/_sim/stats", params={"typo": 1})).status_code == 400
    response = await ask(engine, "[[sim:typo]]")
    assert response.status == 400
    assert b"unknown fault 'typo'" in response.body


async def test_a_429_has_a_retry_after(engine: SimulatedEngine) -> None:
    response = await ask(engine, "[[sim:status code=429 retry_after=7]]")
    assert (response.status, response.headers["retry-after"]) == (429, "7")
    assert json.loads(response.body)["error"]["code"] == 429


@pytest.mark.parametrize("stream", [True, False])
async def test_a_slow_first_token_arrives_late(engine: SimulatedEngine, stream: bool) -> None:
    started = time.monotonic()
    await ask(engine, "[[sim:ttft ms=150]]", stream=stream)
    assert time.monotonic() - started >= 0.15


async def test_a_slow_prefill_shows_in_the_usage_of_the_kv_cache_alone(engine: SimulatedEngine) -> None:
    before = await engine.metric("prompt_tokens_total")
    asking = asyncio.ensure_future(ask(engine, "[[sim:prefill ms=20000]]" + " sea" * 500))
    usages: list[float] = []
    await engine.stats(in_flight=1)
    while len(set(usages)) < 3:
        usages.append(await engine.metric("kv_cache_usage_perc"))
        await asyncio.sleep(0.05)
    assert usages == sorted(usages)
    assert await engine.metric("prompt_tokens_total") == before
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking


async def test_arguments_that_a_parser_holds_back_come_in_one_piece_while_tokens_are_generated(
    engine: SimulatedEngine,
) -> None:
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "weather", "parameters": city}}
    body = {
        "messages": [{"role": "user", "content": "[[sim:hold_arguments]] Sunny?"}], "stream": True,
        "tools": [tool], "tool_choice": "required",
    }  # fmt: skip
    headers = {"content-type": "application/json"}
    before = await engine.metric("generation_tokens_total")
    response = await send_request(engine.url, "POST", "/v1/chat/completions", json.dumps(body), **headers)
    events = [event.removeprefix(b"data: ") for event in response.body.split(b"\n\n")]
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events if event.startswith(b'{"id"')]
    functions = [call["function"] for delta in deltas for call in delta.get("tool_calls", [])]
    assert functions[0]["name"] == "weather"
    (arguments,) = [function["arguments"] for function in functions if function.get("arguments")]
    assert "city" in json.loads(arguments)
    assert await engine.metric("generation_tokens_total") > before + 3


async def test_slow_tokens_arrive_at_their_rate(engine: SimulatedEngine) -> None:
    started = time.monotonic()
    await ask(engine, "[[sim:tps rate=100]] [[sim:tokens n=21]]")
    assert time.monotonic() - started >= 0.2


@pytest.mark.parametrize("after", [0, 1, 3])
async def test_a_stall_sends_its_tokens_and_then_nothing_until_the_client_disconnects(
    engine: SimulatedEngine, after: int
) -> None:
    aborted = (await engine.stats())["aborted"]
    body = {"messages": [{"role": "user", "content": f"[[sim:stall after={after}]]"}], "stream": True}
    async with (
        httpx.AsyncClient(timeout=TEST_TIMEOUT) as http,
        http.stream("POST", f"{engine.url}/v1/chat/completions", json=body) as response,
    ):
        assert response.status_code == 200
        lines = response.aiter_lines()
        received = 0
        while after and received < after + 1:
            received += (await anext(lines)).startswith("data: ")
        await engine.stats(in_flight=1)
        assert await engine.metric("num_requests_running") == 1
    await engine.stats(aborted=aborted + 1, in_flight=0)
    assert await engine.metric("num_requests_running") == 0


async def test_a_client_that_disconnects_from_a_json_request_frees_the_engine(engine: SimulatedEngine) -> None:
    before = await engine.stats()
    counted = await engine.metric("request_success_total", finished_reason="abort")
    body = {"messages": [{"role": "user", "content": "[[sim:tps rate=5]]"}]}
    async with httpx.AsyncClient(timeout=TEST_TIMEOUT) as http:
        asking = asyncio.ensure_future(http.post(f"{engine.url}/v1/chat/completions", json=body))
        await engine.stats(in_flight=1)
        await cancel_and_wait(asking)
    await engine.stats(aborted=before["aborted"] + 1, in_flight=0)
    assert await engine.metric("request_success_total", finished_reason="abort") == counted + 1
    assert await engine.metric("kv_cache_usage_perc") == 0


@pytest.mark.parametrize("after", [0, 4])
async def test_an_error_frame_follows_its_tokens_in_a_200(engine: SimulatedEngine, after: int) -> None:
    errors = await engine.metric("request_success_total", finished_reason="error")
    response = await ask(engine, f"[[sim:error after={after}]]")
    assert (response.status, response.complete, len(texts(response))) == (200, True, after)
    assert len(response.chunks) == (after + 1 if after else 0) + 2
    assert response.chunks[-2].startswith(b'data: {"error": {"message": "EngineCore')
    assert response.chunks[-1] == b"data: [DONE]\n\n"
    assert await engine.metric("request_success_total", finished_reason="error") == errors + 1


@pytest.mark.parametrize("after", [3, 4])
async def test_an_error_can_follow_the_very_last_token(engine: SimulatedEngine, after: int) -> None:
    response = await ask(engine, f"[[sim:tokens n=3]] [[sim:error after={after}]]")
    assert len(texts(response)) == 3
    assert response.chunks[-2].startswith(b'data: {"error": ')


async def test_an_error_of_a_json_request_is_a_500(engine: SimulatedEngine) -> None:
    response = await ask(engine, "[[sim:error after=4 message=No%20luck]]", stream=False)
    assert response.status == 500
    assert json.loads(response.body)["error"]["message"] == "No luck"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_connection_is_dropped_before_the_headers(engine: SimulatedEngine, stream: bool) -> None:
    with pytest.raises(ConnectionResetError):
        await ask(engine, "[[sim:drop]]", stream=stream)
    with pytest.raises(EOFError):
        await ask(engine, "[[sim:drop how=close]]", stream=stream)


@pytest.mark.parametrize("how", ["reset", "close"])
async def test_a_connection_is_dropped_after_its_tokens(engine: SimulatedEngine, how: str) -> None:
    failed = (await engine.stats())["failed"]
    response = await ask(engine, f"[[sim:drop after=3 how={how}]]")
    assert (response.status, response.complete, len(texts(response))) == (200, False, 3)
    assert not (await ask(engine, f"[[sim:drop after=3 how={how}]]", stream=False)).complete
    await engine.stats(failed=failed + 2, in_flight=0)


async def test_a_stream_ends_without_done(engine: SimulatedEngine) -> None:
    response = await ask(engine, "[[sim:no_done]]")
    assert response.complete
    assert b"[DONE]" not in response.body
    assert b'"finish_reason":"stop"' in response.body


@pytest.mark.parametrize("stream", [True, False])
async def test_a_finish_reason_is_missing(engine: SimulatedEngine, stream: bool) -> None:
    response = await ask(engine, "[[sim:no_finish]]", stream=stream)
    assert response.complete
    assert b'"finish_reason":null' in response.body
    assert b'"finish_reason":"' not in response.body


async def test_json_in_a_200_is_malformed(engine: SimulatedEngine) -> None:
    response = await ask(engine, "[[sim:malformed]]", stream=False)
    assert (response.status, response.complete) == (200, True)
    with pytest.raises(json.JSONDecodeError):
        json.loads(response.body)
    streamed = await ask(engine, "[[sim:malformed]]")
    with pytest.raises(json.JSONDecodeError):
        texts(streamed)


async def test_a_huge_response_has_its_tokens(engine: SimulatedEngine) -> None:
    async with SimulatedEngine(kv_blocks=10_000, max_model_len=100_000) as large:
        response = await ask(large, "[[sim:tokens n=20000]]")
    assert len(texts(response)) == 20_000


async def test_an_exact_text_is_generated(engine: SimulatedEngine) -> None:
    response = await ask(engine, "[[sim:say text=%20a%09b%0D%0Ae%CC%81%20%F0%9F%91%A9]]")
    assert "".join(texts(response)) == " a\tb\r\ne\u0301 \U0001f469"


@pytest.mark.parametrize("size", [1, 7, 100])
async def test_the_byte_stream_is_cut_at_any_size(engine: SimulatedEngine, size: int) -> None:
    response = await ask(engine, f"[[sim:chunks bytes={size}]] [[sim:say text=caf%C3%A9]]")
    assert {len(chunk) for chunk in response.chunks[:-1]} == {size}
    assert "".join(texts(response)) == "café"
    assert response.body.endswith(b"data: [DONE]\n\n")


async def test_kv_usage_can_be_set_renamed_and_omitted(engine: SimulatedEngine) -> None:
    await engine.set_faults({"fault": "kv", "usage": 0.95})
    assert await engine.metric("kv_cache_usage_perc") == 0.95
    await engine.set_faults({"fault": "kv", "usage": 0.5, "metric": "old"})
    assert await engine.metric("gpu_cache_usage_perc") == 0.5
    assert not [name for name in await engine.metrics() if "kv_cache_usage" in name]
    await engine.set_faults({"fault": "kv", "metric": "missing"})
    assert not [name for name in await engine.metrics() if "cache_usage_perc" in name]


async def test_health_fails_while_completions_work(engine: SimulatedEngine) -> None:
    assert (await ask(engine, "[[sim:health]]")).status == 200
    assert (await send_request(engine.url, "GET", "/health")).status == 503
    assert (await ask(engine, "hello")).status == 200
    await engine.clear_faults()
    assert (await send_request(engine.url, "GET", "/health")).status == 200


async def test_requests_can_be_inspected(engine: SimulatedEngine) -> None:
    received = (await engine.stats())["received"]
    await ask(engine, "remember me")
    stats = await engine.stats(received=received + 1)
    assert json.loads(stats["requests"][-1]["body"])["messages"][0]["content"] == "remember me"
    assert stats["requests"][-1]["path"] == "/v1/chat/completions"
    assert stats["requests"][-1]["headers"]["content-type"] == "application/json"
