"""From where another engine can go on with a stream, by what its first engine has sent."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from router.core.endpoints.chat import CHAT
from router.core.endpoints.completions import COMPLETIONS
from router.core.endpoints.continuation.continuation_body import request_by_ids
from router.core.endpoints.continuation.event_forms import MAX_LITERAL_EVENTS
from router.core.endpoints.continuation.stream_so_far import (
    StreamSoFar,
    find_obstacle,
    held_back_chars,
    may_be_complete,
    read_so_far,
)
from router.core.endpoints.recording.choices_recorder import ChoicesRecorder
from router.core.endpoints.recording.delta_template import StreamParts
from router.core.endpoints.recording.token_ids import TokenIdCutter
from router.core.endpoints.requests.request import parse_request

Delta = tuple[dict[str, str], list[int]]

PROMPT = [7, 8]
THOUGHTS: Sequence[Delta] = [({"reasoning": "Hm"}, [1]), ({"reasoning": ", a"}, [2, 3])]
ANSWER: Sequence[Delta] = [({"content": "word"}, [9]), ({"content": " more"}, [10])]


def event(choice: dict[str, Any], **more: Any) -> bytes:
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **more}
    return b"data: %b\n\n" % json.dumps(chunk, separators=(",", ":")).encode()


def read(deltas: Sequence[Delta]) -> StreamSoFar | str:
    assert CHAT.streaming is not None
    recorder = CHAT.streaming.make_recorder(1 << 20, None)
    assert isinstance(recorder, ChoicesRecorder)
    recorder.token_ids = TokenIdCutter()
    role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    recorder.feed(event(role, prompt_token_ids=PROMPT, prompt_text=None))
    for delta, ids in deltas:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, "token_ids": ids}
        recorder.feed(event(choice))
    return read_so_far(recorder.parts, recorder.token_ids)


@pytest.mark.parametrize(
    "turn",
    [
        [({"reasoning": "?"}, [4]), ({"content": "A "}, [5, 6])],
        [({"reasoning": "?", "content": "A "}, [4, 5, 6])],
    ],
    ids=["two steps", "one step"],
)
def test_reasoning_may_end_within_the_tokens_of_a_step(turn: Sequence[Delta]) -> None:
    """With speculative decoding, a step has several tokens, and vLLM sends one event for it."""
    so_far = read([*THOUGHTS, *turn, *ANSWER])
    assert isinstance(so_far, StreamSoFar)
    assert (so_far.text, so_far.unsettled, so_far.has_reasoning) == ("A word more", "", True)
    assert so_far.prompt_ids == b"7,8,1,2,3,4,5,6,9,10"
    assert (so_far.tokens, so_far.settled_tokens) == (8, 8)


def test_a_first_step_with_reasoning_and_text_is_reasoning_too() -> None:
    """By text alone, an engine would not know of it."""
    so_far = read([({"reasoning": "Hm.", "content": "A "}, [1, 2]), *ANSWER])
    assert isinstance(so_far, StreamSoFar)
    assert (so_far.text, so_far.has_reasoning) == ("A word more", True)


@pytest.mark.parametrize(
    ("stop", "characters"),
    [
        ("abc", 2),
        (["abc", "d"], 2),
        (["d"], 0),
        ([], 0),
        (None, 0),
        ("", 0),
        ([""], 0),
        (5, 0),
        ([5, "ab"], 1),
        ({}, 0),
    ],
)
def test_an_engine_holds_back_the_longest_stop_string_but_for_its_last_character(stop: Any, characters: int) -> None:
    """Anything else that it has accepted is none."""
    assert held_back_chars({"stop": stop}) == characters


def test_a_field_of_the_other_endpoint_does_not_matter() -> None:
    body = {"model": "m", "stream": True, "temperature": 0, "prompt": "x", "messages": "y", "max_tokens": 9}
    so_far = read(ANSWER)
    assert isinstance(so_far, StreamSoFar)
    assert request_by_ids(parse_request(COMPLETIONS, json.dumps(body).encode()), so_far, None) is not None


def test_a_stream_without_templates_is_read_up_to_a_bound() -> None:
    """Its events are decoded one by one, here since blanks hide the ids."""
    found = []
    for count in (MAX_LITERAL_EVENTS // 2, 2 * MAX_LITERAL_EVENTS):
        parts = StreamParts()
        for number in range(count):
            choice = {"index": 0, "delta": {"content": "a"}, "finish_reason": None, "token_ids": [number]}
            parts.append(b"data: %b\n\n" % json.dumps({"id": "c", "choices": [choice]}).encode())
        found.append(read_so_far(parts, TokenIdCutter()))
    assert isinstance(found[0], StreamSoFar)
    assert found[1] == "no-template"


@pytest.mark.parametrize(
    ("reason", "limit", "expected"),
    [(None, None, False), ("stop", None, True), (None, 5, False), (None, 4, True)],
)
def test_a_stream_whose_end_or_limit_was_reached_may_be_complete(
    reason: str | None, limit: int | None, expected: bool
) -> None:
    parts, cutter = StreamParts(), TokenIdCutter()
    for ids in ([1], [2, 3], [4]):
        choice = {"index": 0, "delta": {"content": "a"}, "finish_reason": reason if ids == [4] else None}
        parts.append(cutter.cut(event({**choice, "token_ids": ids})))
    assert may_be_complete(parts, cutter, limit) is expected


TOKEN = {"index": 0, "delta": {"content": "a"}, "finish_reason": None}
USED = {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}


@pytest.mark.parametrize(
    ("events", "obstacle"),
    [
        ([event(TOKEN)] * 3, "uncounted"),
        ([event(TOKEN, usage=USED)] * 3, None),
        ([event({**TOKEN, "token_ids": [1]}, prompt_token_ids=PROMPT)] * 3, None),
        ([event({**TOKEN, "token_ids": [1]})] * 3, "uncounted"),  # without those of the prompt
        ([event(TOKEN, n=number) for number in range(MAX_LITERAL_EVENTS + 50)], "no-template"),
    ],
    ids=["no counts", "usage", "ids", "ids without a prompt", "too many forms"],
)
def test_an_obstacle_that_takes_no_reading_is_one_that_reading_finds(events: list[bytes], obstacle: str | None) -> None:
    parts, cutter = StreamParts(), TokenIdCutter()
    for each in events:
        parts.append(cutter.cut(each))
    assert find_obstacle(parts, cutter) == obstacle
    so_far = read_so_far(parts, cutter)
    found = so_far if isinstance(so_far, str) else None if so_far.counted else "uncounted"
    assert found == obstacle
    assert find_obstacle(None, None) == read_so_far(None, None) == "too-large"
