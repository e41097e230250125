"""A body is parsed, or refused with the name of the field; and an engine receives the client's fields."""

import json
import sys
from contextlib import suppress
from itertools import product
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.endpoints.chat import CHAT
from router.core.endpoints.classify import CLASSIFY
from router.core.endpoints.completions import COMPLETIONS
from router.core.endpoints.count_tokens import COUNT_TOKENS
from router.core.endpoints.detokenize import DETOKENIZE
from router.core.endpoints.embeddings import EMBEDDINGS
from router.core.endpoints.endpoint import Endpoint
from router.core.endpoints.messages import MESSAGES
from router.core.endpoints.pooling import POOLING
from router.core.endpoints.requests.request import (
    MAX_DEPTH,
    MAX_FLOATS,
    MAX_MODEL_NAME,
    engine_body,
    parse_request,
    without_fields,
)
from router.core.endpoints.rerank import RERANK
from router.core.endpoints.responses import RESPONSES
from router.core.endpoints.score import SCORE
from router.core.endpoints.table import ENDPOINTS
from router.core.endpoints.tokenize import TOKENIZE
from router.errors import ApiError
from router.process_limits import limit_integer_digits
from tests.support.factories import JSON_VALUES, chat, completion, request

USER = {"role": "user", "content": "Hi"}


def refused(endpoint: Endpoint, fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        request(endpoint, fields)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": 1, "messages": [USER]}, "model"),
        ({"model": "x" * (MAX_MODEL_NAME + 1), "messages": [USER]}, "model"),
        ({"model": "m"}, "messages"),
        ({"model": "m", "messages": []}, "messages"),
        ({"model": "m", "messages": "Hi"}, "messages"),
        ({"model": "m", "messages": ["Hi"]}, "messages[0]"),
        ({"model": "m", "messages": [USER, {"content": "Hi"}]}, "messages[1].role"),
        ({"model": "m", "messages": [{"role": 1}]}, "messages[0].role"),
        ({"model": "m", "messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ({"model": "m", "messages": [{"role": "user", "content": ["Hi", 1]}]}, "messages[0].content[1]"),
        ({"model": "m", "messages": [USER], "stream": "yes"}, "stream"),
        ({"model": "m", "messages": [USER], "stream_options": True}, "stream_options"),
        ({"model": "m", "messages": [USER], "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"model": "m", "messages": [USER], "temperature": "hot"}, "temperature"),
        ({"model": "m", "messages": [USER], "seed": 1.5}, "seed"),
        ({"model": "m", "messages": [USER], "max_tokens": "8"}, "max_tokens"),
        ({"model": "m", "messages": [USER], "max_completion_tokens": []}, "max_completion_tokens"),
        ({"model": "m", "messages": [USER], "documents": {}}, "documents"),
        ({"model": "m", "messages": [USER], "documents": ["text"]}, "documents[0]"),
    ],
)
def test_a_wrong_field_of_a_chat_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    error = refused(CHAT, fields)
    assert error.param == param
    assert f"`{param}`" in error.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": "m"}, "prompt"),
        ({"model": "m", "prompt": []}, "prompt"),
        ({"model": "m", "prompt": None, "prompt_embeds": []}, "prompt"),
        ({"model": "m", "prompt": "x", "prompt_embeds": 1}, "prompt_embeds"),
        ({"model": "m", "prompt": {}}, "prompt"),
    ],
)
def test_a_completion_needs_a_prompt(fields: dict[str, Any], param: str) -> None:
    assert refused(COMPLETIONS, fields).param == param


@pytest.mark.parametrize("prompt", ["", "x", ["x", "y"], [1, 2], [[1, 2], [3]]])
def test_a_prompt_is_text_or_tokens_or_several_of_either(prompt: Any) -> None:
    assert completion(prompt=prompt).fields["prompt"] == prompt


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[1]", b'"x"', b"null", b"\xff", b'{"model": "\xff"}', b'{"model": NaN}', b'{"a": 1e999}',
        b'{"a": "\\ud800"}', b'{"model":"m"} x', b'{"a":' + b"1" * 5000 + b"}", b'{"a":' * 100_000,
    ],
)  # fmt: skip
def test_a_body_that_is_not_a_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_request(CHAT, body)
    assert caught.value.status == 400
    assert caught.value.code == "invalid_json"


@given(st.binary(max_size=40) | JSON_VALUES.map(lambda value: json.dumps(value).encode()), st.sampled_from(ENDPOINTS))
def test_no_request_raises_anything_but_a_refusal(body: bytes, endpoint: Endpoint) -> None:
    with pytest.raises(ApiError):
        parse_request(endpoint, body)


@given(
    st.sampled_from(["messages", "prompt", "stream", "stream_options", "n", "seed", "documents", "content"]),
    JSON_VALUES,
)
def test_no_value_of_a_known_field_raises_anything_but_a_refusal(name: str, value: Any) -> None:
    for endpoint in ENDPOINTS:
        fields = {"model": "m", "messages": [USER], "prompt": "x", name: value}
        with suppress(ApiError):
            assert request(endpoint, fields).fields == fields


def test_an_unknown_field_is_accepted() -> None:
    assert chat(frobnicate={"a": [1]}).fields["frobnicate"] == {"a": [1]}


def test_an_omitted_temperature_is_not_0() -> None:
    assert not chat().deterministic
    assert not chat(temperature=1).deterministic
    assert not chat(temperature=None).deterministic
    assert chat(temperature=0).deterministic
    assert chat(temperature=0.0).deterministic


def test_a_seed_makes_a_request_deterministic_even_if_it_is_0() -> None:
    assert chat(seed=0, temperature=1).deterministic
    assert not chat(seed=None).deterministic


def test_the_newer_name_of_max_tokens_takes_precedence() -> None:
    assert chat().max_tokens is None
    assert chat(max_tokens=5).max_tokens == 5
    assert chat(max_tokens=5, max_completion_tokens=6).max_tokens == 6
    assert completion(max_tokens=5).max_tokens == 5


def test_usage_is_requested_only_by_a_stream() -> None:
    options = {"include_usage": True}
    assert chat(stream=True, stream_options=options).include_usage
    assert not chat(stream=False, stream_options=options).include_usage
    assert not chat(stream=True, stream_options={}).include_usage
    assert not chat(stream=True, stream_options=None).include_usage
    assert not chat(stream=None).stream


@pytest.mark.parametrize("spelling", ["1", "1.0", "1e0", "10E-1", "0.1e+1"])
def test_a_number_is_one_value_however_it_is_spelt(spelling: str) -> None:
    parsed_request = parse_request(CHAT, b'{"model":"m","messages":[{"role":"user"}],"x":%b}' % spelling.encode())
    assert repr(parsed_request.fields["x"]) == "1"


@pytest.mark.parametrize("spelling", ["0.1", "-1.5", "1e22", "9007199254740993", "1234567890123456789012", "1e-300"])
def test_a_number_loses_nothing(spelling: str) -> None:
    parsed_request = parse_request(CHAT, b'{"model":"m","messages":[{"role":"user"}],"x":%b}' % spelling.encode())
    assert parsed_request.fields["x"] == json.loads(spelling)


def test_an_engine_gets_its_own_name_for_the_model() -> None:
    sent = engine_body(chat(model="llama"), "meta-llama/Llama-3.1-8B-Instruct")
    assert json.loads(sent) == {"model": "meta-llama/Llama-3.1-8B-Instruct", "messages": [USER]}


def test_a_request_that_needs_no_change_goes_to_the_engine_byte_for_byte() -> None:
    body = b'{ "model" : "m",\n"messages":[{"role":"user","content":"\\u00e9"}] , "x": 1.50 }'
    assert engine_body(parse_request(CHAT, body), "m") is body


def test_every_field_goes_to_the_engine_byte_for_byte() -> None:
    messages = b'[ {"role":"user","content":"\\u00e9\\r\\n"} ]'
    body = b'{"model":"m","messages":%b,"x":1.50,"big":12345678901234567890123,"y":{ "b":1, "a":2 }}' % messages
    sent = engine_body(parse_request(CHAT, body), "other")
    assert messages in sent
    assert b'"x":1.50,' in sent
    assert b'"big":12345678901234567890123,' in sent
    assert b'{ "b":1, "a":2 }' in sent
    assert list(json.loads(sent)) == ["model", "messages", "x", "big", "y"]


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
def test_a_stream_always_requests_the_usage_from_the_engine(options: Any) -> None:
    parsed_request = chat(stream=True) if options is None else chat(stream=True, stream_options=options)
    assert json.loads(engine_body(parsed_request, "llama"))["stream_options"] == {"include_usage": True}


def test_other_stream_options_are_unchanged() -> None:
    parsed_request = chat(stream=True, stream_options={"continuous_usage_stats": True, "x": 1, "include_usage": True})
    sent = json.loads(engine_body(parsed_request, "llama"))
    assert sent["stream_options"] == {"continuous_usage_stats": True, "x": 1, "include_usage": True}


@pytest.mark.parametrize("options", [{"include_usage": False}, {"include_usage": None}])
def test_usage_in_every_event_is_not_asked_for_without_the_usage_as_in_vllm(options: dict[str, Any]) -> None:
    parsed_request = chat(stream=True, stream_options={"continuous_usage_stats": True, **options})
    sent = json.loads(engine_body(parsed_request, "llama"))
    assert sent["stream_options"] == {"include_usage": True}
    assert not parsed_request.include_usage


@pytest.mark.parametrize("served_model", ["llama", "other"])
def test_usage_in_every_event_includes_the_usage_by_default_as_in_vllm(served_model: str) -> None:
    parsed_request = chat(stream=True, stream_options={"continuous_usage_stats": True})
    sent = json.loads(engine_body(parsed_request, served_model))
    assert sent["stream_options"] == {"continuous_usage_stats": True, "include_usage": True}
    assert parsed_request.include_usage
    assert not chat(stream=True, stream_options={"continuous_usage_stats": False}).include_usage
    assert not chat(stream_options={"continuous_usage_stats": True}).include_usage, "the answer is JSON"


def test_a_json_request_is_given_no_stream_options() -> None:
    assert "stream_options" not in json.loads(engine_body(chat(), "other"))


def test_fields_can_be_removed_and_the_others_stay_byte_for_byte() -> None:
    body = b'{"model": "llama", "min_p": 0.1, "messages": [ {"role":"user","content":"\\u0048i"} ], "top_p": 1e-1}'
    left = without_fields(parse_request(CHAT, body), ["min_p", "logit_bias"])
    assert left.body == b'{"model":"llama","messages":[ {"role":"user","content":"\\u0048i"} ],"top_p":1e-1}'
    assert left.fields == {"model": "llama", "messages": [USER], "top_p": 0.1}


@given(st.dictionaries(st.text("abcdef_", min_size=1, max_size=6), JSON_VALUES, max_size=4), st.booleans())
def test_an_engine_gets_the_fields_of_the_client(others: dict[str, Any], stream: bool) -> None:
    parsed_request = chat(stream=stream, **others)
    sent = json.loads(engine_body(parsed_request, "served"))
    sent.pop("stream_options", None)
    assert sent == {"model": "served", "messages": [USER], "stream": stream, **others}


# -- bounds -----------------------------------------------------------------------------------------------------------

NUMBERS = st.from_regex(rb"-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,24})?([eE][+-]?[0-9]{1,2})?", fullmatch=True)


@given(numbers=st.lists(NUMBERS, min_size=1, max_size=20))
def test_a_number_is_the_same_in_a_large_body_as_in_a_small_one(numbers: list[bytes]) -> None:
    listed = b",".join(numbers)
    body = b'{"model":"m","input":"x","x":[%b],"y":{"z":%b}}' % (listed, numbers[0])
    small, large = (parse_request(EMBEDDINGS, sent) for sent in (body, body + b" " * 100_000))
    assert repr(small.fields) == repr(large.fields)


@pytest.mark.parametrize("padding", [0, 100_000])
@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"NaN", b"Infinity"])
def test_an_invalid_number_is_refused_in_a_body_of_any_size(number: bytes, padding: int) -> None:
    with pytest.raises(ApiError) as caught:
        parse_request(EMBEDDINGS, b'{"model":"m","input":"x","x":%b}' % number + b" " * padding)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


def test_a_large_body_of_floats_is_parsed_without_a_callback_for_each() -> None:
    body = b'{"model":"m","input":"x","x":[%b]}' % b",".join([b"0.5"] * 100_000)
    calls = 0

    def count(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_name == "_number"

    sys.setprofile(count)
    try:
        parse_request(EMBEDDINGS, body)
    finally:
        sys.setprofile(None)
    assert calls == 0


def test_too_many_fractional_numbers_are_refused() -> None:
    body = b'{"model":"m","input":"x","x":[%b]}' % b",".join([b"0.5"] * (MAX_FLOATS + 1))
    with pytest.raises(ApiError) as caught:
        parse_request(EMBEDDINGS, body)
    assert (caught.value.status, caught.value.code) == (400, "too_many_parts")


MINIMAL = {
    CHAT: b'"messages":[{"role":"user","content":"x"}]', COMPLETIONS: b'"prompt":"x"',
    EMBEDDINGS: b'"input":"x"', RESPONSES: b'"input":"x"',
    MESSAGES: b'"max_tokens":1,"messages":[{"role":"user","content":"x"}]',
    COUNT_TOKENS: b'"messages":[{"role":"user","content":"x"}]', TOKENIZE: b'"prompt":"x"', DETOKENIZE: b'"tokens":[1]',
    POOLING: b'"input":"x"', CLASSIFY: b'"input":"x"', SCORE: b'"queries":"x","documents":"y"',
    RERANK: b'"query":"x","documents":"y"',
}  # fmt: skip


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_body_may_be_nested_up_to_the_limit(endpoint: Endpoint) -> None:
    pairs = ((b"[", b"]", b""), (b'{"a":', b"}", b"1"))
    limits = ((MAX_DEPTH - 1, True), (MAX_DEPTH, False), (450, False), (100_000, False))
    for (opening, closing, inside), padding, (levels, allowed) in product(pairs, (0, 100_000), limits):
        case = f"{levels} of {opening.decode()}, {padding=}"
        deep = opening * levels + inside + closing * levels
        body = b'{"model":"m",%b,"x":%b}' % (MINIMAL[endpoint.alias_of or endpoint], deep) + b" " * padding
        try:
            assert parse_request(endpoint, body).model == "m"
            outcome: tuple[int, str | None] | None = None
        except ApiError as error:
            outcome = (error.status, error.code)
        assert outcome == (None if allowed else (400, "invalid_json")), case


def test_an_integer_with_too_many_digits_is_refused() -> None:
    before = sys.get_int_max_str_digits()
    limit_integer_digits()
    try:
        for digits, allowed in ((640, True), (641, False)):
            body = b'{"model":"m","input":"x","x":%b}' % (b"9" * digits)
            if allowed:
                assert len(str(parse_request(EMBEDDINGS, body).fields["x"])) == digits
                continue
            with pytest.raises(ApiError) as caught:
                parse_request(EMBEDDINGS, body)
            assert (caught.value.status, caught.value.code) == (400, "invalid_json")
    finally:
        sys.set_int_max_str_digits(before)
