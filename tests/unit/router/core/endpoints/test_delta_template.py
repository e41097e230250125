"""An event that differs from another only in its text is recognized, and no other event is."""

from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.core.endpoints.recording.delta_template import MAX_TEMPLATES, StreamParts, TemplateRun
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.recording.sse import DONE
from tests.support.endpoints import choices_recorder

from tests.support.factories import chat, chat_event, encode_event, replayed_frames, client_view, choice_delta  # isort: skip

LIMIT: Final = 1 << 20
END: Final = encode_event(chat_event(choice_delta(finish="stop")))


def event(text: bytes, *, before: bytes = b"", after: bytes = b"", name: bytes = b"content") -> bytes:
    """An event in vLLM's encoding, with any text."""
    choice = b'{"index":0,"delta":{"%b":"%b"},"logprobs":null%b,"finish_reason":null}' % (name, text, after)
    return b'data: {"id":"x",%b"choices":[%b]}\n\n' % (before, choice)


def parts_with_template(*events: bytes) -> StreamParts:
    matching = StreamParts()
    for one in events:
        matching.learn_template(one)
    return matching


@pytest.mark.parametrize("name", [b"content", b"text", b"reasoning", b"reasoning_content", b"arguments"])
@pytest.mark.parametrize("space", [b"", b" "])
def test_an_event_with_another_text_matches(name: bytes, space: bytes) -> None:
    first, other, none = (
        event(text, name=name).replace(b'":', b'":' + space) for text in (b"one", "anöther\\n".encode(), b"")
    )
    matching = parts_with_template(first)
    assert matching.try_append(other)
    assert matching.try_append(none)
    assert matching.try_append(first)
    assert matching.has_valid_texts()


@pytest.mark.parametrize(
    "other",
    [
        event(b"x", before=b'"usage":{},'),
        event(b"x", after=b',"stop_reason":1'),
        event(b"x", name=b"reasoning"),
        event(b'a \\\\" b'),
        event(b'x"},"error":{"y":"z'),
        event(b"x") + event(b"y", name=b"text"),
        event(b"x")[:-2],
        event(b"")[:-20],
        b": a comment\n\n",
        DONE,
    ],
)
def test_an_event_that_differs_in_more_than_the_text_does_not_match(other: bytes) -> None:
    assert not parts_with_template(event(b"one")).try_append(other)


def texts_of(parts: StreamParts) -> list[Any]:
    return [part.texts if isinstance(part, TemplateRun) else part for part in parts.parts]


def test_a_text_with_escaped_quotes_matches() -> None:
    parts = parts_with_template(event(b"one"))
    assert parts.try_append(event(b'a \\" b'))
    assert parts.try_append(event(b'\\"') + event(b"c"))
    assert parts.has_valid_texts()
    assert texts_of(parts) == [[b"one", b'a \\" b', b'\\"', b"c"]]


def test_several_events_of_one_chunk_are_appended_together() -> None:
    parts = parts_with_template(event(b"one"))
    assert parts.try_append(event(b"two") + event(b"") + event(b"three"))
    assert texts_of(parts) == [[b"one", b"two", b"", b"three"]]


def test_events_of_one_chunk_with_others_are_still_in_a_run_and_comments_are_left_out() -> None:
    parts = StreamParts()
    parts.append(event(b"a") + END + event(b"b") + event(b"c"))
    for comment in (b": ping\n\n", b": ping\r\n\r\n", b": " + event(b"x"), b": 1\n: 2\n\n: 3\n\n"):
        parts.append(comment)
    assert parts.try_append(event(b"d"))
    assert texts_of(parts) == [[b"a"], END, [b"b", b"c", b"d"]]


def test_events_of_several_choices_have_a_template_each() -> None:
    one, other = event(b"a"), event(b"b").replace(b'"index":0', b'"index":1')
    parts = parts_with_template(one, other)
    assert parts.try_append(one)
    assert parts.try_append(other)
    assert texts_of(parts) == [[b"a"], [b"b"], [b"a"], [b"b"]]
    assert [part.template_index for part in parts.parts if isinstance(part, TemplateRun)] == [0, 1, 0, 1]


def numbered(text: bytes, number: int | bytes, *, first: bool = False) -> bytes:
    """An event of /v1/responses in vLLM's encoding, or in OpenAI's, with the number before the text."""
    written = number if isinstance(number, bytes) else b"%d" % number
    fields = [b'"delta":"%b"' % text, b'"logprobs":[]', b'"sequence_number":%b' % written]
    return b"event: d\ndata: {%b}\n\n" % b",".join(reversed(fields) if first else fields)


@pytest.mark.parametrize("first", [False, True])
def test_events_with_consecutive_numbers_match(first: bool) -> None:
    parts = parts_with_template(numbered(b"a", 8, first=first))
    assert parts.try_append(numbered(b"b", 9, first=first))
    assert parts.try_append(numbered(b"c", 10, first=first))
    assert parts.try_append(numbered(b"d", 17, first=first))
    assert not parts.try_append(numbered(b"e", b"018", first=first))
    assert not parts.try_append(numbered(b"e", b"18.5", first=first))
    assert [(run.first_number, run.texts) for run in parts.parts if isinstance(run, TemplateRun)] == [
        (8, [b"a", b"b", b"c"]),
        (17, [b"d"]),
    ]
    assert b"".join(parts.merged_events(lambda *_: False)) == b"".join(
        numbered(text, number, first=first) for text, number in ((b"a", 8), (b"b", 9), (b"c", 10), (b"d", 17))
    )


@pytest.mark.parametrize("number", [b"007", b"-1", b'"1"', b"1" * 16])
def test_an_event_whose_number_is_written_differently_is_a_template_with_this_number(number: bytes) -> None:
    parts = parts_with_template(numbered(b"a", number))
    assert parts.try_append(numbered(b"b", number))
    assert parts.merged_events(lambda *_: False) == [numbered(b"a", number), numbered(b"b", number)]


@pytest.mark.parametrize(
    "first", [event(b"x") * 2, event(b'a \\" b'), event(b"a\\n"), b"data: {}\n\n", event(b"x")[:-2]]
)
def test_an_event_without_exactly_one_plain_text_gives_no_template(first: bytes) -> None:
    matching = parts_with_template(first)
    assert not matching.try_append(event(b"x"))
    assert not matching.try_append(first)


@pytest.mark.parametrize("space", [b"", b" "])
def test_an_event_in_which_a_choice_ends_gives_no_template(space: bytes) -> None:
    end = event(b"x").replace(b'"finish_reason":null', b'"finish_reason":' + space + b'"abort"')
    assert not parts_with_template(end).try_append(end)


def test_the_last_finish_reason_of_a_stream_counts_even_if_it_was_sent_before() -> None:
    abort, stop = (
        event(b"x").replace(b'"finish_reason":null', b'"finish_reason":"%b"' % how) for how in (b"abort", b"stop")
    )
    recorder = choices_recorder(LIMIT)
    for one in (event(b"a"), abort, stop, abort, DONE):
        recorder.feed(one)
    assert recorder.recorded_response(chat(stream=True)) is NotStoredReason.INCOMPLETE


def test_a_later_form_gives_a_template_too_up_to_a_limit() -> None:
    forms = [event(b"x", before=b'"n":%d,' % number) for number in range(20)]
    parts = StreamParts()
    known = [parts.learn_template(form) and parts.try_append(form) for form in forms]
    assert known == [True] * MAX_TEMPLATES + [False] * (len(forms) - MAX_TEMPLATES)


@pytest.mark.parametrize("text", [b"\\", b"\\x", b"\\u12", b"a\nb", b"\x01", b"a\\", b"\\ud83d"])
def test_a_stream_with_a_text_that_json_does_not_allow_is_not_stored(text: bytes) -> None:
    recorder = choices_recorder(LIMIT)
    for one in (event(b"first"), event(b"fine"), event(text), event(b",n"), END, DONE):
        recorder.feed(one)
    assert recorder.recorded_response(chat(stream=True)) is NotStoredReason.ERROR


@pytest.mark.parametrize("text", [b"\\", b"\\x", b"\\u12", b"a\\", b"\\ud83d"])
def test_an_invalid_string_is_detected_at_the_end(text: bytes) -> None:
    matching = parts_with_template(event(b"one"))
    assert matching.try_append(event(b"fine"))
    assert matching.has_valid_texts()
    assert matching.try_append(event(text))
    assert matching.try_append(event(b",n"))  # which would turn the backslash before it into an escape or an end
    assert not matching.has_valid_texts()
    matching.discard()
    assert matching.has_valid_texts()


LETTERS: Final = ["a", "n", "u", "0", "\\", "\\\\", "\\n", '\\"', '"', ",", "}", "\n", "\x01", "é", '"error"', "[DONE]"]


@given(st.lists(st.lists(st.sampled_from(LETTERS), max_size=4).map("".join), max_size=8))
@example(["a\\", "n"])
@example(["a\\", ",", '"'])
@example(["a", "[DONE]", '\\"error\\"'])
def test_a_stream_is_recorded_as_if_no_event_matched_another(texts: list[str]) -> None:
    events = [event(b"first"), *[event(text.encode()) for text in texts], END, DONE]
    together, apart = choices_recorder(LIMIT), choices_recorder(LIMIT)
    passed = together.feed(b"".join(events))
    also_passed = b"".join(map(apart.feed, events))
    request = chat(stream=True)
    if together.failure is not None:  # invalid JSON texts are detected at the end or before
        assert apart.recorded_response(request) is NotStoredReason.ERROR
        return
    assert (also_passed, apart.ended, apart.failure) == (passed, together.ended, None)
    assert client_view(apart.recorded_response(request)) == client_view(together.recorded_response(request))


def test_matching_events_are_stored_as_they_were_received() -> None:
    events = [event(b"first"), *[event(b"%d" % number) for number in range(9)], END]
    recorder = choices_recorder(LIMIT)
    assert b"".join(map(recorder.feed, [*events, DONE])) == b"".join(events)
    recording = recorder.recorded_response(chat(stream=True))
    assert isinstance(recording, RecordedResponse)
    assert replayed_frames(recording) == b"".join(events)


def test_the_size_of_events_does_not_depend_on_how_they_are_grouped() -> None:
    apart, together = parts_with_template(event(b"a")), parts_with_template(event(b"a"))
    for text in (b"one", b"two", b"three"):
        assert apart.try_append(event(text))
    assert together.try_append(event(b"one") + event(b"two") + event(b"three"))
    assert together.size == apart.size


def test_many_small_events_count() -> None:
    parts = StreamParts()
    for _ in range(1000):
        parts.append(b"id:\n\n")
    assert parts.size >= 10_000
