"""An entry and the fields of its Redis hash are equivalent."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.store.codec import decode_entry
from tests.support.entry_factory import make_entry, redis_fields

BYTES = st.none() | st.binary(max_size=40)
HEX = st.text("0123456789abcdef", min_size=16, max_size=16)


@given(
    body=st.binary(max_size=40),
    stream=BYTES,
    created=st.integers(0, 2 * 10**12).map(lambda milliseconds: milliseconds / 1000),
    ttl=st.floats(0, 1e9),
    documents=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20)).map(tuple),
    question=HEX,
    params=HEX,
)
def test_a_written_entry_is_read_unchanged(**fields: Any) -> None:
    kept = make_entry(**fields)
    assert decode_entry(redis_fields(kept)) == kept


def test_a_missing_value_takes_no_field() -> None:
    assert {b"stream", b"documents", b"question", b"params"} & set(redis_fields(make_entry())) == set()


@pytest.mark.parametrize("value", [b"", b"{}", b"[1]", b"nonsense", b"\xff", b'"a"'])
def test_documents_that_cannot_be_read_make_the_entry_invalid(value: bytes) -> None:
    assert decode_entry({**redis_fields(make_entry()), b"documents": value}) is None
