"""Of JSON answers, too, only a whole, well-ended one is kept, and it is kept as it came."""

import json
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.endpoints.recorded_response import NotKept, Recording
from router.core.endpoints.recorders import record_body
from router.core.endpoints.request import Request
from tests.support.factories import JSON, ODD_EVENT, chat, completion

LIMIT: Final = 1 << 20


def answer(**fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
    return {"id": "c1", "choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}, **fields}


def choice(finish: Any = "stop", **message: Any) -> dict[str, Any]:
    return {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}


def test_a_json_answer_is_kept_byte_for_byte() -> None:
    body = json.dumps(answer(), indent=3).encode()
    recording = record_body(chat(), body, LIMIT)
    assert recording == Recording(body=body, stream=None, prompt_tokens=3, completion_tokens=2)


def test_a_json_answer_needs_no_usage() -> None:
    assert isinstance(record_body(chat(), json.dumps(answer(usage=None)).encode(), LIMIT), Recording)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"error": {"message": "x"}}, NotKept.ERROR),
        ({"choices": None}, NotKept.ERROR),
        ({"choices": [1]}, NotKept.ERROR),
        ({"choices": []}, NotKept.INCOMPLETE),
        ({"choices": [choice(None, content="x")]}, NotKept.INCOMPLETE),
        ({"choices": [choice("abort", content="x")]}, NotKept.INCOMPLETE),
        ({"choices": [choice("stop", content="x"), choice(None, content="y")]}, NotKept.INCOMPLETE),
        ({"choices": [choice(content="")]}, NotKept.EMPTY),
        ({"choices": [choice(content=None, tool_calls=[], refusal=None)]}, NotKept.EMPTY),
    ],
)
def test_nothing_but_a_whole_well_ended_json_answer_is_kept(fields: dict[str, Any], reason: NotKept) -> None:
    assert record_body(chat(), json.dumps(answer(**fields)).encode(), LIMIT) is reason


@pytest.mark.parametrize(
    "body", [b"", b"x", b"[]", b"null", b'{"choices":[', b"\xff", b"[" * 10**5, b'{"choices":"x"}']
)
def test_a_body_that_is_no_answer_is_an_error(body: bytes) -> None:
    assert record_body(chat(), body, LIMIT) is NotKept.ERROR


def test_a_json_answer_over_the_limit_is_not_kept() -> None:
    body = json.dumps(answer()).encode()
    assert isinstance(record_body(chat(), body, len(body)), Recording)
    assert record_body(chat(), body, len(body) - 1) is NotKept.TOO_LARGE


@settings(max_examples=300)
@given(ODD_EVENT | JSON, st.sampled_from([chat(), chat(n=2), chat(n="x"), completion(), completion(prompt=["a", 1])]))
def test_no_body_of_an_engine_raises_anything(body: Any, asked: Request) -> None:
    assert isinstance(record_body(asked, json.dumps(body).encode(), LIMIT), Recording | NotKept)
