"""The order of properties in a JSON schema is part of the key; no other order of names is."""

import json
from typing import Any

import pytest
from hypothesis import given

from router.core.endpoints.completions import COMPLETIONS
from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.requests.request import parse_request
from tests.support.factories import (
    JSON_VALUES,
    changed_parts,
    chat,
    completion,
    derive_key,
    messages,
    request,
    responses,
)

ONE = {"type": "object", "properties": {"thoughts": {"type": "string"}, "answer": {"type": "string"}}}
OTHER = {"type": "object", "properties": {"answer": {"type": "string"}, "thoughts": {"type": "string"}}}


def with_reversed_order(value: Any) -> Any:
    """The same JSON with the names of every object in reverse order."""
    if isinstance(value, dict):
        return {name: with_reversed_order(item) for name, item in reversed(value.items())}
    return [with_reversed_order(item) for item in value] if isinstance(value, list) else value


def function(schema: Any) -> Any:
    return {"type": "function", "function": {"name": "f", "description": "x", "parameters": schema}}


def requests_with(schema: Any) -> dict[str, InferenceRequest]:
    """Requests with a schema, by the field that contains it."""
    format_ = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": schema}}
    flat = {"type": "json_schema", "name": "a", "schema": schema}
    tag = {"begin": "<a>", "content": {"type": "json_schema", "json_schema": schema}, "end": "</a>"}
    return {
        "response_format": chat(response_format=format_),
        "response_format of a completion": completion(response_format=format_),
        "schema of a JSON object": chat(response_format={"type": "json_object", "schema": schema}),
        "structural tag": chat(response_format={"type": "structural_tag", "format": {"tags": [tag]}}),
        "structured_outputs": chat(structured_outputs={"json": schema, "whitespace_pattern": "x"}),
        "guided_json": chat(guided_json=schema),
        "tools": chat(tools=[function(schema)], tool_choice="auto"),
        "functions": chat(functions=[{"name": "f", "parameters": schema}]),
        "text.format": responses(text={"format": flat, "verbosity": "low"}),
        "tools of a response": responses(tools=[{"type": "function", "name": "f", "parameters": schema}]),
        "tools of a message": messages(tools=[{"name": "f", "input_schema": schema, "description": "x"}]),
        "output_config": messages(output_config={"format": {"type": "json_schema", "schema": schema}}),
    }


@pytest.mark.parametrize("place", requests_with({}))
def test_another_order_of_properties_is_another_key(place: str) -> None:
    assert changed_parts(requests_with(ONE)[place], requests_with(OTHER)[place]) == {"query"}


@pytest.mark.parametrize("place", requests_with({}))
def test_the_order_around_a_schema_does_not_matter(place: str) -> None:
    parsed_request = requests_with({"type": "string"})[place]
    assert (
        derive_key(request(parsed_request.endpoint, with_reversed_order(parsed_request.fields))).text
        == derive_key(parsed_request).text
    )


def test_the_spelling_of_a_schema_does_not_matter() -> None:
    one = b'{"model":"llama","prompt":"x","guided_json":{"b": 1.0, "a": "\\u0041"}}'
    other = b'{"guided_json":{"b":1,"a":"A"},"prompt":"x","model":"llama"}'
    assert derive_key(parse_request(COMPLETIONS, one)).text == derive_key(parse_request(COMPLETIONS, other)).text


@pytest.mark.parametrize("field", ["logit_bias", "chat_template_kwargs", "vllm_xargs", "frobnicate", "schema"])
def test_elsewhere_the_order_does_not_matter(field: str) -> None:
    assert changed_parts(chat(**{field: ONE}), chat(**{field: OTHER})) == set()


@pytest.mark.parametrize(
    "field", ["response_format", "structured_outputs", "tools", "functions", "guided_json", "text"]
)
@given(JSON_VALUES, JSON_VALUES)
def test_two_values_are_two_keys_as_everywhere(field: str, one: Any, other: Any) -> None:
    same = json.dumps(one) == json.dumps(other)
    if json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True):
        assert changed_parts(chat(**{field: one}), chat(**{field: other})) == {"query"}
    elif same:
        assert changed_parts(chat(**{field: one}), chat(**{field: other})) == set()
