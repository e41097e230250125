"""A stream that breaks off anywhere and goes on at another engine is the stream that would have come unbroken."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.endpoints.chat import CHAT, CHAT_CHOICES
from router.core.endpoints.completions import COMPLETIONS
from router.core.endpoints.continuation.continuation_body import remaining_tokens, request_by_ids
from router.core.endpoints.continuation.continued_stream import DIVERGED, ContinuedRecorder, end_locally
from router.core.endpoints.continuation.stream_so_far import held_back_chars, read_so_far
from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.recording.choices_recorder import ChoicesRecorder
from router.core.endpoints.recording.recorded_response import RecordedResponse
from router.core.endpoints.recording.sse import split_events
from router.core.endpoints.recording.token_ids import TokenIdCutter
from router.core.endpoints.requests.request import parse_request
from tests.support.examples import EXAMPLES
from tests.support.factories import choice_delta, encode_event
from tests.support.toy_model import PROMPT_IDS, ToyModel, stream_bytes

LIMIT = 1 << 20
CONTEXT = 4096


def request_of(*, chat: bool, max_tokens: int | None, stop: list[str]) -> InferenceRequest:
    body: dict[str, Any] = {"model": "m", "stream": True, "temperature": 0, "top_p": 0.9}
    body |= {"messages": [{"role": "user", "content": "x"}]} if chat else {"prompt": "x"}
    body |= {"max_tokens": max_tokens} if max_tokens is not None else {}
    body |= {"stop": stop} if stop else {}
    return parse_request(CHAT if chat else COMPLETIONS, json.dumps(body).encode())


def new_recorder(request: InferenceRequest, *, ids: bool = True) -> ChoicesRecorder:
    assert request.endpoint.streaming is not None
    recorder = request.endpoint.streaming.make_recorder(LIMIT, None)
    assert isinstance(recorder, ChoicesRecorder)
    recorder.token_ids = TokenIdCutter() if ids else None
    return recorder


def pieces_of(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces: list[bytes] = []
    while data:
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def continue_until_done(
    model: ToyModel, request: InferenceRequest, recorder: ChoicesRecorder, cuts: list[int], groups: list[int],
    sizes: list[int],
) -> bytes:  # fmt: skip
    """What the client gets after the first engine: each further engine breaks off after so many bytes of `cuts`."""
    assert request.endpoint.streaming is not None
    choices_format = request.endpoint.streaming.choices_format
    assert choices_format is not None
    received = b""
    for number in range(len(cuts) + 1):
        so_far = read_so_far(recorder.parts, recorder.token_ids, held_back_chars(request.fields))
        assert not isinstance(so_far, str)
        if so_far.finish_reason is not None or remaining_tokens(request, so_far.tokens) == 0:
            return received + end_locally(recorder, choices_format, so_far)
        rest = request_by_ids(request, so_far, CONTEXT)
        assert rest is not None
        assert rest.endpoint is COMPLETIONS
        body = json.loads(rest.body)
        assert body["top_p"] == 0.9
        assert "messages" not in body
        events = model.steps(
            model.said(body["prompt"]), max_tokens=body["max_tokens"], stop=body.get("stop", []), groups=groups
        )
        data = stream_bytes(events, chat=False, id_=f"other-{number}", created=9, prompt=body["prompt"])
        stream = ContinuedRecorder(recorder, choices_format, so_far, by_ids=True)
        for piece in pieces_of(data[: cuts[number] if number < len(cuts) else None], sizes):
            received += stream.feed(piece)
        assert stream.failure is None
        if stream.ended:
            return received
    raise AssertionError("the last engine does not break off")


answers = st.text(alphabet='ab "\\\nö🙂', min_size=1, max_size=24)


@settings(max_examples=3 * EXAMPLES, deadline=None)
@given(
    answer=answers,
    chat=st.booleans(),
    token_sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    groups=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    max_tokens=st.one_of(st.none(), st.integers(1, 30)),
    stop=st.lists(st.text(alphabet="ab ö", min_size=1, max_size=3), max_size=2),
    cuts=st.lists(st.integers(1, 3000), min_size=1, max_size=3),
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=3),
)
def test_a_stream_that_breaks_off_anywhere_gives_the_same_response(
    answer: str, chat: bool, token_sizes: list[int], groups: list[int], max_tokens: int | None, stop: list[str],
    cuts: list[int], sizes: list[int],
) -> None:  # fmt: skip
    model = ToyModel(answer, token_sizes)
    request = request_of(chat=chat, max_tokens=max_tokens if chat else max_tokens or 30, stop=stop)
    events = model.steps(0, max_tokens=request.max_tokens or 10**6, stop=stop, groups=groups)
    data = stream_bytes(events, chat=chat, id_="first", created=1, prompt=PROMPT_IDS)
    whole = new_recorder(request, ids=False)
    whole_bytes = whole.feed(stream_bytes(events, chat=chat, id_="first", created=1, prompt=PROMPT_IDS, with_ids=False))
    recorder = new_recorder(request)
    received = b"".join(recorder.feed(piece) for piece in pieces_of(data[: cuts[0]], sizes))
    if not recorder.started:
        return  # nothing has been published: another engine takes over
    if not recorder.ended:
        if isinstance(read_so_far(recorder.parts, recorder.token_ids, held_back_chars(request.fields)), str):
            return  # only events without text
        received += continue_until_done(model, request, recorder, cuts[1:], groups, sizes)
    assert text_of(received) == text_of(whole_bytes)
    assert envelope_of(received) == envelope_of(whole_bytes)
    assert recorder.is_complete
    assert recorder.usage == whole.usage
    if groups == [1]:
        assert without_empty_events(received) == without_empty_events(whole_bytes)
        usage_frames = [each.final_frames(include_usage=True) for each in (recorder, whole)]
        assert len(set(usage_frames)) == 1 or b'"usage"' in usage_frames[0]
    recorded, expected = recorder.recorded_response(request), whole.recorded_response(request)
    if isinstance(expected, RecordedResponse):
        assert isinstance(recorded, RecordedResponse)
        assert json.loads(recorded.body)["choices"] == json.loads(expected.body)["choices"]
        assert json.loads(recorded.body)["usage"] == json.loads(expected.body)["usage"]
    else:
        assert recorded is expected


def events_of(received: bytes) -> list[dict[str, Any]]:
    return [json.loads(each.removeprefix(b"data: ")) for each in received.split(b"\n\n") if each]


def without_empty_events(received: bytes) -> list[bytes]:
    # An event of the first half of a character has no text. At the seam, there may be one less.
    frames = received.split(b"\n\n")
    return [
        each
        for each in frames
        if not (b'"finish_reason":null' in each and (b'"text":""' in each or b'{"content":""}' in each))
    ]


def text_of(received: bytes) -> str:
    choices = [event["choices"][0] for event in events_of(received)]
    return "".join(choice["delta"].get("content", "") if "delta" in choice else choice["text"] for choice in choices)


def envelope_of(received: bytes) -> tuple[Any, ...]:
    """What there is once or the same in all events: the heads, the roles, the finish reasons."""
    events = events_of(received)
    heads = {(event["id"], event["object"], event["created"], event["model"]) for event in events}
    choices = [event["choices"][0] for event in events]
    roles = [choice["delta"]["role"] for choice in choices if "role" in choice.get("delta", {})]
    reasons = [(choice["finish_reason"], choice.get("stop_reason")) for choice in choices if choice["finish_reason"]]
    ids = {json.dumps(each.get("token_ids")) for each in (*events, *choices)}
    return heads, roles, reasons, ids, {str(event.get("prompt_token_ids")) for event in events}


def test_comments_of_the_engine_that_goes_on_are_passed_on_from_its_first_token_on() -> None:
    request = request_of(chat=True, max_tokens=None, stop=[])
    events = ToyModel("abc", [1]).steps(0, max_tokens=10, stop=[], groups=[1])
    frames = split_events(stream_bytes(events, chat=True, id_="first", created=1, prompt=PROMPT_IDS))
    recorder = new_recorder(request)
    recorder.feed(b"".join(frames[:2]))
    so_far = read_so_far(recorder.parts, recorder.token_ids)
    assert not isinstance(so_far, str)
    choices_format = CHAT.streaming.choices_format if CHAT.streaming is not None else None
    assert choices_format is not None
    stream = ContinuedRecorder(recorder, choices_format, so_far, by_ids=False)
    ping = b": ping\n\n"
    assert stream.feed(ping) == b""
    assert stream.feed(frames[2]).startswith(b"data: ")
    assert stream.feed(ping) == ping
    assert recorder.parts is not None
    assert ping not in recorder.parts.parts


def test_half_a_pair_of_surrogates_of_the_engine_that_goes_on_is_passed_on() -> None:
    request = request_of(chat=True, max_tokens=None, stop=[])
    recorder = new_recorder(request, ids=False)
    head = '{"id":"first","object":"chat.completion.chunk","created":1,"model":"m",'
    event = 'data: %s"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n'
    recorder.feed((event % (head, "a")).encode())
    so_far = read_so_far(recorder.parts, None)
    assert not isinstance(so_far, str)
    choices_format = CHAT.streaming.choices_format if CHAT.streaming is not None else None
    assert choices_format is not None
    stream = ContinuedRecorder(recorder, choices_format, so_far, by_ids=False)
    halves = [
        stream.feed((event % (head.replace("first", "second"), half)).encode()) for half in ("\\ud83d", "\\ude00")
    ]
    texts = [json.loads(half[6:])["choices"][0]["delta"]["content"] for half in halves]
    assert "".join(texts).encode("utf-16", "surrogatepass").decode("utf-16") == "\U0001f600"
    assert all(b'"first"' in half for half in halves)
    assert stream.failure is None


@pytest.mark.parametrize(
    "error",
    [b'data: {"error":"no"}\n\n', b'data: {"object":"error"}\n\n', b"error: {}\n\n", b"event: error\ndata: {}\n\n"],
)
def test_an_error_of_the_engine_that_goes_on_is_no_event_for_the_client(error: bytes) -> None:
    request = request_of(chat=True, max_tokens=None, stop=[])
    recorder = new_recorder(request, ids=False)
    recorder.feed(b'data: {"id":"first","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n')
    so_far = read_so_far(recorder.parts, None)
    assert not isinstance(so_far, str)
    choices_format = CHAT.streaming.choices_format if CHAT.streaming is not None else None
    assert choices_format is not None
    stream = ContinuedRecorder(recorder, choices_format, so_far, by_ids=False)
    assert stream.feed(error) == b""
    assert stream.failure is not None
    assert stream.failure in error


def test_a_stream_that_lacks_only_its_end_keeps_the_usage_that_its_engine_sent() -> None:
    request = request_of(chat=True, max_tokens=None, stop=[])
    model = ToyModel("ab", [1])
    events = model.steps(0, max_tokens=10, stop=[], groups=[1])
    data = stream_bytes(events, chat=True, id_="first", created=1, prompt=PROMPT_IDS)
    data = data.replace(b'"usage":{', b'"usage":{"prompt_tokens_details":{"cached_tokens":2},')
    recorder = new_recorder(request)
    recorder.feed(data.removesuffix(b"data: [DONE]\n\n"))
    so_far = read_so_far(recorder.parts, recorder.token_ids)
    assert not isinstance(so_far, str)
    choices_format = CHAT.streaming.choices_format if CHAT.streaming is not None else None
    assert choices_format is not None
    assert end_locally(recorder, choices_format, so_far) == b""
    assert recorder.is_complete
    assert b'"cached_tokens":2' in recorder.final_frames(include_usage=True)


@pytest.mark.parametrize(
    ("delta", "other_fields", "passes"),
    [
        ({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}, ("tool_calls",), True),
        ({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}, (), False),
        ({"reasoning": "Hm"}, ("tool_calls",), False),
        ({"reasoning": "Hm"}, ("tool_calls", "reasoning"), True),
    ],
)
def test_deltas_may_have_other_fields_than_text_only_if_they_are_named(
    delta: dict[str, Any], other_fields: tuple[str, ...], passes: bool
) -> None:
    request = request_of(chat=True, max_tokens=None, stop=[])
    recorder = new_recorder(request, ids=False)
    head = {"id": "first", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    recorder.feed(encode_event({**head, "choices": [choice_delta(content="a")]}))
    so_far = read_so_far(recorder.parts, None)
    assert not isinstance(so_far, str)
    stream = ContinuedRecorder(recorder, CHAT_CHOICES, so_far, by_ids=False, other_fields=other_fields)
    event = {**head, "choices": [choice_delta(**delta)]}
    assert stream.feed(encode_event({**event, "id": "second"})) == (encode_event(event) if passes else b"")
    assert (stream.started, stream.failure) == ((True, None) if passes else (False, DIVERGED))
