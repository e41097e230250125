"""The file that `--generations` writes, and where the generations' names appear in the responses."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from engines.simulator.control.generation_log import name_to_floats
from tests.support.http_exchange import send_request
from tests.support.simulated_engine import SimulatedEngine

SAY = "[[sim:say text=a%20{generation}%20b%20{generation}]]"
CHAT = {"model": "simulated", "messages": [{"role": "user", "content": SAY}], "safety_identifier": "me"}


async def post(engine: SimulatedEngine, path: str, body: dict[str, Any]) -> Any:
    answer = await send_request(engine.url, "POST", path, json.dumps(body), **{"content-type": "application/json"})
    return json.loads(answer.body) if answer.status == 200 else answer.status


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_each_generation_contains_its_name_and_is_logged_with_its_start_even_across_a_crash(
    tmp_path: Path,
) -> None:
    path, started = tmp_path / "generations", time.monotonic()
    async with SimulatedEngine(generations=path) as engine:
        texts = [(await post(engine, "/v1/chat/completions", CHAT))["choices"][0]["message"]["content"]]
        await engine.kill()
        await engine.start()
        texts.append((await post(engine, "/v1/chat/completions", CHAT))["choices"][0]["message"]["content"])
    logged = lines(path)
    assert texts == [f"a {line['generation']} b {line['generation']}" for line in logged]
    assert logged[0]["generation"] != logged[1]["generation"]
    assert {line["asked_by"] for line in logged} == {"me"}
    assert started <= logged[0]["at"] <= logged[1]["at"] <= time.monotonic()


async def test_a_vector_contains_the_name_in_its_first_three_numbers(tmp_path: Path) -> None:
    path = tmp_path / "generations"
    async with SimulatedEngine(runner="pooling", generations=path) as engine:
        answer = await post(engine, "/v1/embeddings", {"model": "simulated", "input": "sea"})
    (line,) = lines(path)
    vector = answer["data"][0]["embedding"]
    assert len(vector) == 64
    assert vector[:3] == name_to_floats(line["generation"])


@pytest.mark.parametrize("fault", ["[[sim:status code=500]]", "[[sim:status code=429]]"])
async def test_a_refused_request_is_not_a_generation(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "generations"
    async with SimulatedEngine(generations=path) as engine:
        body = {"model": "simulated", "messages": [{"role": "user", "content": fault}]}
        assert await post(engine, "/v1/chat/completions", body) in (500, 429)
    assert lines(path) == []
