"""`roundhouse engines`: the engines' status, drain and resume in every router at once, and a check before their start.

All but `explain` probe the engines and write to Redis directly, so they need neither a router nor an admin key.
"""

import asyncio
import itertools
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from msgspec.structs import replace

from router.commands.console import (
    EXIT_FAILED,
    EXIT_USAGE,
    ConfigOption,
    EngineKindOption,
    JsonLinesOption,
    JsonOption,
    VllmPythonOption,
    check_engine_kind,
    fail,
    load_settings,
    print_err,
    progress,
    write_json,
)
from router.commands.engines.adapters import app as adapters
from router.commands.engines.engine_access import engine_names, probe_engines, with_announced
from router.commands.engines.engine_explain import explain
from router.commands.engines.engine_list import list_command
from router.commands.engines.logs import logs
from router.commands.engines.sleep import sleep, wake
from router.commands.engines.switch import rollback, switch
from router.commands.redis import record_change, unless_replica, with_redis
from router.commands.suggestions import command_group
from router.commands.termination import Termination, cancelled_by_signals
from router.settings import DEFAULT_PATH, EMBEDDED, Settings

if TYPE_CHECKING:  # imported by the commands that need them, since they would slow all others down
    from router.net.redis.commands import Command
    from router.shared.audit.changes import Change
    from router.store.admin.scan import RedisClient
    from router.upstream.engine import Engine

POLL_INTERVAL: Final = 0.5
"""Seconds between two probes of an engine that should become idle."""

# Probes in a row that must find the engine idle: until then, routers have the drain, and no request is on its way.
_IDLE_POLLS: Final = 3

EngineNameArgument = Annotated[str, typer.Argument(help="Engine name, as in `roundhouse engines list`.")]

app = command_group(
    "List the engines; check them before their start; announce, drain, resume, restart and switch one; "
    "show its log; change LoRA adapters."
)
app.command(name="list")(list_command)
app.command(name="status", help="The same as `list`.")(list_command)
app.add_typer(adapters, name="adapters")
for command in (explain, logs, sleep, wake, switch, rollback):
    app.command()(command)


@app.command()
def up(
    names: Annotated[
        list[str] | None, typer.Argument(help="Engines to start; by default all that have a launch.")
    ] = None,
    config: ConfigOption = Path(DEFAULT_PATH),
    engines: EngineKindOption = "auto",
    vllm_python: VllmPythonOption = None,
) -> None:
    """Run engines without a router, on this machine or another, until Ctrl-C; routers find them through Redis."""
    from router.commands.engines.engine_plan import build_plan, exec_engines

    settings = load_settings(config)
    if settings.cache.url == EMBEDDED:
        fail(f"{config}: cache.url is embedded; engines without a router need a Redis that the routers share")
    launched = {engine.name for engine in settings.engine if engine.launch is not None}
    if unknown := [name for name in names or [] if name not in launched]:
        known = ", ".join(sorted(launched)) or "none"
        fail(f"{config}: no launch for engine {', '.join(unknown)}; engines with one: {known}", EXIT_USAGE)
    selected = [engine for engine in settings.engine if engine.name in (names or launched)]
    if not selected:
        fail(f"{config}: no engine has a launch; there is nothing to start", EXIT_USAGE)
    plan = build_plan(
        replace(settings, engine=selected), config, check_engine_kind(engines), vllm_python, with_router=False
    )
    exec_engines(["up"], plan)


@app.command()
def announce(
    names: Annotated[list[str] | None, typer.Argument(help="Engines to announce; by default all of the file.")] = None,
    config: ConfigOption = Path(DEFAULT_PATH),
) -> None:
    """Announce engines that something else runs, while their /health answers; routers find them through Redis."""
    from router.commands.engines.engine_plan import build_plan, exec_engines

    settings = load_settings(config)
    if settings.cache.url == EMBEDDED:
        fail(f"{config}: cache.url is embedded; engines are announced in a Redis that the routers share")
    known = [engine.name for engine in settings.engine]
    if unknown := [name for name in names or [] if name not in known]:
        fail(f"{config}: no engine {', '.join(unknown)}; engines: {', '.join(known)}", EXIT_USAGE)
    selected = [engine for engine in settings.engine if engine.name in (names or known)]
    if unfit := [engine.name for engine in selected if len(engine.addresses) != 1 or engine.request_headers]:
        fail(f"{config}: {', '.join(unfit)}: an engine is announced with one url, and without api_key and headers")
    plan = build_plan(replace(settings, engine=selected), config, "vllm", None, with_router=False)
    exec_engines(["announce"], plan)


@app.command()
def preflight(
    config: ConfigOption = Path(DEFAULT_PATH), vllm_python: VllmPythonOption = None, as_json: JsonOption = False
) -> None:
    """Find what would keep engines from starting or serving, before `roundhouse up` starts them."""
    from router.commands.engines.engine_plan import build_plan, exec_engines

    command = ["preflight", "--json"] if as_json else ["preflight"]

    def write_mistakes(mistakes: Sequence[str]) -> None:
        if as_json:
            fields = {"severity": "error", "engine": None, "setting": "configuration", "remedy": ""}
            write_json({"ok": False, "findings": [{**fields, "problem": mistake} for mistake in mistakes]})

    exec_engines(command, build_plan(load_settings(config, write_mistakes), config, "vllm", vllm_python))


@app.command()
def drain(
    name: Annotated[list[str], typer.Argument(metavar="ENGINE...", help="As in `roundhouse engines list`.")],
    config: ConfigOption = Path(DEFAULT_PATH),
    wait: Annotated[bool, typer.Option("--wait", help="Return when the engine is idle.")] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Timeout of --wait, in seconds.")] = 600.0,
    as_json: JsonLinesOption = False,
) -> None:
    """Send no new requests to engines, from any router; running ones continue to their end."""
    from router.shared.audit.changes import engine_drained
    from router.shared.engines.drains import drain_command

    names = list(dict.fromkeys(name))
    settings = _send_changes(config, {each: drain_command(each) for each in names}, engine_drained)
    # All of them at the same time: one that stays busy must not use up the timeout of the others.
    idle = _wait_with_progress(settings, names, timeout) if wait else {}
    for each in names:
        if as_json:
            write_json({"engine": each, "drained": True, "idle": idle.get(each)})
        else:
            typer.echo(f"{each} is drained" + (" and idle" if idle.get(each) else ""))
    problems = [_unknown(each) for each in idle if idle[each] is None]
    if busy := [each for each in idle if idle[each] is False]:
        noun, stay = ("engine", "it stays") if len(busy) == 1 else ("engines", "they stay")
        problems.append(f"{noun} {', '.join(busy)} did not become idle within {timeout:g}s; {stay} drained")
    for problem in problems:
        print_err(f"roundhouse: {problem}")
    if problems:
        raise typer.Exit(EXIT_FAILED)


@app.command()
def resume(
    name: Annotated[list[str], typer.Argument(metavar="ENGINE...", help="As in `roundhouse engines list`.")],
    config: ConfigOption = Path(DEFAULT_PATH),
    as_json: JsonLinesOption = False,
) -> None:
    """Send requests to engines again, from every router."""
    from router.shared.audit.changes import engine_resumed
    from router.shared.engines.drains import resume_command

    names = list(dict.fromkeys(name))
    _send_changes(config, {each: resume_command(each) for each in names}, engine_resumed)
    for each in names:
        if as_json:
            write_json({"engine": each, "drained": False})
        else:
            typer.echo(f"{each} is back in service")


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
    from router.commands.engines.restart import is_up_running
    from router.shared.audit.changes import engine_drained, engine_resumed
    from router.shared.engines.drains import drain_command, resume_command

    before = load_settings(config)
    if not is_up_running(before.control_socket):
        fail(f"no `roundhouse up` with {config} runs on this machine; {name} was not restarted")
    # The default action of these signals would leave the engine drained.
    termination = Termination()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, termination.on_signal)
    was_drained = name in with_announced(before, config)[1]
    settings = _send_changes(config, {name: drain_command(name)}, engine_drained)
    try:
        is_idle = _wait_with_progress(settings, [name], timeout, termination.check)[name]
        if is_idle is None:
            fail(f"{_unknown(name)}; it was not restarted")
        if not is_idle:
            fail(f"engine {name} did not become idle within {timeout:g}s; it was not restarted")
        print_err(f"{name} is idle; restarting it")
        error = _restart_with_audit(settings, name, timeout)
    except TimeoutError:
        fail(f"engine {name} was not ready {timeout:g}s after its restart; see `roundhouse engines logs {name}`")
    finally:
        if not was_drained:
            _send_changes(config, {name: resume_command(name)}, engine_resumed)
    if error is not None:
        fail(f"engine {name} was not restarted: {error}")
    if as_json:
        write_json({"engine": name, "restarted": True, "drained": was_drained})
    else:
        typer.echo(f"{name} is restarted" + ("; it stays drained" if was_drained else " and back in service"))


def _restart_with_audit(settings: Settings, name: str, timeout: float) -> str | None:
    """None, or why the engine is not ready. Raises TimeoutError."""
    from router.commands.engines.restart import request_restart
    from router.shared.audit.changes import INTERRUPTED, engine_restarted, failed

    result: str | None = INTERRUPTED
    try:
        error = request_restart(settings.control_socket, name, timeout)
        result = failed(error) if error is not None else None
    except TimeoutError:
        result = failed(f"not ready after {timeout:g}s")
        raise
    finally:
        asyncio.run(record_change(settings, engine_restarted(name, result)))
    return error


def _send_changes(config: Path, commands: "Mapping[str, Command]", change_of: "Callable[[str], Change]") -> Settings:
    """`commands`: by engine; all are sent, or none if there is no such engine. `change_of`: for the audit."""
    from router.net.redis.errors import CommandRefusedError, WritesRefusedError
    from router.shared.audit.changes import Change, half_done
    from router.shared.audit.recorded import recorded, uninterrupted
    from router.store.admin.scan import execute_commands

    settings, _ = with_announced(load_settings(config), config)
    known = engine_names(settings)
    if unknown := [name for name in commands if name not in known]:
        fail(f"{config}: no engine {', '.join(map(repr, unknown))}; engines: {', '.join(known)}", EXIT_USAGE)

    async def send(client: "RedisClient") -> None:
        def stopped(error: BaseException) -> Sequence[Change]:
            if isinstance(error, (CommandRefusedError, WritesRefusedError)):
                return []
            changes = [half_done(Change(change_of(name).action, name), error) for name in commands]
            return unless_replica(error, changes)

        sending = recorded(
            execute_commands(client, list(commands.values())),
            partial(record_change, settings),
            lambda _: [change_of(name) for name in commands],
            stopped,
        )
        with cancelled_by_signals():
            await uninterrupted(sending)  # a round trip, which a signal must not part from its record

    with_redis(settings, config, send)
    return settings


def _wait_with_progress(
    settings: Settings, names: Sequence[str], timeout: float, check: Callable[[], None] = lambda: None
) -> dict[str, bool | None]:
    """By engine, whether it becomes idle; None if it does not report that. `check` is called after each poll."""
    deadline = time.monotonic() + timeout
    with progress("polls for running requests") as show_poll:
        polls = itertools.count(1)

        def on_poll() -> None:
            show_poll(next(polls))
            check()

        async def wait() -> list[bool | None]:
            return await asyncio.gather(*(_wait_until_idle(settings, each, deadline, on_poll) for each in names))

        return dict(zip(names, asyncio.run(wait()), strict=True))


async def _wait_until_idle(settings: Settings, name: str, deadline: float, on_poll: Callable[[], None]) -> bool | None:
    """Whether an engine becomes idle before `deadline`, an instant of time.monotonic; None if it does not say."""
    polls = idle_polls = 0
    last_reported: float | None = None
    while idle_polls < _IDLE_POLLS:
        if polls and time.monotonic() + POLL_INTERVAL > deadline:
            return False
        if polls:
            await asyncio.sleep(POLL_INTERVAL)
        (engine,) = await probe_engines(settings, lambda engine_name: engine_name == name)
        polls += 1
        on_poll()
        request_count = _request_count(engine)
        if request_count is None:
            return None
        if request_count and request_count != last_reported:
            print_err(f"{name}: {request_count:g} running or waiting")
        last_reported = request_count
        idle_polls = idle_polls + 1 if request_count == 0 else 0
    return True


def _unknown(name: str) -> str:
    return f"engine {name} is up but does not report its running requests"


def _request_count(engine: "Engine") -> float | None:
    """Running and waiting requests; 0 if the engine does not answer, None if it does not report them."""
    if not engine.up:
        return 0.0
    running, waiting = engine.gauges.running, engine.gauges.waiting
    return running + (waiting or 0.0) if running is not None else None
