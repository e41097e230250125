"""The control socket of `roundhouse up`: a Unix socket that takes requests of `roundhouse engines`.

A connection has one request, a JSON object in a line:

    {"restart": "llama-chat"}
    {"switch": {"engine": "llama-chat", "target": "…"}}, see SwitchRequest
    {"rollback": {"engine": "llama-chat"}}, see RollbackRequest

The last line of the reply is sent when it is done: `{"error": null}`, or the reason why it was not done; for a switch
and a rollback also the `result`. These two send lines with an `event` before, and are undone if the client disconnects
before the new engines have taken over.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from engines.fleet import EngineFleet
from engines.process import StartError
from engines.supervisor import RestartRefusedError
from engines.switch.request import (
    Progress,
    RollbackRequest,
    SwitchFailedError,
    SwitchRefusedError,
    SwitchRequest,
    SwitchResult,
)
from engines.switch.switcher import Report, Switcher
from router.shared.audit.actors import peer_actor

MAX_REQUEST: Final = 4096
"""Bytes of a request."""

_REQUEST_TIMEOUT: Final = 5.0  # seconds until a client has sent its request


class _Request(msgspec.Struct):
    restart: str | None = None
    switch: SwitchRequest | None = None
    rollback: RollbackRequest | None = None


class _Event(msgspec.Struct):
    event: Progress


class _Reply(msgspec.Struct, omit_defaults=True):
    error: str | None
    result: SwitchResult | None = None


async def serve_control(socket: Path, fleet: EngineFleet, switcher: Switcher) -> asyncio.Server:
    """Serves until the server is closed. Only this user may connect."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Cancelled at the end of `up`; for a handler that ends so, Python 3.11 prints a traceback.
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.CancelledError):
            _write_line(writer, await _reply(reader, writer, fleet, switcher))
            await writer.drain()

    socket.unlink(missing_ok=True)  # left by a run that was killed; the lock of the state folder ensures that
    server = await asyncio.start_unix_server(handle, socket, limit=MAX_REQUEST)
    socket.chmod(0o600)
    return server


async def _reply(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fleet: EngineFleet, switcher: Switcher
) -> _Reply:
    try:
        async with asyncio.timeout(_REQUEST_TIMEOUT):
            request = msgspec.json.decode(await reader.readline(), type=_Request)
    except TimeoutError:
        return _Reply(f"invalid request: it was not complete within {_REQUEST_TIMEOUT:g} s")
    except ValueError as error:  # too long, or not such a request
        return _Reply(f"invalid request: {error}")
    who = peer_actor(writer.get_extra_info("socket"))
    match request:
        case _Request(restart=str(name), switch=None, rollback=None):
            return _Reply(await _restart(name, fleet, switcher))
        case _Request(restart=None, switch=SwitchRequest() as switch, rollback=None):
            return await _run_while_connected(reader, writer, lambda report: switcher.switch(switch, report, who))
        case _Request(restart=None, switch=None, rollback=RollbackRequest() as rollback):
            return await _run_while_connected(reader, writer, lambda report: switcher.rollback(rollback, report, who))
    return _Reply("invalid request: expected `restart`, `switch` or `rollback`")


async def _restart(name: str, fleet: EngineFleet, switcher: Switcher) -> str | None:
    """Why the engine was not restarted."""
    engine = fleet.engines.get(name)
    if engine is None:
        return f"no engine {name[:64]!r} runs here; there is {', '.join(fleet.engines) or 'none'}"
    if switcher.is_switching:  # it may stop the engine, or be about to do so
        return "a switch is under way"
    if fleet.turns.is_resting(name):
        return f"{name} is asleep, since others have its GPU; `roundhouse engines wake {name}` wakes it up"
    try:
        await engine.supervisor.restart()
    except (StartError, RestartRefusedError) as error:
        return str(error)
    return None


async def _run_while_connected(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, run: Callable[[Report], Awaitable[SwitchResult]]
) -> _Reply:
    """Runs a switch, and cancels it when the client disconnects. Raises ConnectionError if it does."""
    running = asyncio.ensure_future(run(lambda progress: _write_line(writer, _Event(progress))))
    disconnected = asyncio.ensure_future(reader.read())  # ends with the connection: a client sends nothing more
    try:
        await asyncio.wait([running, disconnected], return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            running.cancel()
            await asyncio.wait([running])
    finally:
        disconnected.cancel()
        disconnected.add_done_callback(_retrieve_error)
        running.cancel()
    if running.cancelled():
        raise ConnectionAbortedError
    error = running.exception()
    if error is None:
        return _Reply(None, running.result())
    # Also an unexpected error is a reply: the client must learn that the switch has ended.
    is_expected = isinstance(error, SwitchRefusedError | SwitchFailedError)
    return _Reply(str(error) if is_expected else f"unexpected: {error!r}")


def _retrieve_error(task: "asyncio.Task[bytes]") -> None:
    """A connection that is reset ends the wait with an error, which asyncio would print."""
    if not task.cancelled():
        task.exception()


def _write_line(writer: asyncio.StreamWriter, value: Any) -> None:
    writer.write(msgspec.json.encode(value) + b"\n")
