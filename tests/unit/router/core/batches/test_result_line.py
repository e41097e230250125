"""Lines of output and error files, in OpenAI's form, each on one line."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.batches.completion_window import parse_window
from router.core.batches.line_index import LineEntry, OrderedLines, order_key, unpack_entries
from router.core.batches.result_line import error_line, is_cached, line_id, number_of, response_line
from router.errors import ApiError


def test_a_response_is_on_one_line_however_its_engine_wrote_it() -> None:
    body = json.dumps({"choices": [{"text": "a\nb"}]}, indent=2).encode()
    line = response_line(line_id("batch_5f", 26), 'a"b', 200, "req", "HIT", body)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "id": "batch_req_5f0000001a",
        "custom_id": 'a"b',
        "response": {"status_code": 200, "cache": "HIT", "request_id": "req", "body": {"choices": [{"text": "a\nb"}]}},
        "error": None,
    }


@given(st.text(st.sampled_from('a\\"\x0b\x1c\x85\u2028\u2029ä'), max_size=20))
def test_a_result_is_one_line_also_for_readers_that_split_at_unicodes_line_breaks(text: str) -> None:
    body = json.dumps({"text": text}, ensure_ascii=False).encode()
    for line in (response_line("x", text, 200, "", "HIT", body), error_line("x", text, 1, "", text)):
        assert len(line.decode().splitlines()) == 1
        assert json.loads(line)["custom_id"] == text
    assert json.loads(response_line("x", "", 200, "", "HIT", body))["response"]["body"] == {"text": text}


def test_an_error_names_the_line() -> None:
    assert json.loads(error_line("x", None, 3, "code", "Words.")) == {
        "id": "x",
        "custom_id": None,
        "response": None,
        "error": {"code": "code", "message": "Words.", "line": 3},
    }


@given(st.integers(1, 2**31), st.text(max_size=9))
def test_a_result_tells_the_number_of_its_line(number: int, custom_id: str) -> None:
    id_ = line_id("batch_0123456789abcdef01234567", number)
    assert number_of(response_line(id_, custom_id, 200, "", "MISS", b"{}")) == number
    assert number_of(error_line(id_, custom_id, number, "", "")) == number


@given(st.text(max_size=600), st.sampled_from(["HIT", "STALE", "COALESCED", "MISS", "BYPASS", ""]))
def test_a_result_tells_whether_it_came_from_the_cache(custom_id: str, cache: str) -> None:
    for text in (custom_id, ',"response":{"status_code":200,"cache":"HIT"'):
        line = response_line("x", text, 200, "", cache, b'{"cache":"HIT"}')
        assert is_cached(line) == (cache in ("HIT", "STALE", "COALESCED"))
    assert not is_cached(error_line("x", custom_id, 1, "", '"cache":"HIT"'))


@given(st.binary(max_size=60))
def test_what_is_no_result_has_no_number(line: bytes) -> None:
    number_of(line)
    assert number_of(b"") is None
    assert number_of(b'{"id":"batch_req_nonsense"') is None


@given(
    st.lists(
        st.builds(LineEntry, st.integers(0, 2**63), st.integers(0, 2**31), st.integers(0, 2**31), st.just(1)),
        unique_by=lambda entry: entry.number,
    )
)
def test_entries_are_had_by_their_keys_and_numbers(entries: list[LineEntry]) -> None:
    keys = [b"", b"a" * 8, b"a" * 8 + b"b" * 8]
    lines = OrderedLines()
    for entry in entries:
        lines.add(keys[entry.number % 3], entry)
    assert len(lines) == len(entries)
    expected = sorted(entries, key=lambda entry: (keys[entry.number % 3], entry.number))
    assert list(unpack_entries(b"".join(lines.packed()))) == expected


def test_lines_are_sorted_a_few_at_a_time() -> None:
    # One long sort would hold up the event loop, from a thread, too.
    lines = OrderedLines()
    for number in range(5000):
        lines.add(b"%08d" % (5000 - number), LineEntry(0, 0, number, 0))
    packed = lines.packed()
    assert [entry.number for entry in unpack_entries(b"".join(packed))] == list(range(4999, -1, -1))


def test_bodies_that_begin_alike_are_neighbours() -> None:
    systems = [bytes([65 + number]) * 3000 for number in range(4)]
    bodies = [system + b"%d" % number for number in range(5) for system in systems]
    ordered = sorted(bodies, key=order_key)
    changes = sum(one[:1] != other[:1] for one, other in pairwise(ordered))
    assert changes == len(systems) - 1


@pytest.mark.parametrize(("text", "seconds"), [("24h", 86400), ("7d", 604_800), ("90m", 5400), ("30d", 2_592_000)])
def test_windows_are_durations(text: str, seconds: int) -> None:
    assert parse_window(text) == seconds


@pytest.mark.parametrize("text", ["", "24", "0h", "-1h", "1.5h", "31d", "24H", "h", "24 h", "99999999d", "24h\n"])
def test_other_windows_are_refused(text: str) -> None:
    with pytest.raises(ApiError):
        parse_window(text)
