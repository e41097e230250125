"""Where an engine has broken a stream off: what is known without its events."""

from typing import Any

import pytest

from router.core.endpoints.continuation.stream_so_far import MAX_LITERAL_EVENTS
from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.recording.choices_recorder import ChoicesRecorder
from router.flow.attempts.continuation.seam import Seam
from router.net.client.errors import EngineError
from router.upstream.engine import Engine
from router.upstream.engine_config import EngineConfig
from tests.support.endpoints import choices_recorder
from tests.support.factories import chat, chat_event, choice_delta, encode_event


def new_engine(name: str) -> Engine:
    return Engine(EngineConfig(name=name, model="m", task="any", url=f"http://{name}", served_model="m"))


def recorder_of(*texts: str) -> ChoicesRecorder:
    recorder = choices_recorder(1 << 20)
    for number, text in enumerate(texts):
        recorder.feed(encode_event({**chat_event(choice_delta(content=text)), "created": number}))
    return recorder


def test_the_engines_that_can_go_on_are_found_before_the_stream_is_read() -> None:
    failed, drained, other = new_engine("failed"), new_engine("drained"), new_engine("other")
    drained.drained = True
    recorder = recorder_of(*["a"] * 2 * MAX_LITERAL_EVENTS)
    seam = Seam(chat(stream=True), recorder, failed, EngineError("reset", "gone"), dispatched_at=0.0)
    assert seam.able([failed, drained, other], [failed]) == [other]
    assert not seam.may_be_complete
    assert (seam.so_far, seam.obstacle) == (None, None)  # it was not read, which finds this obstacle:
    seam.read()
    assert seam.obstacle == "no-template"


def seam_of(request: InferenceRequest, *deltas: dict[str, Any]) -> Seam:
    recorder = choices_recorder(1 << 20)
    for delta in deltas:
        recorder.feed(encode_event(chat_event(choice_delta(**delta))))
    return Seam(request, recorder, new_engine("failed"), EngineError("reset", "gone"), dispatched_at=0.0)


TOOLS = [{"type": "function", "function": {"name": "f"}}]
REQUESTS: list[dict[str, Any]] = [
    {},
    {"max_tokens": 9},  # which no event counts
    {"tools": TOOLS},
    {"tools": TOOLS, "tool_choice": "required", "max_tokens": 9},
    {"response_format": {"type": "json_object"}, "temperature": 0.7},
    {"logprobs": True},
]


@pytest.mark.parametrize("fields", REQUESTS, ids=str)
def test_a_chat_with_only_reasoning_begins_anew_with_the_request_of_the_client(fields: dict[str, Any]) -> None:
    request = chat(stream=True, **fields)
    seam = seam_of(request, {"reasoning": "Hm"}, {"reasoning": ", well"})
    assert (seam.obstacle, seam.has_obstacle, seam.may_be_complete) == (None, False, False)
    seam.read()
    assert (seam.obstacle, seam.begins_anew, seam.tokens, seam.is_complete) == (None, True, 0, False)
    restart = seam.restart_at(new_engine("other"))
    assert restart is not None
    assert restart.request is request
    assert (restart.anew, restart.exact) == (True, False)
    assert not seam.new_recorder(restart).started


def test_several_choices_never_begin_anew() -> None:
    for fields in ({"n": 2}, {"n": 2, "tools": TOOLS}, {"use_beam_search": True}):
        assert seam_of(chat(stream=True, **fields), {"reasoning": "Hm"}).obstacle is not None


def test_a_request_that_only_begins_anew_stays_with_its_engine_once_it_has_text() -> None:
    schema = chat(stream=True, response_format={"type": "json_object"})
    seam = seam_of(schema, {"reasoning": "Hm"}, {"content": "{"})
    assert (seam.obstacle, seam.has_obstacle) == (None, True)
    seam.read()
    assert seam.obstacle == "schema"


def test_a_chat_that_ended_while_it_reasoned_is_completed_without_an_engine() -> None:
    seam = seam_of(chat(stream=True), {"reasoning": "Hm"}, {"finish": "length"})
    assert seam.may_be_complete
    seam.read()
    assert (seam.obstacle, seam.is_complete, seam.begins_anew) == (None, True, False)
