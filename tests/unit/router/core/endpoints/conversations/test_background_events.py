import json
import os
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from router.core.endpoints.conversations.background_events import (
    MAX_LOG_SIZE,
    BackgroundEvents,
    EventLog,
    ended_events,
    events_after,
    failed_event,
)
from router.core.endpoints.recording.sse import payload, split_events
from router.errors import ApiError
from router.shared.inflight.stream_writer import MAX_STREAM_BYTES

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
            assert log.after(number) == b"".join(events_after(log.compressed(), number)) == b"".join(seen[number + 1 :])


def test_a_log_beyond_its_size_has_the_first_event_and_the_last_one() -> None:
    events = BackgroundEvents("resp_1", "")
    first, large = (
        events.feed(CREATED),
        events.feed(b'data: {"type":"x","text":"%b"}\n\n' % os.urandom(1 << 16).hex().encode()),
    )
    last = events.feed(DELTA + COMPLETED)
    log = EventLog(1000)
    for part in (first, large, last):
        log.append(part)
    assert (log.is_full, log.after(-1)) == (True, b"")
    found = decoded(b"".join(events_after(log.compressed(), -1)))
    assert [event["sequence_number"] for event in found] == [0, 3]
    assert decoded(b"".join(events_after(log.compressed(), 0))) == found[1:]


def test_a_log_whose_only_event_is_too_large_is_empty() -> None:
    log = EventLog(1000)
    log.append(b'data: {"text":"%b"}\n\n' % os.urandom(1 << 16).hex().encode())
    assert (log.is_full, log.compressed()) == (True, b"")


def test_a_log_is_bounded_before_it_is_compressed() -> None:
    log, event = EventLog(1 << 20), BackgroundEvents("resp_1", "").feed(CREATED)
    for _ in range(1 + MAX_LOG_SIZE // len(event)):
        log.append(event)
    assert log.is_full


def test_the_events_of_a_large_log_come_in_parts() -> None:
    log, events = EventLog(1 << 20), BackgroundEvents("resp_1", "")
    whole = b"".join([events.feed(CREATED + DELTA) for _ in range(5000)])
    log.append(whole)
    parts = list(events_after(log.compressed(), -1))
    assert b"".join(parts) == whole
    assert max(map(len, parts)) < len(whole) / 3
    later = list(events_after(log.compressed(), 7000))
    assert len(later) == len(parts)
    rest = b"".join(later)
    assert [event["sequence_number"] for event in decoded(rest)] == list(range(7001, 10000))


def test_a_stream_that_breaks_ends_with_the_response_so_far() -> None:
    events = BackgroundEvents("resp_1", "")
    events.feed(CREATED + DELTA)
    error = ApiError(502, "The engine is gone.")
    (failed,) = decoded(events.feed(failed_event(events.response or b"", error)))
    assert (failed["type"], failed["sequence_number"]) == ("response.failed", 2)
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "The engine is gone."}
    assert events.is_over


def test_events_are_made_for_a_response_whose_events_are_gone() -> None:
    first, last = decoded(ended_events(b'{"id":"resp_1","status":"cancelled"}', -1))
    assert (first["type"], first["response"]["status"], first["sequence_number"]) == (
        "response.created", "in_progress", 0,
    )  # fmt: skip
    response = {"id": "resp_1", "status": "cancelled"}
    assert last == {"type": "response.cancelled", "sequence_number": 1, "response": response}
    assert decoded(ended_events(b'{"id":"resp_1","status":"cancelled"}', 7)) == [{**last, "sequence_number": 8}]


def test_what_is_kept_fits_twice_in_the_stream_of_a_follower() -> None:
    assert 2 * MAX_LOG_SIZE <= MAX_STREAM_BYTES
