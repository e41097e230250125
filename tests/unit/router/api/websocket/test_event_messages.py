"""A stream of events as messages."""

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from router.api.websocket.event_messages import EventMessages, prepare_response

CREATED = b'{"type":"response.created","response":{"id":"resp_1","output":[]}}'
DELTA = b'{"type":"response.output_text.delta","delta":"a"}'
COMPLETED = b'{"type":"response.completed","response":{"id":"resp_1","output":[{"x":1}]}}'
STREAM = (
    b": ping\n\nevent: response.created\ndata: %b\n\ndata: %b\r\n\r\n: ping\n\nevent: response.completed\n"
    b"data: %b\n\ndata: [DONE]\n\n" % (CREATED, DELTA, COMPLETED)
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=6))
def test_the_messages_are_the_data_of_the_events_wherever_the_stream_is_cut(cuts: list[int]) -> None:
    messages = EventMessages()
    at = [0, *sorted(cuts), len(STREAM)]
    texts = [text for begin, end in pairwise(at) for text in messages.feed(STREAM[begin:end])]
    assert texts == [CREATED, DELTA, COMPLETED]
    assert messages.has_ended
    assert messages.final is not None
    assert (messages.final.id, bytes(messages.final.output)) == ("resp_1", b'[{"x":1}]')


def test_a_failure_ends_the_response_and_leaves_none() -> None:
    for data in (b'{"type":"response.failed","response":{}}', b'{"type":"error","code":"x"}', b'{"error":{}}'):
        messages = EventMessages()
        assert messages.feed(b"data: %b\n\n" % data) == [data]
        assert (messages.has_ended, messages.final) == (True, None)


def test_events_of_another_form_are_passed_on() -> None:
    messages = EventMessages()
    for data in (b"text", b"[1]", b'{"type":7}', b'{"response":7}'):
        assert messages.feed(b"data: %b\n\n" % data) == [data]
    assert not messages.has_ended


def test_a_final_event_without_a_response_ends_it_all_the_same() -> None:
    messages = EventMessages()
    messages.feed(b'data: {"type":"response.completed"}\n\n')
    assert (messages.has_ended, messages.final) == (True, None)


def test_a_prepared_response_is_empty_and_complete() -> None:
    prepared = prepare_response("resp_1", "llama")
    created, completed = (json.loads(text) for text in prepared.messages)
    assert (created["type"], created["response"]["status"]) == ("response.created", "in_progress")
    assert (completed["type"], completed["response"]["status"]) == ("response.completed", "completed")
    assert completed["response"]["id"] == created["response"]["id"] == "resp_1"
    assert completed["response"]["usage"]["total_tokens"] == 0
