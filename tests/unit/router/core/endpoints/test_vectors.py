"""Vectors and scores without a number in some place are told from others, as JSON and in every encoding of vLLM."""

import json
import struct
from base64 import b64encode
from collections.abc import Callable
from typing import Any, Final

import pytest

from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.vectors import has_missing_numbers
from tests.support.endpoints import record_body
from tests.support.factories import classify, embeddings, pooling, rerank, score

NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize("value", [b"[0.1,null]", b"null", b"[[0.1],[null]]", b'"NaN"', b'["NaN",0.1]', b'"Infinity"'])
def test_null_and_words_are_no_numbers(value: bytes) -> None:
    assert has_missing_numbers(value, {})


@pytest.mark.parametrize("value", [b"0", b"-0.5", b"[0.1, 1e-9]", b"[[1,2],[3,4]]"])
def test_numbers_are_numbers(value: bytes) -> None:
    assert not has_missing_numbers(value, {})


TOO_LARGE = [
    b"1e999", b"-1E999", b"2e+308", b"1e0000400", b"1.5e99999999999999999999", b"9" * 309, b"-1" + b"0" * 400,
    b"1" + b"0" * 300 + b"e20", b"1" + b"0" * 400 + b".5",
]  # fmt: skip


@pytest.mark.parametrize("number", TOO_LARGE)
@pytest.mark.parametrize("count", [1, 3, 1000])
def test_a_number_that_no_float_can_hold_is_infinite_wherever_it_stands(number: bytes, count: int) -> None:
    assert has_missing_numbers(number, {})
    for place in {0, count // 2, count - 1}:
        numbers = [b"-1.2345678e-05"] * count
        numbers[place] = number
        assert has_missing_numbers(b"[%b]" % b",".join(numbers), {})
        assert has_missing_numbers(b"[[%b]]" % b", ".join(numbers), {})


@pytest.mark.parametrize(
    "number",
    [b"1e308", b"1.7976931348623157e+308", b"1e16", b"1E+16", b"1e-999", b"1" * 308, b"0." + b"1" * 500, b"1e+00016"],
)
def test_a_large_or_long_number_that_a_float_can_hold_is_a_number(number: bytes) -> None:
    assert not has_missing_numbers(b"[0.5,%b]" % number, {})
    assert not has_missing_numbers(b"[" + b",".join([number] * 100) + b"]", {})


def as_bfloat16(order: str, *numbers: float) -> bytes:
    high_halves = (struct.unpack(">HH", struct.pack(">f", number))[0] for number in numbers)
    return b"".join(struct.pack(f"{order}H", half) for half in high_halves)


@pytest.mark.parametrize("endianness", [None, "native", "little", "big"])
@pytest.mark.parametrize("dtype", [None, "float32", "float16", "bfloat16"])
def test_floats_in_base64_are_read_in_the_type_and_order_that_the_client_asked_for(
    dtype: str | None, endianness: str | None
) -> None:
    order = ">" if endianness == "big" else "<"
    fields = {"embed_dtype": dtype, "endianness": endianness}

    def missing(*numbers: float) -> bool:
        if dtype == "bfloat16":
            data = as_bfloat16(order, *numbers)
        else:
            data = struct.pack(f"{order}{len(numbers)}{'e' if dtype == 'float16' else 'f'}", *numbers)
        return has_missing_numbers(b'"%b"' % b64encode(data), fields)

    assert not missing(0.5, -0.25, 1e4, 0.0)
    assert [missing(0.5, number) for number in (NAN, INFINITY, -INFINITY)] == [True] * 3
    assert missing(INFINITY, -INFINITY)
    assert not missing(*[6e4] * 100)


@pytest.mark.parametrize(("dtype", "finite", "other"), [("fp8_e4m3", 0x7E, 0xFF), ("fp8_e5m2", 0x7B, 0x7C)])
def test_numbers_of_8_bits_are_read_by_their_type(dtype: str, finite: int, other: int) -> None:
    def missing(*numbers: int) -> bool:
        return has_missing_numbers(b'"%b"' % b64encode(bytes(numbers)), {"embed_dtype": dtype})

    assert not missing(0, 1, finite)
    assert missing(0, other, 1)


Make = Callable[..., InferenceRequest]
BODIES: Final[list[tuple[Make, dict[str, Any], list[Any]]]] = [
    (embeddings, {"object": "list", "data": [{"index": 0, "embedding": 0}]}, [[0.1, None]]),
    (pooling, {"data": [{"index": 0, "data": 0}]}, [[0.1, None], [[None], [0.1]]]),
    (classify, {"data": [{"index": 0, "probs": 0}]}, [[None, None]]),
    (score, {"data": [{"index": 0, "score": 0}]}, ["NaN"]),
    (rerank, {"results": [{"index": 0, "relevance_score": 0}]}, ["NaN"]),
]


@pytest.mark.parametrize(("make", "body", "values"), BODIES)
def test_what_has_no_number_in_some_place_is_not_stored(make: Make, body: dict[str, Any], values: list[Any]) -> None:
    made = make(**{"documents": ["one"]} if make in (score, rerank) else {"input": "one"})
    item = next(iter(body.values() if make is rerank else [body["data"]]))[0]
    name = next(name for name in item if name != "index")
    for value in values:
        item[name] = value
        assert record_body(made, json.dumps(body).encode(), 1 << 20) is NotStoredReason.NOT_FINITE
    item[name] = 0
    too_large = json.dumps(body).replace(f'"{name}": 0', f'"{name}": [0.5, 1e999]').encode()
    assert record_body(made, too_large, 1 << 20) is NotStoredReason.NOT_FINITE
    item[name] = [0.5]
    assert isinstance(record_body(made, json.dumps(body).encode(), 1 << 20), RecordedResponse)
