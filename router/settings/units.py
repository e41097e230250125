"""Durations and sizes in a configuration: a number and a unit."""

import re
from collections.abc import Mapping
from typing import Any, Final

_SECONDS_PER_UNIT: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES_PER_UNIT: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 1000, "MB": 10**6, "GB": 10**9}

_MOST: Final = 1e12
"""Seconds or bytes; clocks and Redis can represent as much."""


class Seconds(float):
    """A duration, written as a number and a unit: "500ms", "10s", "5m", "24h", "7d"; 0 and "0" need none."""


class Bytes(int):
    """A size, written as a number and a unit: "64KiB", "4MiB", "1GB"; 0 and "0" need none."""


def parse_quantity(kind: type[Any], value: Any) -> Any:
    """msgspec's `dec_hook` for Seconds and Bytes.

    Raises ValueError; its message continues the value, as in "'x' is no duration".
    """
    units: Mapping[str, float] = _SECONDS_PER_UNIT if kind is Seconds else _BYTES_PER_UNIT
    if value in (0, "0") and not isinstance(value, bool):
        return kind(0)
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]+)", value) if isinstance(value, str) else None
    if match is None or match[2] not in units:
        noun, example = ("duration", "10s") if kind is Seconds else ("size", "4MiB")
        raise ValueError(f'is not a {noun}; write a number and one of {", ".join(units)}, as in "{example}"')
    amount = float(match[1]) * units[match[2]]
    if amount > _MOST:
        raise ValueError("is too long; the maximum is 10^12 s" if kind is Seconds else
                         "is too large; the maximum is 10^12 B")  # fmt: skip
    return kind(amount)
