"""Any request is parsed or refused; nothing else happens."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.simulator.rejections import Rejection
from engines.simulator.settings import SimulatorSettings
from engines.simulator.validation.fields import parse_body
from engines.simulator.validation.requests import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    GenerationRequest,
    chat_request,
    completion_request,
)

SETTINGS = SimulatorSettings(model="m", auto_tool_choice=True)
MESSAGES = [{"role": "user", "content": "x"}]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**6) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from([*CHAT_FIELDS, *COMPLETION_FIELDS, "tool_choice"])
TOOLS = st.lists(
    st.fixed_dictionaries(
        {}, optional={"type": JSON, "function": st.fixed_dictionaries({}, optional={"name": JSON}) | JSON}
    ),
    max_size=2,
)


def outcome(read: Callable[[], object]) -> object:
    """The parsed request, or the rejection."""
    try:
        return read()
    except Rejection as rejection:
        return rejection


def is_valid_refusal(result: object) -> bool:
    return isinstance(result, Rejection) and result.status in (400, 404) and bool(json.dumps(result.body))


@given(st.dictionaries(NAMES, JSON, max_size=4), st.booleans())
def test_any_json_object_is_read_or_refused(body: dict[str, object], chat: bool) -> None:
    read = chat_request if chat else completion_request
    result = outcome(lambda: read({"messages": MESSAGES, "prompt": "x", **body}, SETTINGS))
    if isinstance(result, GenerationRequest):
        assert result.prompts
        assert all(limit >= 1 for limit in result.limits)
    else:
        assert is_valid_refusal(result)


@given(TOOLS, JSON | st.just("required") | st.just("auto") | st.fixed_dictionaries({"function": JSON}))
def test_any_tools_are_read_or_refused(tools: list[object], choice: object) -> None:
    result = outcome(lambda: chat_request({"messages": MESSAGES, "tools": tools, "tool_choice": choice}, SETTINGS))
    assert isinstance(result, GenerationRequest) or is_valid_refusal(result)


@given(st.binary(max_size=30))
def test_any_bytes_are_an_object_or_refused(raw: bytes) -> None:
    result = outcome(lambda: parse_body(raw))
    assert isinstance(result, dict) or is_valid_refusal(result)


@given(st.lists(st.dictionaries(st.sampled_from(["role", "content", "tool_calls"]), JSON), max_size=3))
def test_any_messages_are_read_or_refused(messages: list[object]) -> None:
    result = outcome(lambda: chat_request({"messages": messages}, SETTINGS))
    assert isinstance(result, GenerationRequest) or is_valid_refusal(result)


def test_parameters_that_only_limit_the_output_do_not_change_the_text() -> None:
    voices = {
        chat_request({"messages": MESSAGES, **more}, SETTINGS).sampling_hash
        for more in ({}, {"max_tokens": 5}, {"stop": "x"}, {"stream": True}, {"user": "u"}, {"n": 2})
    }
    assert len(voices) == 1


@pytest.mark.parametrize("more", [{"temperature": 0}, {"seed": 1}, {"top_p": 0.5}, {"logit_bias": {"5": 1}}])
def test_parameters_that_change_a_response_change_the_text(more: dict[str, object]) -> None:
    plain, changed = ({"messages": MESSAGES, **fields} for fields in ({}, more))
    assert chat_request(plain, SETTINGS).sampling_hash != chat_request(changed, SETTINGS).sampling_hash


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"min_p": 0.1}, True),
        ({"min_p": 0.1, "temperature": 0}, False),
        ({"min_p": 0}, False),
        ({"logit_bias": {"5": 1}}, True),
        ({"logit_bias": {"5": 1}, "temperature": 0}, True),
        ({"logit_bias": {}}, False),
    ],
)
def test_a_draft_refuses_what_vllms_speculation_cannot_sample(fields: dict[str, object], refused: bool) -> None:
    body = {"messages": MESSAGES, **fields}
    assert isinstance(outcome(lambda: chat_request(body, SETTINGS)), GenerationRequest)
    result = outcome(lambda: chat_request(body, replace(SETTINGS, draft="d")))
    assert is_valid_refusal(result) is refused
