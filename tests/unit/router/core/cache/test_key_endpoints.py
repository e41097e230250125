"""The keys of embeddings, responses and messages: every field that can change a response is in its part."""

import json
from typing import Any, Final

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from router.core.cache.key_derivation import IGNORED_FIELDS
from router.core.endpoints.embeddings import EMBEDDINGS
from router.core.endpoints.endpoint import Endpoint, InferenceRequest
from router.core.endpoints.messages import MESSAGES
from router.core.endpoints.responses import RESPONSES
from router.errors import ApiError
from tests.support.factories import (
    JSON_VALUES,
    TEXTS,
    changed_parts,
    chat,
    completion,
    derive_key,
    embeddings,
    messages,
    request_parts,
    responses,
)

MAKE: Final = {
    EMBEDDINGS: embeddings,
    RESPONSES: responses,
    MESSAGES: messages,
}
ENDPOINTS: Final = pytest.mark.parametrize("endpoint", MAKE, ids=lambda endpoint: endpoint.path)

OTHER_VALUES: Final[dict[Endpoint, dict[str, Any]]] = {
    EMBEDDINGS: {
        "input": "Ho", "dimensions": 8, "encoding_format": "base64", "embed_dtype": "float16", "endianness": "big",
        "use_activation": False, "truncate_prompt_tokens": 4, "truncation_side": "left", "add_special_tokens": False,
        "padding": "max_length", "mm_processor_kwargs": {"x": 1}, "cache_salt": "x", "chat_template": "x",
        "chat_template_kwargs": {"x": 1}, "messages": [{"role": "user", "content": "x"}], "frobnicate": 1,
    },
    RESPONSES: {
        "input": "Ho", "max_output_tokens": 5, "max_tool_calls": 2, "temperature": 0, "top_p": 0.5, "top_k": 3,
        "min_p": 0.1, "tools": [{"type": "function", "name": "f"}], "tool_choice": "required", "stop": ["x"],
        "parallel_tool_calls": False, "reasoning": {"effort": "low"}, "text": {"verbosity": "low"}, "seed": 3,
        "include": ["message.output_text.logprobs"], "top_logprobs": 2, "truncation": "auto", "user": "u",
        "metadata": {"a": "b"}, "service_tier": "flex", "store": False, "request_id": "r", "session_id": "s",
        "include_reasoning": False, "skip_special_tokens": False, "presence_penalty": 0.5, "frequency_penalty": 0.5,
        "repetition_penalty": 1.1, "logit_bias": {"5": 1}, "ignore_eos": True, "enable_response_messages": True,
        "previous_input_messages": [{"role": "user"}], "structured_outputs": {"json": {}}, "cache_salt": "x",
        "chat_template_kwargs": {"x": 1}, "vllm_xargs": {"x": 1}, "kv_transfer_params": {"x": 1}, "frobnicate": 1,
    },
    MESSAGES: {
        "messages": [{"role": "user", "content": "Ho"}], "max_tokens": 8, "temperature": 0, "top_p": 0.5, "top_k": 3,
        "stop_sequences": ["x"], "tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "any"},
        "thinking": {"type": "enabled", "budget_tokens": 1024}, "output_config": {"effort": "low"}, "cache_salt": "x",
        "chat_template_kwargs": {"x": 1}, "vllm_xargs": {"x": 1}, "kv_transfer_params": {"x": 1}, "frobnicate": 1,
    },
}  # fmt: skip
FIELDS: Final = [(endpoint, name) for endpoint, values in OTHER_VALUES.items() for name in values]


@pytest.mark.parametrize(("endpoint", "name"), FIELDS)
def test_any_field_that_can_change_the_response_changes_the_query_part(endpoint: Endpoint, name: str) -> None:
    make = MAKE[endpoint]
    assert changed_parts(make(), make(**{name: OTHER_VALUES[endpoint][name]})) == {"query"}


@given(st.sampled_from(list(MAKE)), st.text(max_size=12), JSON_VALUES)
def test_a_new_field_of_a_request_cannot_be_forgotten(endpoint: Endpoint, name: str, value: Any) -> None:
    assume(name not in {*IGNORED_FIELDS, "input", "messages", "documents", "system", "instructions"})
    make = MAKE[endpoint]
    try:
        other = make(**{name: value})
    except ApiError:  # a known field with a wrong type
        return
    assert changed_parts(make(), other) == ({"query"} if name != "max_tokens" or value != 9 else set())


LEFT_OUT: Final[dict[str, Any]] = {
    "stream": True, "stream_options": {"include_usage": True}, "user": "u", "safety_identifier": "u",
    "metadata": {"user_id": "u"}, "client_metadata": {"turn": "7"}, "store": True, "service_tier": "auto",
    "prompt_cache_key": "k", "prompt_cache_retention": "24h", "priority": 3, "request_id": "r", "model": "alias",
}  # fmt: skip


@ENDPOINTS
def test_an_ignored_field_is_ignored_unless_the_response_repeats_it(endpoint: Endpoint) -> None:
    make = MAKE[endpoint]
    echoed = endpoint.echoed_fields
    assert all(echoed.values())
    assert echoed.keys() <= IGNORED_FIELDS.keys() == LEFT_OUT.keys()
    for name, value in LEFT_OUT.items():
        assert changed_parts(make(), make(**{name: value})) == ({"query"} if name in echoed else set()), name


@ENDPOINTS
def test_a_stream_and_a_json_response_share_a_key(endpoint: Endpoint) -> None:
    assert changed_parts(MAKE[endpoint](), MAKE[endpoint](stream=True)) == set()


def test_the_same_words_at_another_endpoint_are_another_request() -> None:
    user = [{"role": "user", "content": "Hi"}]
    requests = [
        chat(messages=user, max_tokens=9), completion(prompt="Hi"), embeddings(), embeddings(input=user), responses(),
        responses(input=user), messages(messages=user),
    ]  # fmt: skip
    keys = [derive_key(one) for one in requests]
    assert len({key.text for key in keys}) == len({key.digest for key in keys}) == len(keys)


# Forms of a system prompt


def system_of(endpoint: Endpoint, content: Any) -> InferenceRequest:
    if endpoint is MESSAGES:
        return messages(system=content)
    if endpoint is RESPONSES and isinstance(content, str):
        return responses(instructions=content)
    kind = "input_text"
    parts = content if isinstance(content, str) else [{**part, "type": kind} for part in content]
    return responses(input=[{"role": "developer", "content": parts}, {"role": "user", "content": "Hi"}])


SYSTEMS: Final = [
    (MESSAGES, str), (MESSAGES, lambda text: [{"type": "text", "text": text}]),
    (RESPONSES, str), (RESPONSES, lambda text: [{"type": "text", "text": text}]),
]  # fmt: skip


@pytest.mark.parametrize(("endpoint", "form"), SYSTEMS, ids=["system", "blocks", "instructions", "developer"])
def test_the_system_text_changes_only_the_system_part(endpoint: Endpoint, form: Any) -> None:
    one, other = (system_of(endpoint, form(text)) for text in ("Be brief.", "Be brief. "))
    assert changed_parts(one, other) == {"system"}
    contexts = (system_of(endpoint, form(f"Say <context>{text}</context>.")) for text in ("a", "b"))
    assert changed_parts(*contexts) == {"rag"}
    assert request_parts(one).system == ["Be brief."]


def test_a_system_field_is_not_a_system_message() -> None:
    user = {"role": "user", "content": "Hi"}
    assert changed_parts(messages(system="x"), messages(messages=[{"role": "system", "content": "x"}, user])) == {
        "query"
    }
    inputs = [{"role": "system", "content": "x"}, user]
    assert changed_parts(responses(instructions="x", input=[user]), responses(input=inputs)) == {"query"}
    assert "system" in changed_parts(messages(), messages(system=""))
    assert changed_parts(messages(), messages(system=None)) == {"query"}
    assert changed_parts(messages(system="x"), messages(system=[{"type": "text", "text": "x"}])) == {"query"}


def test_fields_of_other_endpoints_are_not_a_system_prompt() -> None:
    assert changed_parts(messages(), messages(instructions="x")) == {"query"}
    assert changed_parts(responses(), responses(system="x")) == {"query"}
    assert changed_parts(embeddings(), embeddings(instructions="x", system="x")) == {"query"}


# Context and question


@given(TEXTS, TEXTS)
def test_context_is_found_in_every_text_of_a_user(one: str, other: str) -> None:
    assume("<context>" not in one + other)
    assume("</context>" not in one + other)
    texts = [f"Q <context>{text}</context>?" for text in (one, other)]
    makes: list[Any] = [
        lambda text: responses(input=text),
        lambda text: responses(input=[{"role": "user", "content": text}]),
        lambda text: responses(input=[{"role": "user", "content": [{"type": "input_text", "text": text}]}]),
        lambda text: messages(messages=[{"role": "user", "content": text}]),
        lambda text: messages(messages=[{"role": "user", "content": [{"type": "text", "text": text}]}]),
    ]
    for make in makes:
        first, second = make(texts[0]), make(texts[1])
        assert changed_parts(first, second) == ({"rag"} if one != other else set())
        assert request_parts(first).rag == [one]
        assert request_parts(first).question.startswith("Q <context></context>?")


@pytest.mark.parametrize("make", [responses, messages])
def test_another_document_changes_only_the_rag_part(make: Any) -> None:
    assert changed_parts(make(documents=[{"text": "a"}]), make(documents=[{"text": "b"}])) == {"rag"}


def test_the_question_is_the_last_text_of_a_user() -> None:
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "3"}]}
    first = {"role": "user", "content": "Add it up in Python."}
    assert request_parts(messages(messages=[first, result])).question == "Add it up in Python."
    output = {"type": "function_call_output", "call_id": "c", "output": "3"}
    assert request_parts(responses(input=[first, output])).question == "Add it up in Python."
    assert request_parts(embeddings()).question == ""


def test_an_item_without_a_speaker_is_part_of_the_query() -> None:
    user = {"role": "user", "content": "Hi"}
    outputs = [[user, {"type": "function_call_output", "call_id": "c", "output": text}] for text in ("3", "4")]
    assert changed_parts(responses(input=outputs[0]), responses(input=outputs[1])) == {"query"}
    results = [
        [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": text}]}]
        for text in ("3", "4")
    ]
    assert changed_parts(messages(messages=results[0]), messages(messages=results[1])) == {"query"}


@given(JSON_VALUES, JSON_VALUES)
def test_two_inputs_are_two_keys(one: Any, other: Any) -> None:
    first, second = (responses(input=[{"type": "x", "value": value}]) for value in (one, other))
    # 1 and 1.0 are the same number; true is not a number.
    same = json.dumps(first.fields, sort_keys=True) == json.dumps(second.fields, sort_keys=True)
    assert changed_parts(first, second) == (set() if same else {"query"})
