"""Responses of every endpoint, as an engine sends them, are read in the same way."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.chaos.answer_reader import parse_json_answer, parse_stream
from tests.chaos.workload import MESSAGES, RESPONSES, WorkloadQuestion
from tests.support.http_exchange import send_request
from tests.support.simulated_engine import SimulatedEngine

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUESTIONS = [WorkloadQuestion(number) for number in (10, 13, 16, 18, 12, 14)]  # one of each path and two chats


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine() -> AsyncIterator[SimulatedEngine]:
    async with SimulatedEngine("m", served_model_name=("llama", "auto", "mistral")) as running:
        yield running


async def ask(engine: SimulatedEngine, question: WorkloadQuestion, **fields: Any) -> bytes:
    body = json.dumps({**question.body(), **fields})
    answer = await send_request(engine.url, "POST", question.path, body, **{"content-type": "application/json"})
    assert answer.status == 200
    return answer.body


@pytest.mark.parametrize("question", [each for each in QUESTIONS if each.streams], ids=lambda each: each.path)
async def test_json_and_a_stream_have_the_same_text(engine: SimulatedEngine, question: WorkloadQuestion) -> None:
    complete_answer = parse_json_answer(question.path, json.loads(await ask(engine, question)))
    heartbeat = b": heartbeat\n\n"
    stream = parse_stream(question.path, heartbeat + await ask(engine, question, stream=True))
    assert complete_answer.text == stream.answer.text == question.template
    assert (complete_answer.finished, stream.answer.finished) == (True, True)
    assert (complete_answer.flaws, stream.answer.flaws) == ([], [])
    assert len(complete_answer.ids) == len(stream.answer.ids) == 1
    assert (stream.done, stream.error_code) == (True, None)
    assert complete_answer.usage_count == 1
    assert stream.answer.usage_count == int(question.path in (RESPONSES, MESSAGES))


@pytest.mark.parametrize("question", [each for each in QUESTIONS if each.streams], ids=lambda each: each.path)
async def test_a_stream_without_its_end_or_a_piece_is_incomplete(
    engine: SimulatedEngine, question: WorkloadQuestion
) -> None:
    body = await ask(engine, question, stream=True)
    frames = [frame + b"\n\n" for frame in body.removesuffix(b"\n\n").split(b"\n\n")]
    assert not parse_stream(question.path, b"".join(frames[:-1])).done
    without = parse_stream(question.path, b"".join([*frames[:4], *frames[5:]])).answer
    assert without.text != question.template
    if question.path == RESPONSES:
        assert without.flaws != []


async def test_a_vector_names_its_generation() -> None:
    vector = {"embedding": [float(0x0123), float(0x4567), float(0x89AB), 0.5]}
    vector_answer = parse_json_answer("/v1/embeddings", {"id": "e", "data": [vector], "usage": {"prompt_tokens": 1}})
    assert vector_answer.text == WorkloadQuestion(8).text("0123456789ab") == "0123456789ab"
