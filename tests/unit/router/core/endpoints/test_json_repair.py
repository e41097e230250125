"""JSON that strict decoders refuse becomes readable; nothing else changes."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.endpoints.recording.json_repair import repaired


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"[NaN, 1, -Infinity,Infinity]", b"[null, 1, null,null]"),
        (b'{"a":NaN}', b'{"a":null}'),
        (b'{"a":"NaN"}', None),
        (b'{"a":"\\ud83d"}', b'{"a":"\\ufffd"}'),
        (b'{"a":"\\ude00 x"}', b'{"a":"\\ufffd x"}'),
        (b'{"a":"\\ud83d\\ude00"}', None),
        (b'{"a":"\\ud83d\\ud83d\\ude00"}', b'{"a":"\\ufffd\\ud83d\\ude00"}'),
        (b'{"a":"\\\\ud83d"}', None),
        (b'{"a":1}', None),
    ],
)
def test_what_is_repaired(data: bytes, expected: bytes | None) -> None:
    assert repaired(data) == expected


@given(st.recursive(st.floats() | st.text(st.characters(exclude_categories=())), st.lists))
def test_whatever_python_writes_can_be_read(value: object) -> None:
    written = json.dumps({"a": value}).encode()
    msgspec.json.decode(repaired(written) or written)
