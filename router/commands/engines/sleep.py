"""`roundhouse engines sleep` and `wake`: orders to the routers, for an engine that takes turns with others at a GPU."""

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from router.commands.console import (
    EXIT_USAGE,
    ConfigOption,
    JsonOption,
    fail,
    load_settings,
    print_err,
    write_json,
)
from router.commands.redis import record_change, with_redis
from router.settings import DEFAULT_PATH, Settings

if TYPE_CHECKING:  # imported by the commands that need them, since they would slow all others down
    from router.net.redis.commands import Command
    from router.shared.engines.gpu_groups import GroupState, Order
    from router.store.admin.scan import RedisClient

_POLL_INTERVAL: Final = 0.1

NameArgument = Annotated[str, typer.Argument(metavar="ENGINE", help="One of a [[gpu]] of the configuration.")]
NoWaitOption = Annotated[bool, typer.Option("--no-wait", help="Return as soon as the routers have the order.")]
TimeoutOption = Annotated[float, typer.Option(min=0, help="How long to wait, in seconds.")]


class _Outcome(msgspec.Struct, frozen=True):
    """`state`: None if it does not say by the timeout. `error`: why the engine did not wake up."""

    engine: str
    gpu: str
    state: str | None
    seconds: float
    error: str = ""


def sleep(
    name: NameArgument,
    config: ConfigOption = Path(DEFAULT_PATH),
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 600.0,
    as_json: JsonOption = False,
) -> None:
    """Put an engine of a GPU to sleep when its running requests have ended; the next request for it wakes it up."""
    _order(name, config, sleeps=True, timeout=0.0 if no_wait else timeout, as_json=as_json)


def wake(
    name: NameArgument,
    config: ConfigOption = Path(DEFAULT_PATH),
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 600.0,
    as_json: JsonOption = False,
) -> None:
    """Wake up an engine of a GPU; another one sleeps instead, when its running requests have ended."""
    _order(name, config, sleeps=False, timeout=0.0 if no_wait else timeout, as_json=as_json)


def _order(name: str, config: Path, *, sleeps: bool, timeout: float, as_json: bool) -> None:
    from router.shared.engines.gpu_groups import Order

    settings = load_settings(config)
    group = next((gpu.name for gpu in settings.gpu if name in gpu.engines), None)
    if group is None:
        known = ", ".join(engine for gpu in settings.gpu for engine in gpu.engines) or "none"
        fail(f"{config}: {name!r} takes turns at no GPU; engines of a [[gpu]]: {known}", EXIT_USAGE)
    order = Order(name, sleeps)
    outcome = with_redis(settings, config, partial(_carry_out, settings, group, order, timeout))
    if outcome is None:
        fail("no router takes the order; is one running with this Redis?")
    if as_json:
        write_json(outcome)
    if outcome.error or (outcome.state is None and timeout):
        fail(outcome.error or f"{name} is not {_wanted(order)} after {timeout:g}s; the order stands")
    if not as_json:
        done = f"{name} is {outcome.state} after {outcome.seconds:.1f} s"
        typer.echo(done if outcome.state is not None else f"the routers have the order for {name}")


def _wanted(order: "Order") -> str:
    return "asleep" if order.sleeps else "awake"


async def _carry_out(
    settings: Settings, group: str, order: "Order", timeout: float, redis: "RedisClient"
) -> _Outcome | None:
    """None if no router takes the order."""
    from router.shared.audit.changes import engine_ordered
    from router.shared.engines.gpu_groups import give_order_command

    began_at, shown = time.monotonic(), ""
    seconds_, micros = await _execute(redis, ("TIME",))
    ordered_at = int(seconds_) + int(micros) / 1e6
    if not await _execute(redis, give_order_command(group, order)):
        return None
    await record_change(settings, engine_ordered(order.engine, group, sleeps=order.sleeps))
    while True:
        seconds = time.monotonic() - began_at
        state, is_open = await _read(redis, group)
        if state is not None and not is_open and state.phase == "steady":
            found = "awake" if order.engine in state.awake else "asleep"
            error = "" if found == _wanted(order) else await _last_error(redis, group, order.engine, ordered_at)
            return _Outcome(order.engine, group, found, round(seconds, 1), error)
        if seconds >= timeout:
            return _Outcome(order.engine, group, None, round(seconds, 1))
        if state is not None and not is_open and shown != (shown := _progress(state)):
            print_err(shown)
        await asyncio.sleep(_POLL_INTERVAL)


def _progress(state: "GroupState") -> str:
    """What the switch that is under way does now."""
    sleeping, woken = ", ".join(state.sleeps), state.wakes
    return {
        "draining": f"waiting until the running requests of {sleeping} have ended",
        "sleeping": f"{sleeping} falls asleep",
        "waking": f"{woken} wakes up",
        "returning": f"{woken} does not wake up; {sleeping} wakes up again",
    }.get(state.phase, state.phase)


async def _read(redis: "RedisClient", group: str) -> "tuple[GroupState | None, bool]":
    from router.shared.engines.gpu_groups import decode_turns, read_turns_command

    return decode_turns(await _execute(redis, read_turns_command(group)))


async def _last_error(redis: "RedisClient", group: str, engine: str, since: float) -> str:
    """Why it has not woken up, or not fallen asleep."""
    from router.shared.engines.gpu_groups import decode_switches, read_switches_command

    switches = decode_switches(await _execute(redis, read_switches_command(group)))
    of_engine = (each for each in switches if engine in (each.wakes, *each.sleeps) and each.at >= since)
    last = next(of_engine, None)
    return last.error if last is not None and last.error else "another request or order came first"


async def _execute(redis: "RedisClient", command: "Command") -> Any:
    from router.store.admin.scan import execute_commands

    (reply,) = await execute_commands(redis, [command])
    return reply
