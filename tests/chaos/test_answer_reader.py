"""Answers of every endpoint are read the same way, as an engine gives them."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.chaos.answer_reader import read_json, read_stream
from tests.chaos.workload import MESSAGES, RESPONSES, Question
from tests.support.http_exchange import exchange
from tests.support.simulated_engine import SimulatedEngine

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUESTIONS = [Question(number) for number in (10, 13, 16, 18, 12, 14)]  # one of each path and two chats


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine() -> AsyncIterator[SimulatedEngine]:
    async with SimulatedEngine("m", served_model_name=("llama", "auto", "mistral")) as running:
        yield running


async def ask(engine: SimulatedEngine, question: Question, **fields: Any) -> bytes:
    body = json.dumps({**question.body(), **fields})
    answer = await exchange(engine.url, "POST", question.path, body, **{"content-type": "application/json"})
    assert answer.status == 200
    return answer.body


@pytest.mark.parametrize("question", [each for each in QUESTIONS if each.streams], ids=lambda each: each.path)
async def test_json_and_a_stream_say_the_same(engine: SimulatedEngine, question: Question) -> None:
    whole = read_json(question.path, json.loads(await ask(engine, question)))
    stream = read_stream(question.path, await ask(engine, question, stream=True))
    assert whole.text == stream.said.text == question.template
    assert (whole.ended, stream.said.ended) == (True, True)
    assert (whole.flaws, stream.said.flaws) == ([], [])
    assert len(whole.ids) == len(stream.said.ids) == 1
    assert (stream.done, stream.failed) == (True, None)
    assert whole.usages == 1
    assert stream.said.usages == int(question.path in (RESPONSES, MESSAGES))


@pytest.mark.parametrize("question", [each for each in QUESTIONS if each.streams], ids=lambda each: each.path)
async def test_a_stream_that_lacks_its_end_or_a_piece_is_not_whole(engine: SimulatedEngine, question: Question) -> None:
    body = await ask(engine, question, stream=True)
    frames = [frame + b"\n\n" for frame in body.removesuffix(b"\n\n").split(b"\n\n")]
    assert not read_stream(question.path, b"".join(frames[:-1])).done
    without = read_stream(question.path, b"".join([*frames[:4], *frames[5:]])).said
    assert without.text != question.template
    if question.path == RESPONSES:
        assert without.flaws != []


async def test_a_vector_names_its_generation() -> None:
    vector = {"embedding": [float(0x0123), float(0x4567), float(0x89AB), 0.5]}
    said = read_json("/v1/embeddings", {"id": "e", "data": [vector], "usage": {"prompt_tokens": 1}})
    assert said.text == Question(8).text("0123456789ab") == "0123456789ab"
