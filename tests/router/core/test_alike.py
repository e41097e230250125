"""An event that is another one with another text is known for that, and nothing else is."""

from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.core.alike import Alike
from router.core.answers import NotKept, Recording
from router.core.recording import StreamRecorder
from router.core.sse import DONE

from making import chat, chunk, frame, piece  # isort: skip

LIMIT: Final = 1 << 20
END: Final = frame(chunk(piece(finish="stop")))


def event(text: bytes, *, before: bytes = b"", after: bytes = b"", name: bytes = b"content") -> bytes:
    """An event as vLLM writes it, whatever its text is."""
    choice = b'{"index":0,"delta":{"%b":"%b"},"logprobs":null%b,"finish_reason":null}' % (name, text, after)
    return b'data: {"id":"x",%b"choices":[%b]}\n\n' % (before, choice)


def learned(*events: bytes) -> Alike:
    alike = Alike()
    for one in events:
        alike.learn(one)
    return alike


@pytest.mark.parametrize("name", [b"content", b"text", b"reasoning", b"reasoning_content", b"arguments"])
@pytest.mark.parametrize("space", [b"", b" "])
def test_an_event_with_another_text_is_alike(name: bytes, space: bytes) -> None:
    first, other, none = (
        event(text, name=name).replace(b'":', b'":' + space) for text in (b"one", "anöther\\n".encode(), b"")
    )
    alike = learned(first)
    assert alike.take(other)
    assert alike.take(none)
    assert alike.take(first)
    assert alike.are_texts()


@pytest.mark.parametrize(
    "other",
    [
        event(b"x", before=b'"usage":{},'),
        event(b"x", after=b',"stop_reason":1'),
        event(b"x", name=b"reasoning"),
        event(b'a \\" b'),
        event(b'x"},"error":{"y":"z'),
        event(b"x") + event(b"y"),
        event(b"x")[:-2],
        event(b"")[:-20],
        b": a comment\n\n",
        DONE,
    ],
)
def test_what_differs_in_more_than_the_text_is_not_alike(other: bytes) -> None:
    assert not learned(event(b"one")).take(other)


@pytest.mark.parametrize(
    "first", [event(b"x") * 2, event(b'a \\" b'), event(b"a\\n"), b"data: {}\n\n", event(b"x")[:-2]]
)
def test_what_has_not_one_plain_text_is_not_learned(first: bytes) -> None:
    alike = learned(first)
    assert not alike.take(event(b"x"))
    assert not alike.take(first)


@pytest.mark.parametrize("space", [b"", b" "])
def test_an_event_in_which_a_choice_ends_is_not_learned(space: bytes) -> None:
    end = event(b"x").replace(b'"finish_reason":null', b'"finish_reason":' + space + b'"abort"')
    assert not learned(end).take(end)


def test_the_last_word_on_how_a_stream_ended_counts_though_it_was_said_before() -> None:
    abort, stop = (
        event(b"x").replace(b'"finish_reason":null', b'"finish_reason":"%b"' % how) for how in (b"abort", b"stop")
    )
    recorder = StreamRecorder(LIMIT)
    for one in (event(b"a"), abort, stop, abort, DONE):
        recorder.feed(one)
    assert recorder.recording(chat(stream=True)) is NotKept.INCOMPLETE


def test_what_comes_later_in_another_form_is_learned_too_but_not_for_ever() -> None:
    forms = [event(b"x", before=b'"n":%d,' % number) for number in range(20)]
    alike = Alike()
    known = 0
    for form in forms:
        alike.learn(form)
        known += alike.take(form)
    assert 2 <= known < len(forms)


@pytest.mark.parametrize("text", [b"\\", b"\\x", b"\\u12", b"a\nb", b"\x01", b"a\\", b"\\ud83d"])
def test_what_is_no_inside_of_a_string_is_found_out_at_the_end(text: bytes) -> None:
    alike = learned(event(b"one"))
    assert alike.take(event(b"fine"))
    assert alike.are_texts()
    assert alike.take(event(text))
    assert alike.take(event(b",n"))  # which would make an escape, or an end, of the backslash before it
    assert not alike.are_texts()
    alike.forget()
    assert alike.are_texts()


LETTERS: Final = ["a", "n", "u", "0", "\\", "\\\\", "\\n", '\\"', '"', ",", "}", "\n", "\x01", "é", '"error"', "[DONE]"]


@given(st.lists(st.lists(st.sampled_from(LETTERS), max_size=4).map("".join), max_size=8))
@example(["a\\", "n"])
@example(["a\\", ",", '"'])
@example(["a", "[DONE]", '\\"error\\"'])
def test_a_stream_is_recorded_as_if_no_event_were_like_another(texts: list[str]) -> None:
    events = [event(b"first"), *[event(text.encode()) for text in texts], END, DONE]
    together, apart = StreamRecorder(LIMIT), StreamRecorder(LIMIT)
    passed = together.feed(b"".join(events))
    assert b"".join(map(apart.feed, events)) == passed
    assert (apart.ended, apart.failure is None) == (together.ended, together.failure is None)
    asked = chat(stream=True)
    assert apart.recording(asked) == together.recording(asked)


def test_what_is_alike_is_kept_as_it_came() -> None:
    events = [event(b"first"), *[event(b"%d" % number) for number in range(9)], END]
    recorder = StreamRecorder(LIMIT)
    assert b"".join(map(recorder.feed, [*events, DONE])) == b"".join(events)
    recording = recorder.recording(chat(stream=True))
    assert isinstance(recording, Recording)
    assert recording.frames == b"".join(events)
