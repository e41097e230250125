import json
import os
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from router.core.endpoints.conversations.background_events import (
    BackgroundEvents,
    EventLog,
    ended_event,
    events_after,
    failed_event,
)
from router.core.endpoints.recording.sse import payload, split_events
from router.errors import ApiError

CREATED = b'event: response.created\ndata: {"type":"response.created","response":{"id":"e","status":"in_progress"}}\n\n'
DELTA = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"a"}\n\n'
COMPLETED = (
    b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"e","status":"completed"}}\n\n'
)
STREAM = (
    b": comment\n\n" + CREATED + DELTA + b"data: nonsense\n\ndata: {}\n\n" + DELTA + COMPLETED + b"data: [DONE]\n\n"
)


def decoded(events: bytes) -> list[dict[str, Any]]:
    return [json.loads(payload(event) or b"") for event in split_events(events)]


def test_events_get_the_id_that_the_client_knows_and_numbers_without_a_gap() -> None:
    events = BackgroundEvents("resp_1", "resp_0")
    found = decoded(events.feed(STREAM))
    assert [event["sequence_number"] for event in found] == [0, 1, 2, 3]
    assert [event["type"] for event in found] == [
        "response.created", "response.output_text.delta", "response.output_text.delta", "response.completed",
    ]  # fmt: skip
    own = {"id": "resp_1", "background": True, "previous_response_id": "resp_0"}
    assert found[0]["response"] == {**own, "status": "in_progress"}
    assert found[-1]["response"] == json.loads(events.response or b"") == {**own, "status": "completed"}
    assert events.is_over
    assert events.feed(DELTA) == b""


@given(st.lists(st.integers(0, len(STREAM))))
def test_the_events_are_the_same_wherever_the_stream_is_cut(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    events = BackgroundEvents("resp_1", "")
    parts = [events.feed(STREAM[start:end]) for start, end in pairwise(places)]
    assert b"".join(parts) == BackgroundEvents("resp_1", "").feed(STREAM)


def test_the_log_has_all_events_after_any_number_at_any_time() -> None:
    log, events = EventLog(1000), BackgroundEvents("resp_1", "")
    seen: list[bytes] = []
    for event in (CREATED, DELTA, DELTA, COMPLETED):
        seen.append(events.feed(event))
        log.append(seen[-1])
        for number in range(-1, 5):
            assert log.after(number) == events_after(log.compressed(), number) == b"".join(seen[number + 1 :])


def test_a_log_beyond_its_size_is_empty() -> None:
    log = EventLog(1000)
    log.append(DELTA)
    log.append(os.urandom(1 << 16))
    assert log.is_full
    log.append(DELTA)
    assert (log.compressed(), log.after(-1)) == (b"", b"")


def test_a_stream_that_breaks_ends_with_the_response_so_far() -> None:
    events = BackgroundEvents("resp_1", "")
    events.feed(CREATED + DELTA)
    error = ApiError(502, "The engine is gone.")
    (failed,) = decoded(events.feed(failed_event(events.response or b"", error)))
    assert (failed["type"], failed["sequence_number"]) == ("response.failed", 2)
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "The engine is gone."}
    assert events.is_over


def test_an_event_is_made_for_a_response_whose_events_are_gone() -> None:
    (event,) = decoded(ended_event(b'{"id":"resp_1","status":"cancelled"}', 7))
    response = {"id": "resp_1", "status": "cancelled"}
    assert event == {"type": "response.cancelled", "sequence_number": 7, "response": response}
