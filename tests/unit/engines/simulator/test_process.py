"""The simulator as a process, and its metrics while it works."""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.http_exchange import send_request
from tests.support.simulated_engine import SimulatedEngine
from tests.support.waiting import TEST_TIMEOUT

PATH = "/v1/completions"


async def complete(engine: SimulatedEngine, prompt: str, **fields: Any) -> dict[str, Any]:
    async with httpx.AsyncClient(timeout=TEST_TIMEOUT) as http:
        response = await http.post(f"{engine.url}{PATH}", json={"prompt": prompt, **fields})
    parsed: dict[str, Any] = response.raise_for_status().json()
    return parsed


async def test_it_takes_little_to_start_and_ends_on_sigterm() -> None:
    engine = SimulatedEngine()
    await engine.start()
    assert (await send_request(engine.url, "GET", "/health")).status == 200
    ticks = [int(field) for field in Path(f"/proc/{engine.pid}/stat").read_text().rpartition(")")[2].split()[11:13]]
    assert await engine.stop() == 0
    # Seconds of the processor, which do not depend on what else the machine does; usually one.
    assert sum(ticks) / os.sysconf("SC_CLK_TCK") < 3


async def test_it_ends_on_sigterm_while_generations_stall() -> None:
    async with SimulatedEngine() as engine:
        leaving = asyncio.create_task(complete(engine, "[[sim:stall]]"))
        await engine.stats(in_flight=1)
        async with asyncio.timeout(30):  # the generation would stall for longer
            assert await engine.stop() == 0
        with pytest.raises(httpx.HTTPError):
            await leaving


async def test_it_restarts_on_the_same_port_after_a_crash() -> None:
    async with SimulatedEngine() as engine:
        url = engine.url
        assert await engine.kill() == -9
        await engine.start()
        assert engine.url == url
        assert (await send_request(engine.url, "GET", "/health")).status == 200


async def test_it_exits_with_a_code_after_its_tokens() -> None:
    async with SimulatedEngine() as engine:
        body = json.dumps({"prompt": "[[sim:exit after=2 code=7]]", "stream": True})
        response = await send_request(engine.url, "POST", PATH, body, **{"content-type": "application/json"})
        assert (len(response.chunks), response.complete) == (2, False)
        assert await engine.wait_for_exit() == 7


async def test_an_invalid_option_is_reported() -> None:
    with pytest.raises(RuntimeError, match="exit code 2"):
        await SimulatedEngine(kv_blocks=4, max_model_len=1000).start()


async def test_tokens_are_counted_as_usage_says() -> None:
    async with SimulatedEngine() as engine:
        usage = [(await complete(engine, prompt, max_tokens=50))["usage"] for prompt in ("one two", "three", "four")]
        assert await engine.metric("prompt_tokens_total") == sum(counts["prompt_tokens"] for counts in usage)
        assert await engine.metric("generation_tokens_total") == sum(counts["completion_tokens"] for counts in usage)
        ends = [await engine.metric("request_success_total", finished_reason=reason) for reason in ("stop", "length")]
        assert sum(ends) == 3
        assert await engine.metric("time_to_first_token_seconds_count") == 3
        assert await engine.metric("e2e_request_latency_seconds_count") == 3


async def test_a_repeated_prompt_hits_the_prefix_cache_except_for_its_last_block() -> None:
    async with SimulatedEngine() as engine:
        prompt = "word " * 200
        await complete(engine, prompt)
        assert await engine.metric("prefix_cache_hits_total") == 0
        await complete(engine, prompt)
        queries = await engine.metric("prefix_cache_queries_total")
        hits = await engine.metric("prefix_cache_hits_total")
        assert hits == (queries / 2 - 1) // 16 * 16
        await complete(engine, prompt, cache_salt="other")
        assert await engine.metric("prefix_cache_hits_total") == hits


async def test_requests_wait_for_space_and_kv_usage_follows_the_running_ones() -> None:
    async with SimulatedEngine(max_num_seqs=2, kv_blocks=101, max_model_len=512) as engine:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(complete(engine, f"{n} [[sim:stall after=1]]")) for n in range(3)]
            await engine.stats(in_flight=3)
            assert await engine.metric("num_requests_running") == 2
            assert await engine.metric("num_requests_waiting") == 1
            assert await engine.metric("num_requests_waiting_by_reason", reason="capacity") == 1
            assert await engine.metric("kv_cache_usage_perc") == 2 * 1 / 100
            for task in tasks:
                task.cancel()
        await engine.stats(aborted=3, in_flight=0)
        assert await engine.metric("kv_cache_usage_perc") == 0
        assert await engine.metric("num_requests_waiting") == 0


async def test_too_little_space_preempts_and_every_response_is_still_complete() -> None:
    # At this rate all are in flight together, however slow the machine is.
    async with SimulatedEngine(kv_blocks=13, max_model_len=128, tokens_per_second=400) as engine:
        jobs = [complete(engine, f"{n} tell", max_tokens=100, ignore_eos=True) for n in range(4)]
        answers = await asyncio.gather(*jobs)
        assert await engine.metric("num_preemptions_total") > 0
        assert {answer["usage"]["completion_tokens"] for answer in answers} == {100}
        alone = [await complete(engine, f"{n} tell", max_tokens=100, ignore_eos=True) for n in range(4)]
        assert [a["choices"][0]["text"] for a in answers] == [a["choices"][0]["text"] for a in alone]


async def test_a_draft_is_accepted_at_the_configured_rate() -> None:
    async with SimulatedEngine(draft="d", num_speculative_tokens=3, acceptance=0.6) as engine:
        await complete(engine, "go", max_tokens=4000, ignore_eos=True)
        drafts = await engine.metric("spec_decode_num_drafts_total")
        accepted = await engine.metric("spec_decode_num_accepted_tokens_total")
        positions = [
            await engine.metric("spec_decode_num_accepted_tokens_per_pos_total", position=str(n)) for n in range(3)
        ]
        assert await engine.metric("spec_decode_num_draft_tokens_total") == 3 * drafts
        assert sum(positions) == accepted
        assert positions == sorted(positions, reverse=True)
        assert 0.55 < positions[0] / drafts < 0.65
        assert await engine.metric("generation_tokens_total") == 4000


async def reported(engine: SimulatedEngine, path: str, **fields: Any) -> str:
    """What a response ends with, from the name `metrics` on; of a stream, its usage event."""
    prompt = {"messages": [{"role": "user", "content": "go"}]} if "chat" in path else {"prompt": "go"}
    async with httpx.AsyncClient(timeout=TEST_TIMEOUT) as http:
        response = await http.post(
            f"{engine.url}{path}", json={**prompt, "max_tokens": 40, "ignore_eos": True, **fields}
        )
    assert response.status_code == 200
    return response.text.removesuffix("\n\ndata: [DONE]\n\n").rpartition(',"metrics":')[2]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_response_says_how_many_draft_tokens_were_accepted_as_vllm_says_it(path: str) -> None:
    always: dict[str, Any] = {"draft": "d", "acceptance": 1.0, "num_speculative_tokens": 2}
    # 39 tokens after the first, in steps of three: 13 steps.
    counts = (
        '"mean_acceptance_length":3.0,"draft_acceptance_rate":1.0,"acceptance_histogram":[0,0,13],"num_spec_steps":13,'
        '"num_accepted_draft_tokens":26,"num_draft_tokens":26,"num_spec_tokens":2'
    )
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    async with SimulatedEngine(**always, per_request_spec_decode_metrics="summary") as engine:
        assert await reported(engine, path) == (
            '{"time_to_first_token_ms":null,"generation_time_ms":null,"queue_time_ms":null,"mean_itl_ms":null,'
            f'"tokens_per_second":null,"speculative_decoding":{{{counts},"per_step_accepted":null,'
            '"per_step_drafted":null}}}'
        )
        assert await reported(engine, path, **usage) == f'{{"speculative_decoding":{{{counts}}}}}}}'
        assert await reported(engine, path, n=2, temperature=1) == "null}"
        assert "speculative_decoding" not in await reported(engine, path, n=2, temperature=1, **usage)
    async with SimulatedEngine(**always, per_request_spec_decode_metrics="detailed") as engine:
        per_step = f'"per_step_accepted":{[2] * 13},"per_step_drafted":{[2] * 13}'.replace(" ", "")
        assert (await reported(engine, path)).endswith(f"{per_step}}}}}}}")
        assert (await reported(engine, path, **usage)).endswith(f"{per_step}}}}}}}")
    async with SimulatedEngine(**always) as engine:
        assert await reported(engine, path) == "null}"


async def test_metrics_of_a_draft_are_refused_without_one() -> None:
    with pytest.raises(RuntimeError, match="did not start"):
        await SimulatedEngine(per_request_spec_decode_metrics="summary").start()


async def test_a_pace_applies_to_each_request() -> None:
    async with SimulatedEngine(ttft_ms=900, tokens_per_second=200) as engine:
        started = time.monotonic()
        await asyncio.gather(*(complete(engine, f"{n}", max_tokens=21, ignore_eos=True) for n in range(60)))
        assert 1 <= time.monotonic() - started < 50, "one after the other they would take a minute"
