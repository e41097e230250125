"""The headers traceparent and tracestate: what is accepted, and what is left out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.trace_context import (
    MAX_TRACESTATE,
    TraceContext,
    format_traceparent,
    parse_traceparent,
    traceparent_of,
    tracestate_of,
)

TRACE, SPAN = b"0af7651916cd43dd8448eb211c80319c", b"b7ad6b7169203331"
VALID = b"00-" + TRACE + b"-" + SPAN + b"-01"


@pytest.mark.parametrize("value", [VALID, b"01-" + VALID[3:], b"fe-" + VALID[3:], VALID[:-2] + b"ff"])
def test_a_well_formed_traceparent_is_taken_as_it_is(value: bytes) -> None:
    assert traceparent_of([value]) == value.decode()


@pytest.mark.parametrize(
    "values",
    [
        [],
        [b""],
        [b"ff-" + VALID[3:]],
        [b"00-" + b"0" * 32 + VALID[35:]],
        [VALID[:36] + b"0" * 16 + VALID[52:]],
        [VALID.upper()],
        [VALID + b"-more"],
        [b" " + VALID],
        [VALID + b"\n"],
        [VALID[:-1] + "٣".encode()],
        [VALID, VALID],
    ],
)
def test_a_traceparent_that_is_malformed_or_sent_twice_is_left_out(values: list[bytes]) -> None:
    assert traceparent_of(values) is None


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_a_context_is_the_same_after_a_round_trip(trace_id: int, span_id: int, sampled: bool) -> None:
    context = TraceContext(trace_id, span_id, sampled)
    written = format_traceparent(context)
    assert traceparent_of([written.encode()]) == written
    assert parse_traceparent(written) == context


def test_only_the_sampled_bit_of_the_flags_counts() -> None:
    assert [parse_traceparent(f"{VALID[:-2].decode()}{flags}").sampled for flags in ("00", "01", "02", "03")] == [
        False, True, False, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([b"a=1"], "a=1"),
        ([b"a=1, b=2"], "a=1,b=2"),
        ([b"a=1", b"b=2"], "a=1,b=2"),
        ([b"a=1,,b=2,"], "a=1,b=2"),
        ([b"tenant@vendor=x y:z"], "tenant@vendor=x y:z"),
        ([b"a=" + b"x" * 256], "a=" + "x" * 256),
    ],
)
def test_the_members_of_a_tracestate_become_one_value(values: list[bytes], expected: str) -> None:
    assert tracestate_of(values) == expected


@pytest.mark.parametrize(
    "values",
    [
        [], [b""], [b","], [b"a"], [b"=1"], [b"A=1"], [b"a=1\r\nx: y"], [b"a=1\x00"], [b"a=\xc3\xa9"], [b"a=1=2"],
        [b"a=" + b"x" * 257], [b"a=1" for _ in range(33)], [b"a=" + b"x" * 250, b"b=" + b"x" * 250, b"c=" + b"x" * 250],
    ],
)  # fmt: skip
def test_a_tracestate_that_is_malformed_or_too_large_is_left_out(values: list[bytes]) -> None:
    assert tracestate_of(values) is None


@given(st.lists(st.binary(max_size=300), max_size=4))
def test_no_tracestate_can_break_a_header_line(values: list[bytes]) -> None:
    state = tracestate_of(values)
    assert state is None or (state.isascii() and state.isprintable() and len(state) <= MAX_TRACESTATE + 4)
