"""Events that differ only in their text are merged; everything else stays unchanged."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.endpoints.chat import CHAT_CHOICES
from router.core.endpoints.chat_body import body_from_events
from router.core.endpoints.completions import COMPLETIONS_CHOICES
from router.core.endpoints.recording.choices import ChoicesFormat
from router.core.endpoints.recording.delta_template import StreamParts
from router.core.endpoints.recording.sse import payload, split_events
from tests.support.paths import FULL_CAPTURES


def body(choices_format: ChoicesFormat, payloads: list[bytes]) -> bytes | None:
    events = msgspec.json.decode(b"[%b]" % b",".join(payloads), type=list[dict[str, Any]])
    return body_from_events(choices_format, events, None)


def merged(choices_format: ChoicesFormat, payloads: list[bytes]) -> list[bytes]:
    """The payloads of a stream, in which each mergeable run is merged."""
    parts = StreamParts()
    for payload_ in payloads:
        frame = b"data: %b\n\n" % payload_
        if not parts.try_append(frame) and not parts.learn_template(frame):
            parts.append(frame)
    return [payload(frame) or b"" for frame in parts.merged_events(choices_format.may_merge)]


def event(choice: dict[str, Any], **beside: Any) -> bytes:
    """An event in vLLM's encoding: compact, and with the choices before other fields."""
    shaped = {"id": "c", "object": "x", "created": 1, "model": "m", "choices": [choice], **beside}
    return json.dumps(shaped, separators=(",", ":"), ensure_ascii=False).encode()


def text_event(text: str, *, index: int = 0, delta: dict[str, Any] | None = None, **rest: Any) -> bytes:
    return event({"index": index, "delta": {"content": text, **(delta or {})}, "finish_reason": None, **rest})


def test_consecutive_text_is_one_event() -> None:
    (one,) = merged(CHAT_CHOICES, [text_event("a"), text_event("\n"), text_event(' "b"'), text_event("é\\")])
    assert one == text_event('a\n "b"é\\')


def test_consecutive_reasoning_is_one_event() -> None:
    pieces = [event({"index": 0, "delta": {"reasoning": text}}) for text in ("I", " see")]
    assert merged(CHAT_CHOICES, pieces) == [event({"index": 0, "delta": {"reasoning": "I see"}})]


def test_consecutive_text_of_a_completion_is_one_event() -> None:
    pieces = [event({"index": 0, "text": text, "token_ids": None}) for text in ("def", " f", "():")]
    (one,) = merged(COMPLETIONS_CHOICES, pieces)
    assert one == event({"index": 0, "text": "def f():", "token_ids": None})


def test_the_order_of_choices_and_other_events_is_kept() -> None:
    other = event({"index": 0, "delta": {"tool_calls": []}})
    stream = [
        text_event("a"),
        text_event("b"),
        text_event("A", index=1),
        text_event("c"),
        other,
        text_event("d"),
        text_event("e", finish_reason="stop"),
    ]
    expected = [
        text_event("ab"),
        text_event("A", index=1),
        text_event("c"),
        other,
        text_event("d"),
        text_event("e", finish_reason="stop"),
    ]
    assert merged(CHAT_CHOICES, stream) == expected


@pytest.mark.parametrize(
    "same",
    [
        text_event("x", delta={"reasoning": "y"}),
        text_event("x", delta={"refusal": "y"}),
        text_event("x", token_ids=[5]),
        text_event("x", logprobs={"content": []}),
        text_event("x", vendor={"content": "z"}),
        event({"index": 0, "delta": {"reasoning": "y", "content": "x"}}),
        event({"index": 0, "delta": {"content": "x"}}, annotations=["z"]),
        event({"index": 0, "text": "y", "delta": {"content": "x"}}),
        event({"index": 0, "delta": {"content": None}}),
        b'{"vendor":{"choices":[{"index":0,"delta":{"content":"x"}}]},"choices":[]}',
        b'{"text":"y","choices":[{"index":0,"delta":{"content":"x"}}]}',
        b"not JSON",
    ],
)
def test_an_event_with_more_than_text_is_not_merged(same: bytes) -> None:
    assert merged(CHAT_CHOICES, [same, same]) == [same, same]


@pytest.mark.parametrize("choices_format", [CHAT_CHOICES, COMPLETIONS_CHOICES])
def test_an_empty_stream_stays_empty(choices_format: ChoicesFormat) -> None:
    assert merged(choices_format, []) == []


@pytest.mark.parametrize("path", sorted(FULL_CAPTURES.glob("*.sse")), ids=lambda path: path.stem)
def test_a_merged_stream_of_vllm_gives_the_same_response(path: Path) -> None:
    frames = [payload(frame) for frame in split_events(path.read_bytes()) if frame.startswith(b"data: {")]
    payloads = [data for data in frames if data is not None]
    choices_format = CHAT_CHOICES if "chat" in path.name else COMPLETIONS_CHOICES
    assert body(choices_format, merged(choices_format, payloads)) == body(choices_format, payloads)


texts = st.one_of(
    st.text(max_size=6), st.sampled_from(['"', "\\", "\n", "[DONE]", '},{"', "\\u0041", "\u2028", "{", "["])
)
deltas = st.fixed_dictionaries(
    {},
    optional={
        "content": st.one_of(st.none(), texts),
        "role": st.just("assistant"),
        "reasoning": st.one_of(st.none(), texts),
        "vendor": st.one_of(st.integers(0, 1), texts),
    },
)
choices = st.fixed_dictionaries(
    {"index": st.integers(0, 1), "delta": deltas},
    optional={
        "text": texts,
        "finish_reason": st.sampled_from([None, "stop"]),
        "token_ids": st.one_of(st.none(), st.lists(st.integers(0, 9), max_size=2)),
        "logprobs": st.one_of(st.none(), st.just({"content": [{"token": "a"}]})),
        "score": st.integers(0, 1),
    },
)
beside = st.fixed_dictionaries({}, optional={"service_tier": st.sampled_from([None, "a"]), "text": texts})


@given(st.lists(st.tuples(choices, beside), max_size=8), st.sampled_from([CHAT_CHOICES, COMPLETIONS_CHOICES]))
def test_any_stream_gives_the_same_response_merged_or_not(
    stream: list[tuple[dict[str, Any], dict[str, Any]]], choices_format: ChoicesFormat
) -> None:
    payloads = [event(choice, **more) for choice, more in stream for _ in range(2)]
    assert body(choices_format, merged(choices_format, payloads)) == body(choices_format, payloads)


@pytest.mark.parametrize("name", ["thinking", "partial_json"])
def test_a_text_of_another_endpoint_is_not_merged(name: str) -> None:
    same = event({"index": 0, "delta": {name: "x"}})
    assert merged(CHAT_CHOICES, [same, same]) == [same, same]


def test_numbered_events_are_not_merged() -> None:
    events = [event({"index": 0, "delta": {"content": "x"}}, sequence_number=number) for number in (1, 2)]
    assert merged(CHAT_CHOICES, events) == events
