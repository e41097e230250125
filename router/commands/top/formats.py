"""Formats numbers for the view: short, and `?` for what is unknown."""

from collections.abc import Sequence
from typing import Final

UNKNOWN: Final = "?"

_BARS: Final = "▁▂▃▄▅▆▇█"
_ASCII_BARS: Final = "_.:-=+*#"


def count(number: float | None) -> str:
    """At most six characters, as in 9,999 or 12.3k."""
    if number is None:
        return UNKNOWN
    if number < 9999.5:
        return f"{number:,.0f}"
    for unit in ("k", "M", "G"):
        number /= 1000
        if number < 999.95:
            return f"{number:.1f}{unit}"
    return f"{number / 1000:,.1f}T"


def decimal(number: float | None, digits: int = 1) -> str:
    return UNKNOWN if number is None else f"{number:.{digits}f}"


def percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share:.0%}"


def milliseconds(number: float | None) -> str:
    """The unit is ms up to 10 seconds, then s."""
    if number is None:
        return UNKNOWN
    if number < 10:
        return f"{number:.1f}ms"
    return f"{number:.0f}ms" if number < 10_000 else f"{number / 1000:.1f}s"


def seconds(number: float) -> str:
    """The unit is s, below two hours."""
    return f"{number:.1f}s" if number < 100 else f"{count(number)}s"


def sparkline(values: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """A bar for each of the last `width` values; the highest of them has the highest bar, 0 the lowest."""
    shown = values[-width:] if width > 0 else ()
    highest = max(shown, default=0.0)
    bars = _ASCII_BARS if ascii_only else _BARS
    if highest <= 0:
        return bars[0] * len(shown)
    return "".join(bars[min(len(bars) - 1, round(value / highest * (len(bars) - 1)))] for value in shown)
