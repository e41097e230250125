"""The keys of scores, classes and tokens: every field is in its part, and documents are in the rag part."""

from typing import Any, Final

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from router.core.cache.entry_filter import EntryFilter
from router.core.cache.key_derivation import IGNORED_FIELDS, MAX_DOCUMENTS
from router.core.endpoints.classify import CLASSIFY
from router.core.endpoints.count_tokens import COUNT_TOKENS
from router.core.endpoints.detokenize import DETOKENIZE
from router.core.endpoints.endpoint import Endpoint, ScoredInput
from router.core.endpoints.pooling import POOLING
from router.core.endpoints.rerank import RERANK, RERANK_V1, RERANK_V2
from router.core.endpoints.score import SCORE, SCORE_V1
from router.core.endpoints.table import ENDPOINTS
from router.core.endpoints.tokenize import TOKENIZE
from router.errors import ApiError
from tests.support.factories import (
    JSON_VALUES,
    TEXTS,
    changed_parts,
    classify,
    count_tokens,
    derive_key,
    detokenize,
    pooling,
    request,
    request_parts,
    rerank,
    score,
    tokenize,
)

MAKE: Final = {
    RERANK: rerank, SCORE: score, CLASSIFY: classify, POOLING: pooling, TOKENIZE: tokenize, DETOKENIZE: detokenize,
    COUNT_TOKENS: count_tokens,
}  # fmt: skip
USER: Final = {"role": "user", "content": "Ho"}
COMMON: Final[dict[str, Any]] = {
    "truncate_prompt_tokens": 4, "truncation_side": "left", "padding": "max_length", "mm_processor_kwargs": {"x": 1},
    "cache_salt": "x", "use_activation": False, "frobnicate": 1,
}  # fmt: skip
SCORED: Final[dict[str, Any]] = {
    **COMMON, "max_tokens_per_query": 3, "max_tokens_per_doc": 3, "instruction": "x", "chat_template_kwargs": {"x": 1},
}  # fmt: skip
ENCODED: Final[dict[str, Any]] = {
    **COMMON, "input": "Ho", "messages": [USER], "add_special_tokens": False, "add_generation_prompt": True,
    "continue_final_message": True, "chat_template": "x", "chat_template_kwargs": {"x": 1},
    "media_io_kwargs": {"x": {}},
}  # fmt: skip
TEMPLATED: Final[dict[str, Any]] = {
    "tools": [{"name": "f", "input_schema": {}}], "chat_template_kwargs": {"x": 1}, "frobnicate": 1, "max_tokens": 5,
}  # fmt: skip
OTHER_VALUES: Final[dict[Endpoint, dict[str, Any]]] = {
    RERANK: {**SCORED, "query": "Ho", "top_n": 1},
    SCORE: {**SCORED, "queries": "Ho"},
    CLASSIFY: ENCODED,
    POOLING: {
        **ENCODED, "task": "token_embed", "dimensions": 8, "encoding_format": "base64", "embed_dtype": "float16",
        "endianness": "big", "data": {"x": 1},
    },
    TOKENIZE: {
        **TEMPLATED, "prompt": "Ho", "messages": [USER], "add_special_tokens": False, "return_token_strs": True,
        "add_generation_prompt": False, "continue_final_message": True, "chat_template": "x",
        "media_io_kwargs": {"x": {}}, "mm_processor_kwargs": {"x": 1},
    },
    DETOKENIZE: {"tokens": [1, 3], "frobnicate": 1},
    COUNT_TOKENS: {
        **TEMPLATED, "messages": [USER], "output_config": {"effort": "low"}, "thinking": {"type": "disabled"},
        "tool_choice": {"type": "any"},
    },
}  # fmt: skip
FIELDS: Final = [(endpoint, name) for endpoint, values in OTHER_VALUES.items() for name in values]
MADE: Final = pytest.mark.parametrize("endpoint", MAKE, ids=lambda endpoint: endpoint.path)
DOCUMENT_FIELDS: Final = [
    (endpoint, name)
    for endpoint in (RERANK, SCORE)
    for name in (endpoint.input.document_fields if isinstance(endpoint.input, ScoredInput) else ())
]


@pytest.mark.parametrize(("endpoint", "name"), FIELDS)
def test_any_field_that_can_change_the_response_changes_the_query_part(endpoint: Endpoint, name: str) -> None:
    make = MAKE[endpoint]
    assert changed_parts(make(), make(**{name: OTHER_VALUES[endpoint][name]})) == {"query"}


@MADE
def test_an_ignored_field_is_ignored(endpoint: Endpoint) -> None:
    make = MAKE[endpoint]
    values = {"stream": True, "stream_options": {}, "request_id": "r", "model": "alias"}
    assert changed_parts(make(), make(**dict.fromkeys(IGNORED_FIELDS, 1) | values)) == set()


@given(st.sampled_from(list(MAKE)), st.text(max_size=12), JSON_VALUES)
def test_a_new_field_of_a_request_cannot_be_forgotten(endpoint: Endpoint, name: str, value: Any) -> None:
    assume(name not in {*IGNORED_FIELDS, *OTHER_VALUES[endpoint], "documents", "items", "data_2", "text_2", "system"})
    make = MAKE[endpoint]
    try:
        other = make(**{name: value})
    except ApiError:  # a known field with a wrong type
        return
    assert changed_parts(make(), other) == {"query"}


@given(st.sampled_from(DOCUMENT_FIELDS), st.lists(TEXTS, min_size=1, max_size=4), st.lists(TEXTS, min_size=1))
def test_other_documents_change_only_the_rag_part(
    field: tuple[Endpoint, str], one: list[str], other: list[str]
) -> None:
    endpoint, name = field
    first, second = (MAKE[endpoint](**{name: documents}) for documents in (one, other))
    assert changed_parts(first, second) == ({"rag"} if one != other else set())


def test_the_same_texts_in_another_field_are_another_request() -> None:
    texts = {"queries": "x", "documents": ["y"]}
    variants: list[dict[str, Any]] = [
        texts, {"queries": "x", "items": ["y"]}, {"data_1": "x", "data_2": ["y"]}, {"text_1": "x", "text_2": ["y"]},
        {"queries": ["x"], "documents": ["y"]}, {"queries": "x", "documents": "y"},
        {"queries": "y", "documents": ["x"]},
    ]  # fmt: skip
    keys = [derive_key(request(SCORE, {"model": "llama", **fields})) for fields in variants]
    assert len({key.digest for key in keys}) == len({key.text for key in keys}) == len(variants)


def test_the_same_request_at_another_endpoint_is_another_key() -> None:
    fields = {"model": "llama", "query": "x", "queries": "x", "documents": [{"text": "y"}], "input": "x", "prompt": "x",
              "tokens": [1], "messages": [USER], "max_tokens": 5}  # fmt: skip
    keys = [derive_key(request(endpoint, fields)).text for endpoint in ENDPOINTS if endpoint.alias_of is None]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("alias", [RERANK_V1, RERANK_V2, SCORE_V1], ids=lambda endpoint: endpoint.path)
def test_the_paths_of_one_api_share_their_keys(alias: Endpoint) -> None:
    assert alias.alias_of is not None
    fields = {"model": "llama", "query": "x", "queries": "x", "documents": ["y"], "user": "u"}
    one, other = (derive_key(request(endpoint, fields)) for endpoint in (alias, alias.alias_of))
    assert (one.text, one.digest) == (other.text, other.digest)


CONTENT: Final = {
    "content": [
        {"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "https://x/b.png"}},
        {"video_url": "c"},
    ]
}  # fmt: skip


@pytest.mark.parametrize(
    ("documents", "findable"),
    [
        (["a", "b"], ["a", "b"]), ("a", ["a"]), ([{"text": "a"}, "b"], ["a", "b"]),
        ([{"id": "d1", "text": "a"}], ["d1"]), (CONTENT, ["a", "https://x/b.png", "c"]),
        (["b", CONTENT], ["b", "a", "https://x/b.png", "c"]),
    ],
)  # fmt: skip
def test_a_purge_finds_an_entry_by_each_of_its_documents(documents: Any, findable: list[str]) -> None:
    made = rerank(documents=documents)
    names, key = request_parts(made).document_names(), derive_key(made).text
    for text in findable:
        assert EntryFilter(document=text).matches(key, names)
    assert not EntryFilter(document="Hi").matches(key, names)  # the query is no document


def test_too_many_documents_are_refused() -> None:
    with pytest.raises(ApiError, match="more than"):
        request_parts(rerank(documents=["x"] * (MAX_DOCUMENTS + 1)))


@pytest.mark.parametrize(
    "make",
    [
        lambda text: tokenize(prompt=f"Q <context>{text}</context>?"),
        lambda text: tokenize(messages=[{"role": "user", "content": f"<context>{text}</context>"}]),
        lambda text: count_tokens(messages=[{"role": "user", "content": f"<context>{text}</context>"}]),
        lambda text: count_tokens(documents=[{"text": text}]),
    ],
)  # fmt: skip
def test_the_context_of_a_tokenized_text_is_the_rag_part(make: Any) -> None:
    assert changed_parts(make("a"), make("b")) == {"rag"}
    assert EntryFilter(document="a").matches(derive_key(make("a")).text, request_parts(make("a")).document_names())


@pytest.mark.parametrize("endpoint", [TOKENIZE, COUNT_TOKENS], ids=lambda endpoint: endpoint.path)
def test_the_system_message_of_a_tokenized_conversation_is_the_system_part(endpoint: Endpoint) -> None:
    one, other = (
        request(endpoint, {"model": "m", "messages": [{"role": "system", "content": text}, USER]})
        for text in ("x", "y")
    )
    assert changed_parts(one, other) == {"system"}
    assert changed_parts(count_tokens(system="x"), count_tokens(system="y")) == {"system"}


def test_only_texts_need_no_search_for_remote_content() -> None:
    assert request_parts(rerank()).texts_only
    assert request_parts(score(queries=["x"], documents="y")).texts_only
    assert not request_parts(rerank(documents=["x", CONTENT])).texts_only
    assert not request_parts(rerank(query=CONTENT)).texts_only
    assert request_parts(tokenize()).texts_only
    assert not request_parts(tokenize(messages=[{"role": "user", "content": [{"type": "image_url"}]}])).texts_only
