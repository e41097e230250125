"""A JSON response replayed as a stream: every field is in its place, nested values unchanged."""

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.endpoints.chat import CHAT
from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.recording.recorded_response import RecordedResponse
from router.core.endpoints.recording.replay import replay
from router.core.endpoints.recording.sse import DONE, split_events
from tests.support.factories import JSON_VALUES, TEXTS, completion, entry_from
from tests.support.replay_helpers import STREAM, STREAM_USAGE, TOOL_CALLS, chat_response, response_choice, stream_events

COMPLETION: Final = completion(stream=True, stream_options={"include_usage": True})


def streamed(body: bytes, inference_request: InferenceRequest = STREAM_USAGE) -> bytes | None:
    entry = entry_from(RecordedResponse(body=body, stream=None, prompt_tokens=0, completion_tokens=0))
    return replay(entry, inference_request)


def events(body: Any, inference_request: InferenceRequest = STREAM_USAGE) -> list[Any]:
    return stream_events(streamed(body if isinstance(body, bytes) else json.dumps(body).encode(), inference_request))


def expected(body: dict[str, Any], inference_request: InferenceRequest = STREAM_USAGE) -> list[Any]:
    """The events that a response must give, computed in the simplest way."""
    is_chat = inference_request.endpoint is CHAT
    named = {"object": "chat.completion.chunk" if is_chat else "text_completion"}
    head = {"id": body.get("id"), "created": body.get("created"), "model": body.get("model"), **named}
    openings, deltas = [], []
    for choice in body["choices"]:
        deltas.append({**choice})
        if is_chat:
            message = deltas[-1].pop("message")
            delta = {name: value for name, value in message.items() if name != "role" and value is not None}
            if delta.get("tool_calls"):
                delta["tool_calls"] = [{"index": at, **call} for at, call in enumerate(delta["tool_calls"])]
            deltas[-1]["delta"] = delta
            role = {"role": message.get("role") or "assistant", "content": ""}
            openings.append({"index": choice["index"], "delta": role, "logprobs": None, "finish_reason": None})
    events: list[Any] = [{**head, "choices": [piece]} for piece in openings + deltas]
    known = {*head, "choices", "usage"}
    if deltas:
        events[-1] |= {name: value for name, value in body.items() if name not in known and value is not None}
    if body.get("usage") is not None:
        events.append({**head, "choices": [], "usage": body["usage"]})
    return events


CALL: Final = st.fixed_dictionaries(
    {}, optional={"id": TEXTS, "index": st.integers(0, 9), "function": JSON_VALUES, "vendor": JSON_VALUES}
)
MESSAGE: Final = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["assistant", "tool", "", None]),
        "content": TEXTS | st.none() | JSON_VALUES,
        "tool_calls": st.lists(CALL, max_size=3) | st.none(),
        "vendor": JSON_VALUES,
        'é "\n': JSON_VALUES,
    },
)
BESIDE: Final = {"logprobs": JSON_VALUES, "finish_reason": JSON_VALUES, "token_ids": JSON_VALUES, "vendor": JSON_VALUES}
CHOICE: Final = st.fixed_dictionaries({"index": st.integers(0, 9), "message": MESSAGE}, optional=BESIDE)
PIECE: Final = st.fixed_dictionaries({"index": st.integers(0, 9), "text": TEXTS}, optional=BESIDE)
TOP: Final = dict.fromkeys(
    ("id", "object", "created", "model", "usage", "prompt_logprobs", "vendor", 'é "\n'), JSON_VALUES
)


@given(st.data(), st.sampled_from([STREAM_USAGE, COMPLETION]), st.sampled_from([None, 1]), st.booleans())
def test_each_field_of_any_response_is_in_its_place(
    data: st.DataObject, inference_request: InferenceRequest, indent: int | None, escaped: bool
) -> None:
    choices = st.lists(CHOICE if inference_request.endpoint is CHAT else PIECE, max_size=3)
    body = data.draw(st.fixed_dictionaries({"choices": choices}, optional=TOP))
    written = json.dumps(body, indent=indent, ensure_ascii=escaped)
    assert events(written.encode(), inference_request) == expected(body, inference_request)


def test_an_unknown_field_stays_at_its_level() -> None:
    calls = [
        {**TOOL_CALLS[0], "mood": "call", "function": {"name": "f", "arguments": "{}", "mood": "function"}},
        TOOL_CALLS[1],
    ]
    one = response_choice(
        0, content="a", mood="message", tool_calls=calls, beside={"mood": "choice", "logprobs": {"mood": 1}}
    )
    usage = {"prompt_tokens": 1, "mood": "usage"}
    replayed_events = events(chat_response(one, response_choice(1, content="b"), mood="answer", usage=usage))
    first, second = (event["choices"][0] for event in replayed_events[2:4])
    assert [event.get("mood") for event in replayed_events] == [None, None, None, "answer", None]
    assert (first["mood"], first["logprobs"], first["delta"]["mood"]) == ("choice", {"mood": 1}, "message")
    assert [call.get("mood") for call in first["delta"]["tool_calls"]] == ["call", None]
    assert first["delta"]["tool_calls"][0]["function"] == calls[0]["function"]
    assert (second["index"], second["delta"]) == (1, {"content": "b"})
    assert replayed_events[-1]["usage"] == usage


@pytest.mark.parametrize(
    "number", ["1.0", "1.10", "-0", "1E5", "1e400", "0.1000000000000000055511151231257827", "9" * 40, "9" * 5000]
)
def test_a_number_inside_a_message_or_the_usage_keeps_its_spelling(number: str) -> None:
    body = (
        f'{{"choices":[{{"index":0,"message":{{"content":"x","score":{number},"deep":[{{"score":{number}}}]}},'
        f'"logprobs":{{"content":[{number}]}}}}],"usage":{{"score":{number}}}}}'
    )
    sent = streamed(body.encode())
    assert sent is not None
    assert sent.count(f'"score":{number}'.encode()) == 3
    assert f'"logprobs":{{"content":[{number}]}}'.encode() in sent


@pytest.mark.parametrize(
    ("number", "replayed_number"), [("1.0", "1.0"), ("-7", "-7"), ("0.1", "0.1"), ("9" * 40, "9" * 40)]
)
def test_a_number_beside_a_message_keeps_its_value_and_kind(number: str, replayed_number: str) -> None:
    body = f'{{"choices":[{{"index":0,"message":{{}},"score":{number}}}],"score":{number}}}'
    assert (streamed(body.encode()) or b"").count(f'"score":{replayed_number}'.encode()) == 2


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_response_of_several_lines_becomes_events_of_one_line_each(end: str) -> None:
    one = response_choice(
        content="a\r\nb  c", tool_calls=TOOL_CALLS, vendor=[1, [2, {}]], beside={"logprobs": {"content": [{}]}}
    )
    body = chat_response(one, vendor={"a": [1]}, usage={"details": {"a": 1}})
    sent = streamed(json.dumps(body, indent=2).replace("\n", end).encode() + end.encode())
    assert sent is not None
    assert sent.count(b"\n") == 2 * len(split_events(sent))
    assert b"\r" not in sent
    assert stream_events(sent) == expected(body)


@pytest.mark.parametrize("text", ["é ✓ 👩‍👧", '\u2028"\\\n\x00', "data: [DONE]\n\n"])
@pytest.mark.parametrize("escaped", [True, False])
def test_text_keeps_its_spelling(text: str, escaped: bool) -> None:
    written = json.dumps(text, ensure_ascii=escaped)
    sent = streamed(f'{{"choices":[{{"index":0,"message":{{"content":{written}}}}}]}}'.encode())
    assert sent is not None
    assert f'"delta":{{"content":{written}}}'.encode() in sent
    assert len(split_events(sent)) == 3


def test_null_in_a_message_or_beside_the_choices_is_omitted() -> None:
    one = response_choice(content=None, refusal=None, tool_calls=None, beside={"stop_reason": None})
    replayed_events = events(chat_response(one, service_tier=None, usage=None))
    assert replayed_events == expected(chat_response(response_choice(beside={"stop_reason": None})))
    assert replayed_events[1]["choices"] == [{"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": None}]


@pytest.mark.parametrize("message", [{}, {"role": None}, {"role": ""}, {"role": "assistant"}])
def test_the_default_role_is_the_assistant(message: dict[str, Any]) -> None:
    replayed_events = events(chat_response({"index": 0, "message": message}))
    assert [event["choices"][0]["delta"] for event in replayed_events] == [{"role": "assistant", "content": ""}, {}]


@pytest.mark.parametrize("calls", [[], "", 0, False, {}])
def test_invalid_tool_calls_are_replayed_unchanged(calls: Any) -> None:
    assert events(chat_response(response_choice(tool_calls=calls)))[1]["choices"][0]["delta"] == {"tool_calls": calls}


def test_a_call_that_has_an_index_keeps_it() -> None:
    replayed_events = events(chat_response(response_choice(tool_calls=[{"id": "a", "index": 4}, {"id": "b"}])))
    assert [call["index"] for call in replayed_events[1]["choices"][0]["delta"]["tool_calls"]] == [4, 1]


def test_a_response_without_choices_has_only_its_usage_and_its_end() -> None:
    assert streamed(json.dumps(chat_response(vendor=1)).encode(), STREAM) == DONE
    assert [event["choices"] for event in events(chat_response(usage={"prompt_tokens": 1}))] == [[]]


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices":{}}', b'{"choices":""}', b'{"choices":"x"}', b'{"choices":[null]}', b'{"choices":[[]]}',
        b'{"choices":[{"index":0,"message":null}]}', b'{"choices":[{"index":0,"message":[]}]}',
        b'{"choices":[{"index":0,"message":{"tool_calls":"x"}}]}',
        b'{"choices":[{"index":0,"message":{"tool_calls":{"a":1}}}]}',
        b'{"choices":[{"index":0,"message":{"tool_calls":[[]]}}]}',
        b'{"choices":[{"index":0,"message":{"content":"x}}]}', b'{"choices":[{"index":0,"message":{"content":"x"}}]',
        b'{"choices":[{"index":0,"message":{"content":"x"}}]}}',
        b'{"choices":[{"index":0,"message":{"content":"\t"}}]}',
        b'{"choices":[{"index":0,"message":{"content":"\\ud800"}}]}',
        b'{"choices":[{"index":0,"message":{"content":"\\x00"}}]}',
        b'{"choices":[{"index":0,"message":{"content":"\n"}}]}',
        b'{"choices":[{"index":0,"message":{"deep":[1,{"a":]}}]}', b'{"choices":[{"index":0,"message":{"deep":01}}]}',
        b'{"choices":[{"index":0,"message":{"deep":NaN}}]}',
        b'{"choices":[{"index":0,"message":{"deep":' + b"[" * 10**5,
        b'{\n"choices":[{"index":0,"message":{"deep":' + b"[" * 10**5,
    ],
)  # fmt: skip
def test_an_invalid_response_has_no_stream(body: bytes) -> None:
    assert streamed(body) is None
