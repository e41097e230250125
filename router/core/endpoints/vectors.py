"""Whether a vector, or another value of a pooling model, has a number in each place.

A model that overflows gives NaN or infinity. As JSON, engines send null for them, or a number such as 1e999, which
clients read as infinity; in base64 they are floats as others. Such a response is passed on and never stored: the same
engine, asked again, may give numbers.

Source: vLLM's utils/serial_utils.py for the types of `embed_dtype`.
"""

import binascii
import re
import sys
from array import array
from base64 import b64decode
from collections.abc import Mapping
from math import isfinite, isinf
from struct import unpack
from typing import Any, Final

_NOT_FINITE_FP8: Final[Mapping[str, bytes]] = {
    "fp8_e4m3": bytes((0x7F, 0xFF)),
    "fp8_e5m2": bytes(number for number in range(256) if number & 0x7C == 0x7C),
}
"""By type: the bytes that are no finite number."""

# A number of at most so many bytes, with an exponent below 10, is below 1e308, and so finite. The pattern begins with a
# letter, since that is searched for much faster than one of two letters.
_SHORT_NUMBER: Final = 298
_LARGE_EXPONENT: Final = re.compile(rb"e\+?0*[1-9][0-9]")

_NUMBER: Final = re.compile(rb"[-+.0-9eE]+")


def has_missing_numbers(value: bytes, fields: Mapping[str, Any]) -> bool:
    """`value`: JSON with numbers, or base64 as a JSON string. `fields`: of the request."""
    if not value.startswith(b'"'):
        return b"n" in value or b'"' in value or _overflows(value)  # null; some engines write "NaN" as a text
    try:
        data = b64decode(value[1:-1].replace(b"\\/", b"/"), validate=True)
        return not _is_finite(data, fields.get("embed_dtype") or "float32", fields.get("endianness") == "big")
    except (ValueError, binascii.Error):  # not base64, or another number of bytes than numbers of the type have
        return True


def _overflows(value: bytes) -> bool:
    """Whether a number is infinite as a float. `value`: JSON of numbers."""
    # Vectors have thousands of numbers, so these are only parsed if one looks as if it could be infinite.
    lowered = value.lower() if b"E" in value else value
    if _LARGE_EXPONENT.search(lowered) is None and not _has_long_number(value):
        return False
    return any(isinf(float(number)) for number in _NUMBER.findall(value))


def _has_long_number(value: bytes) -> bool:
    """Whether there may be a number of more than _SHORT_NUMBER bytes, since so many bytes are without a comma."""
    at = 0
    while len(value) - at > _SHORT_NUMBER:
        comma = value.rfind(b",", at, at + _SHORT_NUMBER + 1)
        if comma < 0:
            return True
        at = comma + 1
    return False


def _is_finite(data: bytes, dtype: Any, big_endian: bool) -> bool:
    if dtype in _NOT_FINITE_FP8:
        return len(data.translate(None, _NOT_FINITE_FP8[dtype])) == len(data)
    if dtype == "float16":
        if len(data) % 2:
            return False
        return isfinite(sum(unpack(f"{'>' if big_endian else '<'}{len(data) // 2}e", data)))
    if dtype == "bfloat16":
        bits = array("H", data)
        if big_endian is not (sys.byteorder == "big"):
            bits.byteswap()
        return all(number & 0x7F80 != 0x7F80 for number in bits)
    numbers = array("f", data)
    if big_endian is not (sys.byteorder == "big"):
        numbers.byteswap()
    return isfinite(sum(numbers))  # a sum of doubles: only NaN or infinity makes it either
