"""What people see of scores, classes and tokens."""

import json
from typing import Any

import pytest
from hypothesis import given

from router.core.endpoints.recording.answer_text import answer_text
from tests.support.factories import JSON_VALUES, load_capture


@pytest.mark.parametrize(
    ("capture", "text"),
    [
        ("rerank-v1", "0.5664 document 2: Ships\n0.4903 document 0: The sea is deep."),
        ("score-pairs", "0.4898 document 0\n0.4662 document 1"),
        ("labels-classify", "input 0: LABEL_1, 0.3729"),
        ("labels-pooling", "input 0: 3 numbers\ninput 1: 3 numbers"),
        ("tokenize-strs", "4 tokens"),
        ("detokenize", "0:D"),
        ("count-tokens", "14 tokens"),
    ],
)  # fmt: skip
def test_each_item_is_a_line(capture: str, text: str) -> None:
    assert answer_text(load_capture(capture)[1]) == text


def test_a_long_document_is_cut() -> None:
    result = {"index": 0, "relevance_score": 1, "document": {"text": "a\n" * 500}}
    text = answer_text(json.dumps({"results": [result]}).encode())
    assert text is not None
    assert text.startswith("1.0000 document 0: a a a")
    assert (len(text), text[-1]) == (99, "…")


def test_vectors_of_tokens_are_counted() -> None:
    item = {"index": 0, "object": "pooling", "data": [[0.5], [0.5]]}
    assert answer_text(json.dumps({"data": [item]}).encode()) == "input 0: 2 vectors"


@given(JSON_VALUES)
def test_no_answer_raises(value: Any) -> None:
    for answer in (
        {"results": [value]}, {"results": [{"index": value, "relevance_score": 1, "document": value}]},
        {"data": [{"index": 0, "label": value, "probs": [value]}]},
        {"data": [{"index": 0, "object": "pooling", "data": [value]}]}, {"tokens": value}, {"input_tokens": value},
    ):  # fmt: skip
        answer_text(json.dumps(answer).encode())
