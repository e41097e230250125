"""JSON Lines, checked for their form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.json_lines import JsonLineError, JsonLines


def check(data: bytes, *, max_line: int = 1000, cuts: list[int] | None = None) -> JsonLines:
    lines = JsonLines(max_line)
    ends = sorted({cut % (len(data) + 1) for cut in cuts or []})
    for start, end in zip([0, *ends], [*ends, len(data)], strict=True):
        lines.feed(data[start:end])
    lines.end()
    return lines


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b'{"a": 1}', 1),
        (b'{"a": 1}\n', 1),
        (b'{"a": 1}\r\n{"b": [{}]}\r\n', 2),
        (b'{"a": 1}\n\n \t\r\n', 1),
        (b'  {"a": "\xc3\xa4"}  \n{}', 2),
        (b"", 0),
    ],
)
def test_lines_of_objects_are_accepted_and_counted(data: bytes, count: int) -> None:
    assert check(data).count == count


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"a": 1}\n[1]\n', "line 2 is not a JSON object"),
        (b'{"a": 1}\n{"a": \n', "line 2 is not valid JSON"),
        (b'{"a": 1} {"b": 1}\n', "line 1 is not valid JSON"),
        (b'{"a": 1}\n\n{"a": 2}\n', "line 2 is empty; only the end of a file may be"),
        (b'{"a": "\xff"}\n', "line 1 is not UTF-8"),
        (b'\xef\xbb\xbf{"a": 1}\n', "line 1 begins with a byte order mark, which JSON may not have"),
        (b'{"a": 1}\n' + b'{"a": "%s"}' % (b"x" * 1000), "line 2 has more than 1000 bytes"),
        (b'{"a":' + b"[" * 900 + b"\n", "line 1 is not valid JSON"),
        (b"PK\x03\x04\x00\n", "line 1 is not valid JSON"),
    ],
)
def test_the_first_other_line_is_named(data: bytes, message: str) -> None:
    with pytest.raises(JsonLineError) as refused:
        check(data)
    assert str(refused.value) == message


@given(
    st.lists(st.sampled_from([b"{}", b'{"a":"\xc3\xa4"}', b"[]", b"", b"x", b'{"a":1}\r']), max_size=6),
    st.lists(st.integers(0, 100), max_size=5),
)
def test_it_does_not_matter_how_the_file_is_cut(lines: list[bytes], cuts: list[int]) -> None:
    data = b"\n".join(lines)
    assert outcome(data, []) == outcome(data, cuts)


def outcome(data: bytes, cuts: list[int]) -> int | str:
    try:
        return check(data, cuts=cuts).count
    except JsonLineError as error:
        return str(error)


def test_a_line_that_does_not_end_is_refused_before_it_is_held() -> None:
    lines = JsonLines(100)
    lines.feed(b'{"a": "' + b"x" * 50)
    assert lines.held == 57
    with pytest.raises(JsonLineError, match="line 1 has more than 100 bytes"):
        lines.feed(b"x" * 50)
