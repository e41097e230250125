"""Where an engine has broken a stream off: what is known without its events."""

from typing import Any

import msgspec
import pytest

from router.core.endpoints.continuation.event_forms import MAX_LITERAL_EVENTS
from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.recording.choices_recorder import ChoicesRecorder
from router.core.endpoints.recording.token_ids import TokenIdCutter
from router.flow.attempts.continuation.seam import Seam
from router.net.client.errors import EngineError
from router.settings.tables import EngineKind
from router.upstream.engine import Engine
from router.upstream.engine_config import EngineConfig
from tests.support.endpoints import choices_recorder
from tests.support.factories import chat, chat_event, choice_delta, encode_event


def new_engine(name: str, kind: EngineKind | None = None) -> Engine:
    config = EngineConfig(name=name, model="m", task="any", url=f"http://{name}", served_model="m")
    return Engine(config if kind is None else msgspec.structs.replace(config, kind=kind))


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


def seam_of(request: InferenceRequest, *deltas: dict[str, Any], token_ids: bool = False) -> Seam:
    recorder = choices_recorder(1 << 20)
    recorder.token_ids = TokenIdCutter() if token_ids else None
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
    assert (seam.obstacle, seam.has_obstacle_at(()), seam.may_be_complete) == (None, False, False)
    seam.read()
    assert (seam.obstacle, seam.begins_anew, seam.tokens, seam.is_complete) == (None, True, 0, False)
    restart = seam.restart_at(new_engine("other"))
    assert restart is not None
    assert restart.request is request
    assert (restart.anew, restart.exact) == (True, False)
    assert not seam.new_recorder(restart).started


def test_several_choices_and_token_ids_for_the_client_never_begin_anew() -> None:
    for fields in ({"n": 2}, {"n": 2, "tools": TOOLS}, {"use_beam_search": True}, {"return_token_ids": True}):
        assert seam_of(chat(stream=True, **fields), {"reasoning": "Hm"}).obstacle is not None


def test_a_request_that_only_begins_anew_stays_with_its_engine_once_it_has_text() -> None:
    schema = chat(stream=True, response_format={"type": "json_object"})
    seam = seam_of(schema, {"reasoning": "Hm"}, {"content": "{"})
    assert (seam.obstacle, seam.has_obstacle_at(())) == (None, True)
    seam.read()
    assert seam.obstacle == "schema"


def test_a_chat_that_ended_while_it_reasoned_is_completed_without_an_engine() -> None:
    seam = seam_of(chat(stream=True), {"reasoning": "Hm"}, {"finish": "length"})
    assert seam.may_be_complete
    seam.read()
    assert (seam.obstacle, seam.is_complete, seam.begins_anew) == (None, True, False)


CALL = {"index": 0, "id": "call-1", "type": "function", "function": {"name": "f", "arguments": ""}}


def test_a_chat_with_tools_goes_on_by_text_as_long_as_it_has_called_none() -> None:
    for fields in ({}, {"tool_choice": "auto"}, {"tool_choice": "none"}, {"parallel_tool_calls": False}):
        seam = seam_of(chat(stream=True, tools=TOOLS, **fields), {"content": "I "}, {"content": "look"})
        assert not seam.has_obstacle_at(())
        seam.read()
        assert (seam.obstacle, seam.begins_anew, seam.tokens) == (None, False, 2)
        restart = seam.restart_at(new_engine("other", "vllm"))
        assert restart is not None
        assert (restart.by_ids, restart.exact) == (False, False)
        assert restart.request.fields["tools"] == TOOLS
        assert seam.restart_at(new_engine("other")) is None


@pytest.mark.parametrize(
    ("fields", "deltas"),
    [
        ({}, [{"content": "I look"}, {"tool_calls": [CALL]}]),
        ({}, [{"tool_calls": [CALL]}, *[{"tool_calls": [{"index": 0, "function": {"arguments": "x"}}]}] * 3]),
        ({}, [{"reasoning": "Hm"}, {"content": "I look"}]),
        ({"tool_choice": "required"}, [{"content": "I look"}]),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, [{"content": "I look"}]),
    ],
)
def test_a_chat_with_tools_does_not_go_on_after_a_call_or_reasoning(fields: Any, deltas: list[dict[str, Any]]) -> None:
    seam = seam_of(chat(stream=True, tools=TOOLS, **fields), *deltas)
    assert (seam.has_obstacle_at(()), seam.may_be_complete) == (True, False)  # it stays with an engine that may be back
    seam.read()
    assert seam.obstacle == "tools"


IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]


@pytest.mark.parametrize(
    ("fields", "stays"), [({}, False), ({"stop": ["x"]}, True), ({"messages": IMAGE}, True), ({"unknown": 1}, True)]
)
def test_a_begun_call_leaves_its_engine_if_the_parser_of_another_can_take_it(
    fields: dict[str, Any], stays: bool
) -> None:
    seam = seam_of(chat(stream=True, tools=TOOLS, **fields), {"tool_calls": [CALL]}, token_ids=True)
    parser = new_engine("other", "vllm")
    assert seam.has_obstacle_at([parser]), "it is not known whether it has one"
    parser.learn(parses_tokens=True)
    assert seam.has_obstacle_at([parser]) is stays


def test_a_begun_call_without_ids_stays_with_its_engine() -> None:
    seam = seam_of(chat(stream=True, tools=TOOLS), {"tool_calls": [CALL]})
    parser = new_engine("other", "vllm")
    parser.learn(parses_tokens=True)
    assert seam.has_obstacle_at([parser])


def test_a_chat_that_has_called_its_tool_lacks_only_its_end() -> None:
    deltas: list[dict[str, Any]] = [{"content": "I look"}, {"tool_calls": [CALL]}, {"finish": "tool_calls"}]
    seam = seam_of(chat(stream=True, tools=TOOLS), *deltas)
    assert seam.may_be_complete
    seam.read()
    assert (seam.obstacle, seam.is_complete) == (None, True)
    assert seam.end() == b""
