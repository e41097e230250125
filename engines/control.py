"""The control socket of `roundhouse up`: a Unix socket at which `roundhouse engines restart` asks for a restart.

A connection has one request, a JSON object in a line: `{"restart": "llama-chat"}`. The reply is a line, too, when the
engine is ready again: `{"error": null}`, or the reason why it is not.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from engines.process import StartError
from engines.supervisor import EngineSupervisor, RestartRefusedError

MAX_REQUEST: Final = 4096
"""Bytes of a request."""

_REQUEST_TIMEOUT: Final = 5.0  # seconds until a client has sent its request


class _Request(msgspec.Struct):
    restart: str


class _Reply(msgspec.Struct):
    error: str | None


async def serve_control(socket: Path, supervisors: Mapping[str, EngineSupervisor]) -> asyncio.Server:
    """Serves until the server is closed. Only this user may connect."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            error = await _handle(reader, supervisors)
            writer.write(msgspec.json.encode(_Reply(error)) + b"\n")
            await writer.drain()

    socket.unlink(missing_ok=True)  # left by a run that was killed; the lock of the state folder ensures that
    server = await asyncio.start_unix_server(handle, socket, limit=MAX_REQUEST)
    socket.chmod(0o600)
    return server


async def _handle(reader: asyncio.StreamReader, supervisors: Mapping[str, EngineSupervisor]) -> str | None:
    try:
        async with asyncio.timeout(_REQUEST_TIMEOUT):
            request = msgspec.json.decode(await reader.readline(), type=_Request)
    except (TimeoutError, ValueError) as error:  # ValueError: too long, or not such a request
        return f"invalid request: {error}"
    supervisor = supervisors.get(request.restart)
    if supervisor is None:
        return f"no engine {request.restart[:64]!r} runs here; there is {', '.join(supervisors) or 'none'}"
    try:
        await supervisor.restart()
    except (StartError, RestartRefusedError) as error:
        return str(error)
    return None
