"""What a client has of a stream with calls of tools."""

from typing import Any

import pytest

from router.core.endpoints.continuation.published_events import PublishedCall, calls_of, read_events
from router.core.endpoints.recording.delta_template import StreamParts
from tests.support.factories import chat_event, choice_delta, encode_event


def calls_in(*tool_calls: dict[str, Any]) -> list[PublishedCall]:
    parts = StreamParts()
    for call in tool_calls:
        parts.append(encode_event(chat_event(choice_delta(tool_calls=[call]))))
    events, _ = read_events(parts)
    assert len(events) == len(tool_calls), "ids of tokens are counted by events"
    return calls_of(events)


def begun(index: int, name: str = "f", arguments: str | None = "") -> dict[str, Any]:
    return {"id": f"c{index}", "type": "function", "index": index, "function": {"name": name, "arguments": arguments}}


def more(index: int, *pieces: str) -> list[dict[str, Any]]:
    return [{"index": index, "function": {"arguments": piece}} for piece in pieces]


def test_the_arguments_of_calls_are_joined_by_their_index() -> None:
    said = calls_in(begun(0), *more(0, '{"a":', ' "\\"x', "\u00e9", '"}'), begun(1, "g", None), *more(1, *"{}" * 20))
    assert said == [PublishedCall(0, "f", '{"a": "\\"x\u00e9"}'), PublishedCall(1, "g", "{}" * 20)]


def test_events_that_differ_in_their_tool_are_not_taken_for_arguments() -> None:
    calls = calls_in(*[{"index": 0, "function": {"name": name, "arguments": ""}} for name in "abcdefgh"])
    assert calls == [PublishedCall(0, "abcdefgh", "")]


@pytest.mark.parametrize(
    "call", [{}, "f", {"index": 0}, {"index": "0", "function": {}}, {"index": 0, "function": {"name": 5}}]
)
def test_a_call_in_another_form_is_one_that_no_parser_repeats(call: Any) -> None:
    assert calls_in(call) == [PublishedCall(-1, "", "")]
