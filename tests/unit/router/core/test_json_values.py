"""The depth of JSON, and the canonical spelling of its numbers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.json_values import is_deeper, normalize_numbers
from tests.support.factories import JSON_VALUES


def depth(value: Any) -> int:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if items is None else 1 + max(map(depth, items), default=0)


@given(value=JSON_VALUES.filter(lambda value: isinstance(value, dict | list)), limit=st.integers(1, 8))
def test_a_value_is_as_deep_as_its_deepest_list_or_object(value: Any, limit: int) -> None:
    assert is_deeper(value, limit) is (depth(value) > limit)


@pytest.mark.parametrize("levels", [10_000, 200_000])
def test_depth_is_measured_without_recursion(levels: int) -> None:
    deep: list[Any] = []
    top = deep
    for _ in range(levels - 1):
        deep.append([])
        deep = deep[0]
    assert is_deeper(top, levels - 1)
    assert not is_deeper(top, levels)
    while top:  # else Python frees the nested objects recursively
        top = top.pop()


def test_numbers_are_counted_and_refused_beyond_a_limit() -> None:
    fractions = {"a": [0.5, {"b": 0.5}], "c": 0.5, "d": [1, 2, 3, "0.5", None, True]}
    assert normalize_numbers(fractions, 3)
    assert not normalize_numbers(fractions, 2)


def test_true_stays_true() -> None:
    value = {"a": [True, 1.0, False, 0.0]}
    assert normalize_numbers(value, 9)
    assert repr(value) == "{'a': [True, 1, False, 0]}"
