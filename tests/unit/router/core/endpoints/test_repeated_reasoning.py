"""What a second engine repeats of the first one's reasoning is left out, wherever its events end."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.endpoints.chat import CHAT
from router.core.endpoints.continuation.repeated_reasoning import FollowingReasoning, read_reasoning
from router.core.endpoints.recording.choices_recorder import ChoicesRecorder
from router.core.endpoints.recording.token_ids import TokenIdCutter
from tests.support.endpoints import choices_recorder
from tests.support.factories import chat_event, choice_delta, encode_event

FIRST = "Hm, “so”\nit is"


def recorder_of(pieces: list[str], **beside: Any) -> ChoicesRecorder:
    recorder = choices_recorder(1 << 20)
    recorder.token_ids = TokenIdCutter()
    recorder.feed(encode_event(chat_event(choice_delta(role="assistant", content=""), prompt_token_ids=[7, 8])))
    for number, piece in enumerate(pieces):
        choice = {**choice_delta(reasoning=piece), "token_ids": [number], **beside}
        recorder.feed(encode_event(chat_event(choice)))
    return recorder


def received(recorder: ChoicesRecorder, choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The deltas that the client gets of a second engine's choices."""
    assert CHAT.streaming is not None
    assert CHAT.streaming.begin_anew is not None
    second = CHAT.streaming.begin_anew(recorder)
    assert not isinstance(second, str)
    data = b"".join(second.feed(encode_event(chat_event(choice))) for choice in choices)
    events = [json.loads(event.removeprefix(b"data: ")) for event in data.split(b"\n\n") if event]
    assert second.started
    return [event["choices"][0]["delta"] for event in events]


def pieces_of(text: str, cuts: set[int]) -> list[str]:
    ends = [*sorted(cut for cut in cuts if 0 < cut < len(text)), len(text)]
    return [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


@given(
    second=st.sampled_from([FIRST, FIRST + " blue.", FIRST[:5], FIRST[:5] + "no", "No.", ""]),
    cuts=st.sets(st.integers(1, 20)),
    first_cuts=st.sets(st.integers(1, 20)),
    has_text=st.booleans(),
)
def test_the_client_gets_what_is_new(second: str, cuts: set[int], first_cuts: set[int], has_text: bool) -> None:
    recorder = recorder_of(pieces_of(FIRST, first_cuts))
    choices = [choice_delta(reasoning=piece) for piece in pieces_of(second, cuts) if piece]
    choices += [choice_delta(content="Yes.")] if has_text else []
    choices.append(choice_delta(finish="stop"))
    deltas = received(recorder, choices)
    reasoning = "".join(delta.get("reasoning", "") for delta in deltas)
    if second.startswith(FIRST):
        assert reasoning == second.removeprefix(FIRST)
    else:
        assert reasoning == ("\n\n" + second if second else "")
    assert [delta["content"] for delta in deltas if "content" in delta] == (["Yes."] if has_text else [])


def test_the_ids_of_what_was_left_out_are_those_of_the_next_event() -> None:
    recorder = recorder_of(["Hm", ", a"])
    choices = [{**choice_delta(reasoning=text), "token_ids": [20 + at]} for at, text in enumerate(["H", "m", ", a b"])]
    assert received(recorder, choices) == [{"reasoning": " b"}]
    assert recorder.token_ids is not None
    assert recorder.token_ids.pieces == [b"", b"", b"20,21,22"]
    assert (recorder.token_ids.prompt, recorder.token_ids.exact) == (b"7,8", True)


def test_an_engine_that_dies_while_it_repeats_has_added_nothing() -> None:
    recorder = recorder_of(["Hm", ", a"])
    assert received(recorder, [choice_delta(reasoning="Hm")]) == []
    assert recorder.parts is not None
    assert read_reasoning(recorder.parts) == "Hm, a"
    assert received(recorder, [choice_delta(reasoning="Hm"), choice_delta(reasoning=", a b")]) == [{"reasoning": " b"}]


def test_text_within_the_event_that_completes_the_repetition_is_new() -> None:
    assert received(recorder_of(["Hm"]), [choice_delta(reasoning="Hm", content="Yes")])[0]["content"] == "Yes"
    deltas = received(recorder_of(["Hm", "?"]), [choice_delta(reasoning="Hm"), choice_delta(content="Yes")])
    assert deltas == [{"content": "Yes", "reasoning": "\n\nHm"}]


def test_log_probabilities_are_not_left_out() -> None:
    choices = [{**choice_delta(reasoning=text), "logprobs": {"content": [{"token": text}]}} for text in ("Hm", "!")]
    assert received(recorder_of(["Hm"]), choices) == [{"reasoning": "\n\nHm"}, {"reasoning": "!"}]


@pytest.mark.parametrize("text", ["", "Hm"])
def test_unknown_reasoning_is_never_taken_for_repeated(text: str) -> None:
    assert FollowingReasoning(None).follow("Hm", is_last=False) == "\n\nHm"
    assert FollowingReasoning("").follow(text, is_last=True) == text
