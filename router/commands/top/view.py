"""Lays out a snapshot for a terminal of any size. The same snapshot gives the same text."""

import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from router.commands.console import format_bytes, format_duration
from router.commands.top.client import Snapshot
from router.commands.top.formats import UNKNOWN, count, decimal, milliseconds, percent, seconds, sparkline
from router.commands.top.table import Column, build_table, share_lines
from router.core.plural import pluralize
from router.net.redis.refusals import REFUSALS_IN_WORDS
from router.shared.status.problems import is_well
from router.shared.status.status_documents import (
    EngineRow,
    LastHour,
    MinuteRow,
    Problem,
    RedisRow,
    RequestRow,
    RouterRow,
    Severity,
    StatusDocument,
    TrafficSums,
)
from router.telemetry.log_output import one_line

_MISSING: Final = "-"  # there is no such thing, as opposed to unknown
_FULL_KV_CACHE: Final = 0.9
_MIN_SPARKLINES: Final = 50  # cells; in a narrower terminal they would have no room
_FIXED_LINES: Final = 9  # of all parts but the header, the problems and the rows of the tables
_MAX_PROBLEMS: Final = 5  # lines
_PROBLEM_STYLES: Final[Mapping[Severity, str]] = {"critical": "bold red", "warning": "yellow", "info": "dim"}


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown.

    - `snapshot`: None before the first; `problem`: why there is no newer one.
    - `now` and `read_at`: seconds by the own clock; `read_at` is that of the snapshot.
    - `width` and `height` in cells; `height`: None for no limit.
    """

    url: str
    snapshot: Snapshot | None
    problem: str | None
    now: float
    read_at: float | None
    interval: float
    width: int
    height: int | None
    interactive: bool
    ascii_only: bool = False


def render(view: View) -> RenderableType:
    parts: list[RenderableType] = []
    if view.problem is not None:
        parts.append(_problem_line(view))
    if view.snapshot is not None:
        parts += _document_parts(view, view.snapshot)
    elif view.problem is None:
        parts.append(Text(f"reading the status of {view.url} …"))
    if view.interactive:
        parts.append(_line(f"q quits, r reads now; every {view.interval:g} s", view.width, "dim"))
    return Group(*parts)


def _problem_line(view: View) -> Text:
    age = f"; as of {format_duration(view.now - view.read_at)} ago" if view.read_at is not None else ""
    return _line(f"{view.problem}; trying again{age}", view.width, "bold red")


def _document_parts(view: View, snapshot: Snapshot) -> list[RenderableType]:
    status, requests = snapshot.status, snapshot.requests.requests if snapshot.requests is not None else ()
    header = [*_header(view.url, status, view.width), *_problems(status.problems, view)]
    engines = sorted(status.engines, key=is_well)  # stable: what fails comes first
    lines: list[int | None] = [None, None, None]
    if view.height is not None:
        available = view.height - len(header) - _FIXED_LINES - (view.problem is not None)
        lines = list(share_lines(available, [len(status.engines), len(status.routers), len(requests)]))
    return [
        *header,
        *_traffic(view, snapshot),
        build_table(_ENGINE_COLUMNS, engines, view.width, lines[0]),
        build_table(_ROUTER_COLUMNS, status.routers, view.width, lines[1]),
        build_table(_REQUEST_COLUMNS, requests, view.width, lines[2]),
    ]


def _line(text: str, width: int, style: str = "") -> Text:
    line = Text(one_line(text), style=style, no_wrap=True)
    line.truncate(width, overflow="ellipsis")
    return line


def _header(url: str, status: StatusDocument, width: int) -> list[Text]:
    """One line or, where that is too long, one for the routers and one for Redis."""
    clock = time.strftime("%H:%M:%S", time.localtime(status.now))
    versions = sorted({f"{r.version}{' compiled' if r.compiled else ''}" for r in status.routers})
    routers = f"{clock}  {url}  {pluralize(len(status.routers), 'router')} {', '.join(versions)}"
    redis = _redis(status.redis)
    works = status.redis.up and status.redis.refuses_writes is None
    line = f"{routers}  {redis}"
    return [
        _line(text, width, "bold" if works else "bold red")
        for text in ([line] if cell_len(one_line(line)) <= width else [routers, redis])
    ]


def _problems(problems: Sequence[Problem], view: View) -> list[Text]:
    most = len(problems) if view.height is None else min(_MAX_PROBLEMS, max(1, (view.height - _FIXED_LINES) // 3))
    first = problems if len(problems) <= most else problems[: max(1, most - 1)]
    lines = [_line(problem.words, view.width, _PROBLEM_STYLES[problem.severity]) for problem in first]
    if len(first) < len(problems) and most > 1:
        lines.append(_line(f"… {len(problems) - len(first)} more problems", view.width, "dim"))
    return lines


def _redis(redis: RedisRow) -> str:
    if not redis.up:
        return f"Redis is down ({redis.url})"
    memory = format_bytes(redis.used_memory)
    limit = f" of {format_bytes(redis.maxmemory)}" if redis.maxmemory is not None else ""
    keys = "1 key" if redis.keys == 1 else f"{count(redis.keys)} keys"
    if redis.refuses_writes is not None:
        return f"{REFUSALS_IN_WORDS[redis.refuses_writes]}: nothing is stored ({memory}{limit}, {keys})"
    return f"Redis {redis.version or UNKNOWN}: {memory}{limit}, {keys}"


# -- traffic ----------------------------------------------------------------------------------------------------------


class _Period(msgspec.Struct, frozen=True):
    """The traffic of a period; `first_token`: the percentiles of the time to the first token in words."""

    name: str
    sums: TrafficSums
    length: float
    hit_ratio: float | None
    first_token: str


_PERIOD_COLUMNS: Final[Sequence[Column[_Period]]] = (
    Column("", lambda p: p.name),
    Column("req/s", lambda p: decimal(p.sums.requests / p.length, 2), right=True),
    Column("hits", lambda p: percent(p.hit_ratio), rank=1, right=True),
    Column("TTFT p50/p99", lambda p: p.first_token, rank=5, max_width=40),
    Column("tok saved", lambda p: count(p.sums.saved_tokens), rank=2, right=True),
    Column("GPU saved", lambda p: seconds(p.sums.gpu_seconds_saved), rank=4, right=True),
    Column("spent", lambda p: seconds(p.sums.gpu_seconds_spent), rank=6, right=True),
    Column("rejected", lambda p: count(p.sums.rejected), rank=7, right=True),
    Column(
        "errors", lambda p: count(p.sums.errors), rank=3, right=True, style=lambda p: "red" if p.sums.errors else ""
    ),
)


def _traffic(view: View, snapshot: Snapshot) -> list[RenderableType]:
    minutes = snapshot.history.minutes if snapshot.history is not None else ()
    periods = [
        *([_minute(minutes[-2])] if len(minutes) >= 2 else []),  # the last row is the present minute, not yet over
        *([_hour(snapshot.status.last_hour)] if snapshot.status.last_hour is not None else []),
    ]
    if not periods:
        return [_line("The traffic is unknown while Redis is down.", view.width, "yellow")]
    return [build_table(_PERIOD_COLUMNS, periods, view.width, None), *_sparklines(view, minutes[:-1])]


def _minute(row: MinuteRow) -> _Period:
    looked_up = row.hits + row.misses + row.coalesced + row.stale
    hit, miss = row.ttft_ms.hit, row.ttft_ms.miss
    first_token = f"hit {_pair(hit.p50, hit.p99)}, miss {_pair(miss.p50, miss.p99)}"
    return _Period("minute", row, 60, row.hits / looked_up if looked_up else None, first_token)


def _hour(hour: LastHour) -> _Period:
    return _Period("hour", hour, 3600, hour.hit_ratio, _pair(hour.ttft_p50_ms, hour.ttft_p99_ms))


def _pair(p50: float | None, p99: float | None) -> str:
    """The unit of the first is that of the second, unless it says otherwise."""
    first, second = milliseconds(p50), milliseconds(p99)
    return f"{first.removesuffix('ms') if second.endswith('ms') else first}/{second}"


def _sparklines(view: View, minutes: Sequence[MinuteRow]) -> list[RenderableType]:
    """One for each of four numbers by minute, two on a line, with the highest value of each."""
    if view.width < _MIN_SPARKLINES:
        return []
    series = [
        ("requests", [float(row.requests) for row in minutes]), ("hits", [float(row.hits) for row in minutes]),
        ("tokens saved", [float(row.saved_tokens) for row in minutes]),
        ("GPU-s saved", [row.gpu_seconds_saved for row in minutes]),
    ]  # fmt: skip
    half = view.width // 2
    rendered = []
    for name, values in series:
        label, highest = f"{name:<12} ", f" {count(max(values, default=0.0))}"
        bars = sparkline(values, half - len(label) - len(highest) - 2, ascii_only=view.ascii_only)
        rendered.append(f"{label}{bars}{highest}".ljust(half))
    return [_line("".join(rendered[first : first + 2]).rstrip(), view.width, "cyan") for first in (0, 2)]


# -- engines, routers, requests ---------------------------------------------------------------------------------------


def _engine_state(engine: EngineRow) -> str:
    state = "asleep" if engine.asleep else engine.state
    return f"{state}, drained" if engine.drained else state


def _engine_style(engine: EngineRow) -> str:
    if engine.asleep:
        return "dim"
    if engine.drained and is_well(engine):
        return "yellow"
    return {"up": "green", "down": "bold red", "refused": "bold red"}.get(engine.state, "yellow")


def _load(engine: EngineRow) -> str:
    limit = "" if engine.max_in_flight is None else f"/{engine.max_in_flight}"
    return f"{engine.in_flight}{limit}"


def _is_full(engine: EngineRow) -> bool:
    return (engine.kv_cache_usage or 0.0) > _FULL_KV_CACHE


_ENGINE_COLUMNS: Final[Sequence[Column[EngineRow]]] = (
    Column("engine", lambda e: e.name),
    Column("model", lambda e: e.model, rank=4),
    Column("task", lambda e: e.task, rank=9),
    Column("state", _engine_state, style=_engine_style),
    Column("load", _load, right=True),
    Column("run", lambda e: count(e.running), rank=6, right=True),
    Column("wait", lambda e: count(e.waiting), rank=3, right=True, style=lambda e: "yellow" if e.waiting else ""),
    Column("KV", lambda e: percent(e.kv_cache_usage), right=True, style=lambda e: "red" if _is_full(e) else ""),
    Column("prefix", lambda e: percent(e.prefix_cache_hit_rate), rank=7, right=True),
    Column("accept", lambda e: percent(e.spec_acceptance_rate), rank=1, right=True),
    Column("tok/step", lambda e: decimal(e.spec_tokens_per_step, 2), rank=5, right=True),
    Column("breaker", lambda e: e.breaker, rank=1, style=lambda e: "" if e.breaker == "closed" else "bold red"),
    Column("draft", lambda e: e.draft or _MISSING, rank=8, max_width=24),
    Column("°C", lambda e: count(e.temperature_celsius), rank=10, right=True),
    Column("W", lambda e: count(e.power_watts), rank=11, right=True),
    Column("restarts", lambda e: count(e.restarts), rank=12, right=True),
)

_ROUTER_COLUMNS: Final[Sequence[Column[RouterRow]]] = (
    Column("router", lambda r: r.host, max_width=24),
    Column("pid", lambda r: str(r.pid), right=True),
    Column("in flight", lambda r: count(r.in_flight), right=True),
    Column("queued", lambda r: count(r.queued), right=True, style=lambda r: "yellow" if r.queued else ""),
    Column("state", lambda r: "draining" if r.draining else "serves", style=lambda r: "yellow" if r.draining else ""),
    Column("seen", lambda r: f"{format_duration(r.seen)} ago", rank=1),
    Column("version", lambda r: r.version, rank=2),
)


def _request_style(request: RequestRow) -> str:
    if request.status >= 500 or request.outcome == "failed":
        return "red"
    return {"HIT": "green", "STALE": "yellow", "COALESCED": "cyan"}.get(request.cache or "", "")


_REQUEST_COLUMNS: Final[Sequence[Column[RequestRow]]] = (
    Column("ended", lambda r: time.strftime("%H:%M:%S", time.localtime(r.at))),
    Column("cache", lambda r: r.cache or _MISSING, style=_request_style),
    Column("reason", lambda r: r.reason or _MISSING, max_width=20),
    Column("status", lambda r: str(r.status), right=True, style=_request_style),
    Column("tenant", lambda r: r.tenant, rank=2, max_width=16),
    Column("model", lambda r: r.model or _MISSING, rank=3, max_width=20),
    Column("engine", lambda r: r.engine or _MISSING, rank=1, max_width=20),
    Column("ms", lambda r: milliseconds(r.ms), right=True),
    Column("ttft", lambda r: milliseconds(r.ttft_ms), rank=4, right=True),
    Column("tokens", lambda r: count(r.completion_tokens), rank=5, right=True),
    Column("outcome", lambda r: r.outcome, rank=6),
    Column("request", lambda r: r.request_id, rank=7, max_width=36),
)
