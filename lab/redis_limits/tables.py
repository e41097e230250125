"""The results of a part as a table in Markdown, as in docs/redis-limits.md. The JSON file has the figures unrounded."""

from collections.abc import Callable, Mapping, Sequence
from math import floor, log10
from typing import Any, Final

Row = Mapping[str, Any]
Column = tuple[str, Callable[[Row], object]]


def table(part: str, rows: Sequence[Row]) -> str:
    columns = COLUMNS[part]
    lines = [
        [heading for heading, _ in columns],
        ["---"] * len(columns),
        *([_cell(read(row)) for _, read in columns] for row in rows if part != "followers" or _is_follower(row)),
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _is_follower(row: Row) -> bool:
    return bool(row["what"] == "follower")


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)


def _two_digits(value: float | None) -> str | None:
    """Two significant digits: CPU times differ by several per cent from run to run."""
    if not value:
        return None
    digits = 1 - floor(log10(value))
    return f"{round(value, digits):,.0f}" if digits <= 0 else f"{round(value, digits):g}"


def _field(name: str) -> Callable[[Row], object]:
    return lambda row: row[name]


def _rounded(name: str) -> Callable[[Row], object]:
    return lambda row: _two_digits(row[name])


def _percent(name: str) -> Callable[[Row], object]:
    return lambda row: " / ".join(f"{100 * share:.0f}" for share in row.get(name, []))


def _of_a_million(name: str) -> Callable[[Row], float]:
    return lambda row: row[name] * 1e6 / row["entries"]


def _gigabytes(name: str) -> Callable[[Row], object]:
    return lambda row: f"{_of_a_million(name)(row) / 1e3:.1f} GB"


def _seconds(name: str) -> Callable[[Row], object]:
    return lambda row: f"{_of_a_million(name)(row):.0f} s"


_REQUEST: Final[Column] = ("request", lambda row: {"hit": "hit", "miss": "JSON miss"}[row["what"]])
_COSTS: Final[Sequence[Column]] = (
    _REQUEST,
    ("routers", _field("routers")),
    ("connections to each router", _field("connections")),
    ("commands per read", _field("commands_per_read")),
    ("bytes to Redis", _field("bytes_in")),
    ("bytes from Redis", _field("bytes_out")),
    ("CPU, µs", _rounded("cpu_us")),
    ("per core, per second", _rounded("per_core")),
)

COLUMNS: Final[Mapping[str, Sequence[Column]]] = {
    "hits": _COSTS,
    "misses": _COSTS,
    "followers": (
        ("followed streams at a time", _field("connections")),
        ("commands per read", _field("commands_per_read")),
        ("commands per second of the stream", _field("commands_per_second")),
        ("bytes of a stream, both directions", lambda row: row["bytes_in"] + row["bytes_out"]),
        ("CPU per second of the stream, µs", _rounded("cpu_us_per_second")),
        ("followed streams at a time per core", _rounded("followed_at_once_per_core")),
        ("followers per core, per second", _rounded("per_core")),
    ),
    "saturation": (
        _REQUEST,
        ("requests in a batch", _field("batch")),
        ("CPU, µs", _rounded("cpu_us")),
        ("per core, per second", _rounded("per_core")),
        ("per second by the clock", _rounded("per_second")),
        ("share of Redis' core, %", lambda row: f"{100 * row['core_share']:.0f}"),
    ),
    "cluster": (
        ("Redis", _field("redis")),
        _REQUEST,
        ("commands", _field("commands")),
        ("commands per read", _field("commands_per_read")),
        ("CPU of all primaries, µs", _rounded("cpu_us")),
        ("share of each primary in CPU time, %", _percent("cpu_shares")),
        ("in commands, %", _percent("command_shares")),
        ("per core of the busiest, per second", _rounded("busiest_per_core")),
    ),
    "failover": (
        ("Redis", _field("redis")),
        ("primary", _field("fault")),
        ("cache back after, s", lambda row: row["last_bypass_s"] or "at once"),
        ("requests without the cache", _field("bypassed")),
        ("failed", _field("failed")),
        ("over 100 ms", _field("over_100_ms")),
        ("slowest, ms", _field("slowest_ms")),
        ("generated again", _field("generated_again")),
        ("lost entries", lambda row: f"{row['lost_entries']} of {row['stored_before']}"),
    ),
    "memory": (
        ("entries", _field("kind")),
        ("measured with", _field("entries")),
        ("entry, bytes", _field("entry_bytes")),
        ("in total, bytes", _field("used_per_entry")),
        ("a million: memory", _gigabytes("used_mb")),
        ("fragmentation", _field("fragmentation")),
        ("a million: RDB file", _gigabytes("rdb_mb")),
        ("a million: save, CPU", _seconds("save_cpu_s")),
        ("a million: load, CPU", _seconds("load_cpu_s")),
        ("a million: load by the clock", _seconds("load_s")),
    ),
}
