"""`roundhouse engines`: the engines' status, drain and resume in every router at once, and a check before their start.

The others probe the engines and write to Redis directly, so they need neither a router nor an admin key.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from router.commands.console import (
    EXIT_USAGE,
    ConfigOption,
    JsonLinesOption,
    JsonOption,
    VllmPythonOption,
    fail,
    load_settings,
    print_err,
    progress,
    write_json,
    write_table,
)
from router.commands.logs import logs
from router.commands.redis import with_redis
from router.settings import DEFAULT_PATH, Settings

if TYPE_CHECKING:  # imported by the commands that need them, since they would slow all others down
    from router.net.redis.commands import Command
    from router.upstream.catalog import Catalog, Engine

POLL_INTERVAL: Final = 0.5
"""Seconds between two probes of an engine that should become idle."""

# Probes in a row that must find the engine idle: until then, routers have the drain, and no request is on its way.
_IDLE_POLLS: Final = 3

EngineNameArgument = Annotated[str, typer.Argument(help="Engine name, as in `roundhouse engines list`.")]

app = typer.Typer(
    help="List the engines; check them before their start; drain, resume and restart one; show its log.",
    no_args_is_help=True,
)
app.command()(logs)


class EngineRow(msgspec.Struct, frozen=True):
    """An engine's present status, from a probe; None means unknown, never 0."""

    name: str
    model: str
    task: str
    url: str
    up: bool | None
    drained: bool
    running: float | None
    waiting: float | None
    kv_cache_usage: float | None


@app.command(name="list")
def list_command(config: ConfigOption = Path(DEFAULT_PATH), as_json: JsonLinesOption = False) -> None:
    """List the engines: which are up, which are drained, and what they work on."""
    settings = load_settings(config)
    drained = _drained_engines(settings, config)
    rows = [_engine_row(engine, drained) for engine in asyncio.run(_probe_engines(settings, lambda _: True))]
    if as_json:
        for row in rows:
            write_json(row)
    else:
        titles = ("engine", "model", "task", "state", "running", "waiting", "kv cache", "url")
        write_table([titles, *map(_table_row, rows)])


@app.command()
def preflight(
    config: ConfigOption = Path(DEFAULT_PATH), vllm_python: VllmPythonOption = None, as_json: JsonOption = False
) -> None:
    """Find what would keep engines from starting or serving, before `roundhouse up` starts them."""
    from router.commands.engine_plan import build_plan, exec_engines

    command = ["preflight", "--json"] if as_json else ["preflight"]
    exec_engines(command, build_plan(load_settings(config), config, "vllm", vllm_python))


@app.command()
def drain(
    name: EngineNameArgument,
    config: ConfigOption = Path(DEFAULT_PATH),
    wait: Annotated[bool, typer.Option("--wait", help="Return when the engine is idle.")] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Timeout of --wait, in seconds.")] = 600.0,
    as_json: JsonOption = False,
) -> None:
    """Send no new requests to an engine, from any router; running ones continue to their end."""
    from router.shared.drains import drain_command

    settings = _send_change(name, config, drain_command(name))
    idle = _wait_with_progress(settings, name, timeout) if wait else None
    if as_json:
        write_json({"engine": name, "drained": True, "idle": idle})
    else:
        typer.echo(f"{name} is drained" + (" and idle" if idle else ""))
    if idle is False:
        fail(f"engine {name} did not become idle within {timeout:g}s; it stays drained")


@app.command()
def resume(name: EngineNameArgument, config: ConfigOption = Path(DEFAULT_PATH), as_json: JsonOption = False) -> None:
    """Send requests to an engine again, from every router."""
    from router.shared.drains import resume_command

    _send_change(name, config, resume_command(name))
    if as_json:
        write_json({"engine": name, "drained": False})
    else:
        typer.echo(f"{name} is back in service")


@app.command()
def restart(
    name: EngineNameArgument,
    config: ConfigOption = Path(DEFAULT_PATH),
    timeout: Annotated[
        float, typer.Option(min=0, help="Timeout, in seconds, of the drain and again of the restart.")
    ] = 1800.0,
    as_json: JsonOption = False,
) -> None:
    """Drain an engine that `roundhouse up` has started, restart it when it is idle, and resume it."""
    from router.commands.restart import is_up_running, request_restart
    from router.shared.drains import drain_command, resume_command

    before = load_settings(config)
    if not is_up_running(before.control_socket):
        fail(f"no `roundhouse up` with {config} runs on this machine; {name} was not restarted")
    was_drained = name in _drained_engines(before, config)
    settings = _send_change(name, config, drain_command(name))
    try:
        if not _wait_with_progress(settings, name, timeout):
            fail(f"engine {name} did not become idle within {timeout:g}s; it was not restarted")
        print_err(f"{name} is idle; restarting it")
        error = request_restart(settings.control_socket, name, timeout)
    except TimeoutError:
        fail(f"engine {name} was not ready {timeout:g}s after its restart; see `roundhouse engines logs {name}`")
    finally:
        if not was_drained:
            _send_change(name, config, resume_command(name))
    if error is not None:
        fail(f"engine {name} was not restarted: {error}")
    if as_json:
        write_json({"engine": name, "restarted": True, "drained": was_drained})
    else:
        typer.echo(f"{name} is restarted" + ("; it stays drained" if was_drained else " and back in service"))


def _drained_engines(settings: Settings, config: Path) -> set[str]:
    from router.shared.drains import decode_drains, read_drains_command
    from router.store.admin.scan import execute_commands

    (states,) = with_redis(settings, config, lambda client: execute_commands(client, [read_drains_command()]))
    return {name for name, state in decode_drains(states or {}).items() if state.drained}


def _send_change(name: str, config: Path, command: "Command") -> Settings:
    from router.store.admin.scan import execute_commands

    settings = load_settings(config)
    names = list(_catalog(settings).engines)
    if name not in names:
        fail(f"{config}: no engine {name!r}; configured engines: {', '.join(names)}", EXIT_USAGE)
    with_redis(settings, config, lambda client: execute_commands(client, [command]))
    return settings


def _catalog(settings: Settings) -> "Catalog":
    from router.upstream.configured_catalog import build_catalog

    return build_catalog(settings)


def _wait_with_progress(settings: Settings, name: str, timeout: float) -> bool:
    with progress("polls for running requests") as on_poll:
        return asyncio.run(_wait_until_idle(settings, name, time.monotonic() + timeout, on_poll))


async def _wait_until_idle(settings: Settings, name: str, deadline: float, on_poll: Callable[[int], None]) -> bool:
    """Whether an engine becomes idle before `deadline`, an instant of time.monotonic."""
    polls = idle_polls = 0
    last_reported: float | None = None
    while idle_polls < _IDLE_POLLS:
        if polls and time.monotonic() + POLL_INTERVAL > deadline:
            return False
        if polls:
            await asyncio.sleep(POLL_INTERVAL)
        (engine,) = await _probe_engines(settings, lambda engine_name: engine_name == name)
        polls += 1
        on_poll(polls)
        request_count = _request_count(engine)
        if request_count is None:
            fail(f"engine {name} is up but does not report its running requests")
        if request_count and request_count != last_reported:
            print_err(f"{name}: {request_count:g} running or waiting")
        last_reported = request_count
        idle_polls = idle_polls + 1 if request_count == 0 else 0
    return True


def _request_count(engine: "Engine") -> float | None:
    """Running and waiting requests; 0 if the engine does not answer, None if it does not report them."""
    if not engine.up:
        return 0.0
    running, waiting = engine.gauges.running, engine.gauges.waiting
    return running + (waiting or 0.0) if running is not None else None


async def _probe_engines(settings: Settings, is_selected: Callable[[str], bool]) -> "list[Engine]":
    from router.net.client.transport import HTTPTransport
    from router.upstream.catalog import Catalog
    from router.upstream.client import EngineClient
    from router.upstream.probe import EngineProbe

    engines = [engine for engine in _catalog(settings).engines.values() if is_selected(engine.name)]
    client = EngineClient(HTTPTransport(), connect_timeout=settings.timeouts.connect)
    try:
        await EngineProbe(Catalog([], engines), client).check()
    finally:
        await client.aclose()
    return engines


def _engine_row(engine: "Engine", drained: set[str]) -> EngineRow:
    gauges = engine.gauges
    return EngineRow(
        name=engine.name, model=engine.model, task=engine.task, url=engine.url, up=engine.up,
        drained=engine.name in drained, running=gauges.running, waiting=gauges.waiting,
        kv_cache_usage=gauges.kv_cache_usage,
    )  # fmt: skip


def _table_row(row: EngineRow) -> tuple[str, ...]:
    def number(value: Any) -> str:
        return "?" if value is None else f"{value:g}"

    state = ("up" if row.up else "down") + (", drained" if row.drained else "")
    usage = "?" if row.kv_cache_usage is None else f"{100 * row.kv_cache_usage:.0f}%"
    return row.name, row.model, row.task, state, number(row.running), number(row.waiting), usage, row.url
