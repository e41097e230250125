"""Whether a vector, or another value of a pooling model, has a number in each place.

A model that overflows gives NaN or infinity. As JSON, engines send null for them; in base64 they are floats as others.
Such a response is passed on and never stored: the same engine, asked again, may give numbers.

Source: vLLM's utils/serial_utils.py for the types of `embed_dtype`.
"""

import binascii
import sys
from array import array
from base64 import b64decode
from collections.abc import Mapping
from math import isfinite
from struct import unpack
from typing import Any, Final

_NOT_FINITE_FP8: Final[Mapping[str, bytes]] = {
    "fp8_e4m3": bytes((0x7F, 0xFF)),
    "fp8_e5m2": bytes(number for number in range(256) if number & 0x7C == 0x7C),
}
"""By type: the bytes that are no finite number."""


def has_missing_numbers(value: bytes, fields: Mapping[str, Any]) -> bool:
    """`value`: JSON with numbers, or base64 as a JSON string. `fields`: of the request."""
    if not value.startswith(b'"'):
        return b"null" in value or b'"' in value  # some engines write "NaN"
    try:
        data = b64decode(value[1:-1].replace(b"\\/", b"/"), validate=True)
        return not _is_finite(data, fields.get("embed_dtype") or "float32", fields.get("endianness") == "big")
    except (ValueError, binascii.Error):  # not base64, or another number of bytes than numbers of the type have
        return True


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
