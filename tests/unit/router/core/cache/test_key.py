"""Two requests share a key exactly if they are the same to an engine."""

import json
import os
import re
import subprocess
import sys
from typing import Any, Final

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from router.core.cache.key_derivation import IGNORED_FIELDS, derive_cache_key
from router.core.cache.redis_keys import EMPTY_HASH, KEY_PREFIX
from router.core.endpoints.chat import CHAT
from router.core.endpoints.completions import COMPLETIONS
from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.requests.request import parse_request
from router.errors import ApiError
from tests.support.factories import (
    JSON_VALUES,
    TEXTS,
    changed_parts,
    chat,
    completion,
    conversation,
    derive_key,
    key_pieces,
    request_parts,
)
from tests.support.paths import ROOT

# The form


def test_a_key_has_the_documented_form() -> None:
    text = derive_key(conversation(("system", "Be brief."), ("user", "<context>x</context>y"))).text
    assert re.fullmatch(r"rh:1:acme:llama:[0-9a-f]{16}:[0-9a-f]{16}:[0-9a-f]{32}", text)
    assert EMPTY_HASH not in text
    assert text.startswith(KEY_PREFIX)


def test_a_digest_is_a_sha_256_in_hex() -> None:
    assert re.fullmatch(r"[0-9a-f]{64}", derive_key(chat()).digest)


def test_a_missing_part_is_all_zeros() -> None:
    assert key_pieces(derive_key(chat()))["system"] == "0" * 16
    assert key_pieces(derive_key(chat()))["rag"] == "0" * 16
    assert key_pieces(derive_key(conversation(("system", ""), ("user", "x"))))["system"] != "0" * 16


# Entries outlive the program that wrote them. If one of these keys changes, PREFIX must change too.
GOLDEN: Final = [
    (
        chat(),
        "rh:1:acme:llama:0000000000000000:0000000000000000:66eaa68b07e9bb7441ff4a3051c63a66",
        "a91b1fe10cdd167195de43c2beb108080245777f682c3443199675f24c9da5d6",
    ),
    (
        conversation(
            ("system", "Be brief."), ("user", "A<context>Paris is it.</context>B"), temperature=0.5, top_p=1e-3, n=2.0
        ),
        "rh:1:acme:llama:e5a5d1262b28e6d3:ecbcde0c434d93d6:0e281e6a916af2730d41b39b86ddad00",
        "7e9f651605d96a1fa535450a642cb3e30a22857ebd0dea262d6b7d12d6ae9080",
    ),
    (
        conversation(
            ("developer", [{"type": "text", "text": "é\r\n"}]), ("user", "x"), documents=[{"text": "a", "doc_id": "1"}]
        ),
        "rh:1:acme:llama:9997033142af8066:9a7a6610024674f1:6b50861923fe65a8e1c212e5e36823c0",
        "b5c1b1c033bc1c0b3dc4142687ed862111889607b5cfba7a35135728c84370e4",
    ),
    (
        completion(prompt=["def f", "import"], stream=True, stream_options={"include_usage": True}, seed=2**63),
        "rh:1:acme:llama:0000000000000000:0000000000000000:4070c96c5016ec808e99b0b5cf24491d",
        "c39898f6a6bcaded0fb064f7ac77193a26b42d403813e7c7887e1c9db5913822",
    ),
]


@pytest.mark.parametrize(("inference_request", "text", "digest"), GOLDEN)
def test_keys_do_not_change_between_versions(inference_request: InferenceRequest, text: str, digest: str) -> None:
    key = derive_key(inference_request)
    assert (key.text, key.digest) == (text, digest)


# Fields

OTHER_VALUES: Final[dict[str, Any]] = {
    # OpenAI's
    "temperature": 0.5, "top_p": 0.5, "n": 2, "max_tokens": 9, "max_completion_tokens": 9, "stop": ["x"], "seed": 1,
    "presence_penalty": 0.5, "frequency_penalty": 0.5, "logit_bias": {"5": 1}, "logprobs": True, "top_logprobs": 2,
    "response_format": {"type": "json_object"}, "tools": [{"type": "function"}], "tool_choice": "none",
    "parallel_tool_calls": False, "functions": [{"name": "f"}], "function_call": "none", "modalities": ["text"],
    "reasoning_effort": "low", "prediction": {"type": "content"}, "verbosity": "low", "audio": {"voice": "x"},
    "web_search_options": {}, "echo": True, "suffix": "x", "best_of": 2,
    # vLLM's
    "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "length_penalty": 1.1, "min_tokens": 2,
    "use_beam_search": True,
    "stop_token_ids": [1], "include_stop_str_in_output": True, "ignore_eos": True, "skip_special_tokens": False,
    "spaces_between_special_tokens": False, "truncate_prompt_tokens": 5, "prompt_logprobs": 1, "allowed_token_ids": [1],
    "bad_words": ["x"], "add_generation_prompt": False, "continue_final_message": True, "add_special_tokens": True,
    "chat_template": "x", "chat_template_kwargs": {"enable_thinking": False}, "mm_processor_kwargs": {"x": 1},
    "structured_outputs": {"json": {}}, "guided_json": {}, "guided_regex": "x", "guided_choice": ["x"],
    "logits_processors": ["x"], "return_tokens_as_token_ids": True, "return_token_ids": True, "cache_salt": "x",
    "kv_transfer_params": {"x": 1}, "vllm_xargs": {"x": 1}, "include_reasoning": False, "thinking_token_budget": 9,
    # unknown
    "frobnicate": 1, "Temperature": 0.5, "": "x", "rag": "x", "system": "x", "query": "x", "revision": "2",
    "tenant": "x",
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_any_field_that_can_change_the_response_changes_the_query_part(name: str) -> None:
    assert changed_parts(chat(), chat(**{name: OTHER_VALUES[name]})) == {"query"}
    assert changed_parts(completion(), completion(**{name: OTHER_VALUES[name]})) == {"query"}


@given(st.text(max_size=12), JSON_VALUES)
def test_a_new_field_of_a_request_cannot_be_forgotten(name: str, value: Any) -> None:
    assume(name not in {*IGNORED_FIELDS, "messages", "prompt", "documents", "temperature", "seed"})
    assume(name not in {"max_tokens", "max_completion_tokens"})
    assert changed_parts(chat(), chat(**{name: value})) == {"query"}


@given(JSON_VALUES, JSON_VALUES)
def test_two_values_of_a_field_are_two_keys(one: Any, other: Any) -> None:
    # 1 and 1.0 are the same number; true is not a number.
    same = json.dumps(plain(one), sort_keys=True) == json.dumps(plain(other), sort_keys=True)
    assert (changed_parts(chat(x=one), chat(x=other)) == set()) == same


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


LEFT_OUT: Final[dict[str, Any]] = {
    "stream": True, "stream_options": {"include_usage": True}, "user": "u", "safety_identifier": "u",
    "metadata": {"a": "b"}, "client_metadata": {"turn": "7"}, "store": True, "service_tier": "flex",
    "prompt_cache_key": "k", "prompt_cache_retention": "24h", "priority": 3, "request_id": "r",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(IGNORED_FIELDS))
def test_an_ignored_field_does_not_change_the_key(name: str) -> None:
    assert changed_parts(chat(), chat(**{name: LEFT_OUT[name]})) == set()


def test_an_ignored_field_has_a_reason_and_a_test() -> None:
    assert set(IGNORED_FIELDS) == set(LEFT_OUT)
    assert all(IGNORED_FIELDS.values())


def test_a_field_ignored_at_the_top_level_counts_in_a_message() -> None:
    for name in IGNORED_FIELDS:
        other = chat(messages=[{"role": "user", "content": "Hi", name: "x"}])
        assert changed_parts(chat(), other) == {"query"}


def test_an_omitted_temperature_is_not_0() -> None:
    assert changed_parts(chat(), chat(temperature=0)) == {"query"}


def test_a_stream_and_a_json_response_share_a_key() -> None:
    usage = {"include_usage": True}
    assert changed_parts(chat(), chat(stream=True)) == set()
    assert changed_parts(chat(stream=True), chat(stream=True, stream_options=usage)) == set()
    assert (
        changed_parts(chat(stream=True), chat(stream=True, stream_options={**usage, "continuous_usage_stats": False}))
        == set()
    )


@pytest.mark.parametrize("value", [True, 1, 0, "x", {"a": 1}])
def test_a_stream_option_that_changes_the_events_changes_the_key(value: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": value}
    assert changed_parts(chat(stream=True), chat(stream=True, stream_options=options)) == {"query"}
    without = {**options, "include_usage": False}  # then vLLM ignores it
    assert changed_parts(chat(stream=True), chat(stream=True, stream_options=without)) == set()
    del without["include_usage"]  # for vLLM, the same as true
    same = options if value else {}
    assert changed_parts(chat(stream=True, stream_options=same), chat(stream=True, stream_options=without)) == set()
    # In a JSON response, these stream options have no effect in vLLM.
    assert changed_parts(chat(), chat(stream_options=options)) == set()


# Spelling


def respelled(value: Any, draw: Any) -> str:
    """The same JSON with another order, other white space, escapes and number formats."""
    space = draw(st.sampled_from(["", " ", "\n", "\t \r\n"]))
    if isinstance(value, dict):
        items = draw(st.permutations(list(value.items())))
        written = [f"{space}{respelled(n, draw)}{space}:{respelled(v, draw)}{space}" for n, v in items]
        return "{" + ",".join(written) + "}"
    if isinstance(value, list):
        return "[" + ",".join(f"{space}{respelled(item, draw)}{space}" for item in value) + "]"
    if isinstance(value, str):
        return '"' + "".join(escaped(char, draw(st.sampled_from(["raw", "short", "\\u"]))) for char in value) + '"'
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53:
        return str(draw(st.sampled_from([json.dumps(value), repr(float(value)), f"{value:.30e}", f"{value:.30E}"])))
    return json.dumps(value)


def escaped(char: str, how: str) -> str:
    if how == "\\u":
        return "".join(f"\\u{unit:04x}" for unit in memoryview(char.encode("utf-16-le")).cast("H"))
    return json.dumps(char, ensure_ascii=how == "short")[1:-1]


@given(st.data())
def test_equal_json_has_one_key_however_it_is_written(data: Any) -> None:
    fields = {
        "model": "llama",
        "messages": [{"role": "system", "content": data.draw(TEXTS)}, {"role": "user", "content": data.draw(TEXTS)}],
        "n": 1,
        "x": data.draw(JSON_VALUES),
    }
    one = parse_request(CHAT, json.dumps(fields).encode())
    other = parse_request(CHAT, respelled(fields, data.draw).encode())
    assert derive_key(one).canonical_parts == derive_key(other).canonical_parts


def test_equal_json_has_one_key_in_another_process() -> None:
    message = {"content": "x", "role": "system", "z": 1, "y": 2}
    body = {"tools": [{"b": 1, "a": 2}], "messages": [message], "model": "m", "q": 1.0}
    code = (
        "import sys; from router.core.cache import key, key_derivation as derive\n"
        "from router.core.endpoints import chat\nfrom router.core.endpoints.requests import request\n"
        "parsed = request.parse_request(chat.CHAT, sys.stdin.buffer.read())\n"
        "parts = derive.split_parts(parsed, key.ContextMarkers())\n"
        "found = derive.derive_cache_key(parts, tenant='acme', model='llama', revision='1')\n"
        "print(found.text, found.digest)"
    )
    expected = derive_key(parse_request(CHAT, json.dumps(body).encode()))
    for seed in ("1", "2"):
        shuffled = json.dumps(dict(reversed(body.items())), indent=2)
        done = subprocess.run(
            [sys.executable, "-c", code],
            input=shuffled.encode(), capture_output=True, check=True, cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )  # fmt: skip
        assert done.stdout.decode().split() == [expected.text, expected.digest]


# Tenant, model and revision


def test_two_tenants_models_and_revisions_have_two_keys() -> None:
    request = chat()
    keys = [
        derive_key(request),
        derive_key(request, tenant="other"),
        derive_key(request, model="mistral"),
        derive_key(request, revision="2"),
        derive_key(request, tenant="llama", model="acme"),
    ]
    assert len({key.text for key in keys}) == len({key.digest for key in keys}) == len(keys)
    assert key_pieces(keys[0])["query"] != key_pieces(keys[3])["query"]


@given(st.text("ab.-_0", min_size=1, max_size=6), st.text("ab.-_0", min_size=1, max_size=6))
def test_two_tenants_have_two_keys_whatever_their_names(one: str, other: str) -> None:
    for request in (chat(), completion()):
        keys = [derive_key(request, tenant=one, model="m"), derive_key(request, tenant=other, model="m")]
        assert (keys[0].digest == keys[1].digest) == (one == other)
        swapped = [derive_key(request, tenant=one, model=other), derive_key(request, tenant=other, model=one)]
        assert (swapped[0].digest == swapped[1].digest) == (one == other)


def test_a_request_cannot_imitate_a_tenant() -> None:
    parts = request_parts(chat())
    keys = [
        derive_cache_key(parts, tenant="a", model="b.c", revision=""),
        derive_cache_key(parts, tenant="a.b", model="c", revision=""),
    ]
    assert keys[0].digest != keys[1].digest


def test_a_chat_is_not_a_completion() -> None:
    fields = {"model": "m", "messages": [{"role": "user", "content": "x"}], "prompt": "x"}
    body = json.dumps(fields).encode()
    assert changed_parts(parse_request(CHAT, body), parse_request(COMPLETIONS, body)) == {"query"}


def test_a_body_too_deep_for_its_key_is_refused() -> None:
    parts = request_parts(chat())
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    parts.query.append(deep)
    with pytest.raises(ApiError) as caught:
        derive_cache_key(parts, tenant="a", model="b", revision="")
    assert caught.value.status == 400
