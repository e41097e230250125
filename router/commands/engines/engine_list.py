"""`roundhouse engines list`."""

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import click
import msgspec
import typer
from msgspec.structs import replace

from router.commands.console import (
    ConfigOption,
    JsonLinesOption,
    format_duration,
    load_settings,
    print_err,
    write_json,
    write_table,
)
from router.commands.engines.engine_access import probe_engines, with_announced
from router.commands.redis import with_redis
from router.commands.router_view import read_router_view
from router.settings import DEFAULT_PATH, Settings
from router.shared.status.status_documents import EngineState

if TYPE_CHECKING:  # imported by the commands that need them, since they would slow all others down
    from router.commands.router_view import RouterView
    from router.upstream.engine import Engine

_REFRESH_INTERVAL: Final = 2.0  # seconds
_TITLES: Final = (
    "engine", "model", "task", "state", "running", "waiting", "kv cache", "prefix hits", "prefixes", "unused",
    "s/token", "tokens/step", "url",
)  # fmt: skip


class EngineRow(msgspec.Struct, frozen=True):
    """An engine's present status, from a probe; None means unknown, never 0.

    - `prefix_cache_hit_rate` (0 to 1) and `tokens_per_step` (with speculative decoding): since the engine's start.
    - `seen_by`: the router process that believes `prefix_tokens` to `seconds_per_token`, see PrefixIndexStatus, and
      for which the engine is `asleep`: it is started, or wakes up, when a request comes.
    """

    name: str
    model: str
    task: str
    url: str
    up: bool | None
    state: EngineState
    drained: bool
    running: float | None
    waiting: float | None
    kv_cache_usage: float | None
    prefix_cache_hit_rate: float | None
    tokens_per_step: float | None
    seen_by: str | None = None
    prefix_tokens: int | None = None
    prefix_capacity_tokens: int | None = None
    prefix_entries: int | None = None
    prefix_unused_seconds: float | None = None
    seconds_per_token: float | None = None
    asleep: bool = False


def list_command(
    config: ConfigOption = Path(DEFAULT_PATH),
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat every 2 seconds, until Ctrl-C.")] = False,
    as_json: JsonLinesOption = False,
) -> None:
    """List the engines: which are up, which are drained, and what they work on."""
    settings = load_settings(config)
    while True:
        rows = _read_rows(settings, config)
        if watch and not as_json:
            click.clear()
        if as_json:
            for row in rows:
                write_json(row)
        else:
            write_table([_TITLES, *map(_table_row, rows)])
            if seen_by := ", ".join(sorted({row.seen_by for row in rows if row.seen_by is not None})):
                print_err(f"prefixes, unused and s/token: as the router process {seen_by} sees it")
        if not watch:
            return
        time.sleep(_REFRESH_INTERVAL)


def _read_rows(settings: Settings, config: Path) -> list[EngineRow]:
    with_fleet, drained = with_announced(settings, config)
    engines = asyncio.run(probe_engines(with_fleet, lambda _: True))
    view = with_redis(settings, config, read_router_view)
    return [_engine_row(engine, drained, view) for engine in engines]


def _engine_row(engine: "Engine", drained: set[str], view: "RouterView") -> EngineRow:
    gauges, believed = engine.gauges, view.engines.get(engine.name)
    row = EngineRow(
        name=engine.name, model=engine.model, task=engine.task, url=engine.url, up=engine.up,
        state=engine.state, drained=engine.name in drained, running=gauges.running, waiting=gauges.waiting,
        kv_cache_usage=gauges.kv_cache_usage, prefix_cache_hit_rate=gauges.prefix_cache_hit_rate,
        tokens_per_step=gauges.spec_tokens_per_step,
    )  # fmt: skip
    if believed is None:
        return row
    return replace(
        row, seen_by=view.process, prefix_tokens=believed.prefix_tokens,
        prefix_capacity_tokens=believed.prefix_capacity_tokens, prefix_entries=believed.prefix_entries,
        prefix_unused_seconds=believed.prefix_unused_seconds, seconds_per_token=believed.seconds_per_token,
        asleep=believed.asleep,
    )  # fmt: skip


def _table_row(row: EngineRow) -> tuple[str, ...]:
    def number(value: Any, form: str = "g") -> str:
        return "?" if value is None else f"{value:{form}}"

    state = ("asleep" if row.asleep else row.state) + (", drained" if row.drained else "")
    return (
        row.name, row.model, row.task, state, number(row.running), number(row.waiting),
        number(row.kv_cache_usage, ".0%"), number(row.prefix_cache_hit_rate, ".0%"),
        f"{number(row.prefix_tokens, ',')}/{number(row.prefix_capacity_tokens, ',')}",
        format_duration(row.prefix_unused_seconds), number(row.seconds_per_token, ".2g"),
        number(row.tokens_per_step, ".2f"), row.url,
    )  # fmt: skip
