"""An answer in one form gives the other without loss, or not at all."""

import json
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.endpoints.recorded_response import Recording
from router.core.endpoints.recorders import record_body
from router.core.endpoints.replay import replay
from router.core.endpoints.request import Request
from router.core.endpoints.sse import DONE
from router.core.types import Endpoint
from tests.support.factories import (
    HELLO,
    JSON,
    ODD_EVENT,
    ROLE,
    TEXT,
    USAGE,
    captured,
    chat,
    chunk,
    completion,
    entry,
    frame,
    piece,
    recorded,
    stream,
    whole,
)
from tests.support.replay_helpers import (
    CALLS,
    CHAT,
    LIMIT,
    STREAM,
    STREAM_USAGE,
    answer,
    as_json,
    bare,
    call,
    choice,
    events_of,
    in_json,
    kept,
    there_and_back,
)

# What a real vLLM server sent

STREAMED: Final = [
    "chat-stream", "chat-stream-usage", "chat-stream-continuous-usage", "chat-n2-stream", "chat-logprobs-stream",
    "chat-tool-required-stream", "chat-tool-named-stream", "spec-chat-stream",
    "completion-stream", "completion-stream-usage", "completion-stream-echo-logprobs",
]  # fmt: skip
PLAIN: Final = [
    "chat", "chat-n2", "chat-logprobs", "chat-tool-required", "chat-tool-named", "completion",
    "completion-echo-logprobs", "completion-max0-echo", "completion-token-ids", "completion-two-prompts",
]  # fmt: skip


@pytest.mark.parametrize("name", STREAMED)
def test_a_stream_of_vllm_is_replayed_byte_for_byte(name: str) -> None:
    asked, sent = captured(name)
    found = entry(whole(recorded(sent), asked))
    assert replay(found, asked) == sent


@pytest.mark.parametrize("name", STREAMED)
def test_a_stream_of_vllm_has_its_text_in_the_json_answer(name: str) -> None:
    asked, sent = captured(name)
    body = in_json(whole(recorded(sent), asked), asked)
    joined: dict[int, str] = {}
    for event in events_of(sent):
        for part in event["choices"]:
            text = part["text"] if "text" in part else part["delta"].get("content") or ""
            joined[part["index"]] = joined.get(part["index"], "") + text
    texts = [part["text"] if "text" in part else part["message"]["content"] or "" for part in body["choices"]]
    assert texts == [joined[index] for index in sorted(joined)]
    assert body["object"] == ("chat.completion" if asked.endpoint is Endpoint.CHAT else "text_completion")


@pytest.mark.parametrize("name", PLAIN)
def test_a_json_answer_of_vllm_comes_back_whole_from_a_stream(name: str) -> None:
    asked, body = captured(name)
    recording = record_body(asked, body, LIMIT)
    assert isinstance(recording, Recording)
    assert replay(entry(recording), asked) == body
    fields = {**asked.fields, "stream": True, "stream_options": {"include_usage": True}}
    streaming = chat(**fields) if asked.endpoint is Endpoint.CHAT else completion(**fields)
    sent = replay(entry(recording), streaming)
    assert sent is not None
    again = whole(recorded(sent), streaming)
    assert bare(in_json(again, streaming)) == bare(json.loads(body))


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("chat-logprobs", "chat-logprobs-stream"),
        ("chat-tool-required", "chat-tool-required-stream"),
        ("chat-tool-named", "chat-tool-named-stream"),
        ("chat", "chat-stream-usage"),
    ],
)
def test_a_stream_of_vllm_says_as_json_what_vllms_json_says(name: str, other: str) -> None:
    _, body = captured(name)
    asked, sent = captured(other)
    wanted, got = bare(json.loads(body)), bare(in_json(whole(recorded(sent), asked), asked))
    for found in (wanted, got):
        del found["id"], found["created"]
        found.pop("usage", None)
        for made in found["choices"][0]["message"].get("tool_calls", ()):
            del made["id"]
        # vLLM says "" in one form and null in the other where there are only calls.
        if not found["choices"][0]["message"].get("content"):
            found["choices"][0]["message"].pop("content", None)
    assert got == wanted


# Text


@pytest.mark.parametrize(
    "deltas",
    [
        ["def f():\n", "    return", "\t1\r\n"],
        ["a  b", "   ", "c"],
        ["👩", "\u200d", "👩‍👧", "e", "\u0301"],
        [" ", "x", " "],
        ["\ufeff", "\u2028", "\x00", "\x7f"],
        ["x", "", "y"],
        ['"', "\\", "\\n", "data: [DONE]\n\n"],
    ],
)
def test_deltas_joined_equal_the_text_byte_for_byte(deltas: list[str]) -> None:
    events = [ROLE, *(chunk(piece(content=delta)) for delta in deltas), chunk(piece(finish="stop"))]
    assert as_json(*events)["choices"][0]["message"]["content"] == "".join(deltas)


@given(TEXT, st.data())
def test_text_comes_back_the_same_from_either_form(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    deltas = [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]
    field = data.draw(st.sampled_from(["content", "reasoning", "reasoning_content", "refusal"]))
    events = [ROLE, *(chunk({**piece(), "delta": {field: delta}}) for delta in deltas), chunk(piece(finish="stop"))]
    assert as_json(*events)["choices"][0]["message"][field] == text

    told = events_of(replay(kept(answer(choice(content=text))), STREAM))
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in told) == text

    texts = [{"choices": [{"index": 0, "text": delta, "finish_reason": None}]} for delta in deltas]
    end = {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}
    assert as_json(*texts, end, asked=completion(stream=True))["choices"][0]["text"] == text


# Usage


@pytest.mark.parametrize("streamed", [True, False])
def test_usage_follows_the_clients_wish_on_a_hit(streamed: bool) -> None:
    usage = USAGE["usage"]
    found = entry(whole(recorded(stream(*HELLO, USAGE)), STREAM)) if streamed else kept(
        answer(choice(content="Hello"), usage=usage)
    )  # fmt: skip
    told = events_of(replay(found, STREAM_USAGE))
    assert (told[-1]["choices"], told[-1]["usage"]) == ([], usage)
    assert not any(event.get("usage") for event in told[:-1])
    assert not any("usage" in event for event in events_of(replay(found, STREAM)))
    body = replay(found, CHAT)
    assert body is not None
    assert json.loads(body)["usage"] == usage


def test_usage_that_was_never_told_is_not_made_up() -> None:
    assert as_json(*HELLO)["usage"] is None
    assert len(events_of(replay(kept(answer(choice(content="x"))), STREAM_USAGE))) == 2


# What has no other form


@pytest.mark.parametrize(
    "events",
    [
        [chunk(piece(content="x", mood="glad")), chunk(piece(mood="sad"))],
        [chunk(piece(content="x"), seen=[1]), chunk(seen=[2])],
        [chunk({**piece(content="x"), "score": 1}), chunk({**piece(), "score": 2})],
        [chunk({**piece(content="x"), "score": 1}), chunk({**piece(), "score": "1"})],
        [chunk(piece(content="x", audio={"data": "a"})), chunk(piece(audio={"data": "b"}))],
        [chunk(piece(content="x")), {**chunk(piece(content="y")), "id": "c2"}],
        [call(0, id="a"), call(0, id="b")],
        [chunk(piece(content="x")), chunk(piece(content=["y"]))],
    ],
)
def test_fields_that_disagree_leave_a_stream_and_no_json(events: list[Any]) -> None:
    events = [ROLE, *events, chunk(piece(finish="stop"))]
    recording = whole(recorded(stream(*events)), STREAM)
    assert replay(entry(recording), CHAT) is None
    assert replay(entry(recording), STREAM) == stream(*events)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\xff", b"[]", b"{}", b'{"choices":null}', b'{"choices":[{}]}', b'{"choices":[1]}',
        b'{"choices":{"a":1}}', b'{"choices":[{"index":0,"message":"x"}]}',
        b'{"choices":[{"message":{"content":"x"}}]}',
        b'{"choices":[{"index":0,"message":{"tool_calls":[1]}}]}', b'{"choices":' + b"[" * 10**5,
    ],
)  # fmt: skip
def test_a_body_that_cannot_be_taken_apart_is_a_miss_for_a_stream(body: bytes) -> None:
    found = entry(Recording(body=body, stream=None, prompt_tokens=0, completion_tokens=0))
    assert replay(found, STREAM) is None
    assert replay(found, CHAT) == body


@settings(max_examples=300)
@given(ODD_EVENT | JSON, st.sampled_from([STREAM, STREAM_USAGE, completion(stream=True)]))
def test_no_body_raises_anything_when_it_is_replayed(body: Any, asked: Request) -> None:
    stored = json.dumps(body).encode()
    found = entry(Recording(body=stored, stream=None, prompt_tokens=0, completion_tokens=0))
    sent = replay(found, asked)
    assert sent is None or sent.endswith(DONE)


MESSAGE: Final = st.fixed_dictionaries(
    {"content": TEXT},
    optional={
        "reasoning": TEXT,
        "refusal": TEXT,
        "vendor": JSON,
        "tool_calls": st.just(CALLS),
        "annotations": st.lists(JSON),
    },
)


@given(st.lists(MESSAGE, min_size=1, max_size=3), JSON, JSON)
def test_any_json_answer_comes_back_from_a_stream(messages: list[Any], beside: Any, usage: Any) -> None:
    choices = [choice(index, **message, beside={"score": beside}) for index, message in enumerate(messages)]
    body = answer(*choices, vendor=beside)
    assert bare(there_and_back(body, chat(n=len(messages)))) == bare(body)


@given(st.lists(st.sampled_from([0, 1]), max_size=12), st.data())
def test_any_mixture_of_choices_comes_back_as_it_was_sent(order: list[int], data: st.DataObject) -> None:
    texts = ["", ""]
    events = [chunk(piece(0, content="-"), piece(1, content="-"))]
    for index in order:
        delta = data.draw(TEXT)
        texts[index] += delta
        events.append(chunk(piece(index, content=delta)))
    events.append(chunk(piece(0, "stop"), piece(1, "stop")))
    asked = chat(stream=True, n=2)
    recording = whole(recorded(stream(*events)), asked)
    assert replay(entry(recording), asked) == b"".join(map(frame, events)) + DONE
    got = in_json(recording)["choices"]
    assert [one["message"]["content"] for one in got] == [f"-{text}" for text in texts]
