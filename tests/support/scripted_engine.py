"""An engine that sends what a script says."""

import asyncio
import contextlib
import json
import re
import select
import socket
import ssl
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.support.listeners import stop_listening

End = Literal["complete", "hold", "close", "reset"]


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """`head`: its first line and its headers, as received. `path` is without the query."""

    head: bytes
    body: bytes
    _reader: asyncio.StreamReader = field(repr=False)
    _transport: asyncio.BaseTransport = field(repr=False)

    @property
    def method(self) -> str:
        return self.head.partition(b" ")[0].decode()

    @property
    def path(self) -> str:
        return self.head.split(b" ")[1].partition(b"?")[0].decode()

    @property
    def headers(self) -> dict[str, str]:
        """Their names are in lower case."""
        lines = [line.partition(":") for line in self.head.decode("latin-1").rstrip().split("\r\n")[1:]]
        return {name.lower(): value.strip() for name, _, value in lines}

    @property
    def has_client(self) -> bool:
        if self._reader.at_eof() or self._reader.exception() is not None:
            return False
        # The kernel knows it before the event loop, which may first read what came over another connection later.
        connection = self._transport.get_extra_info("socket")
        if connection is None or connection.fileno() < 0:  # of a simulated network, or closed here
            return not self._transport.is_closing()
        ends = select.poll()
        ends.register(connection, select.POLLRDHUP)
        return not ends.poll(0)


@dataclass(frozen=True, slots=True)
class Response:
    """`body`: all of it, or pieces that are sent as an HTTP chunk each; the engine notices if their client leaves.

    `end`, after the pieces: complete; hold until the client leaves; close the connection; reset it.
    """

    body: bytes | Iterable[bytes] | AsyncGenerator[bytes, None] = b""
    status: int = 200
    content_type: str | None = None
    end: End = "complete"


Script = Callable[[Request], Awaitable[Response]]


def json_response(value: object, status: int = 200) -> Response:
    return Response(json.dumps(value).encode(), status, "application/json")


class ScriptedEngine:
    """An HTTP server whose responses come from a script.

    The default script sends the same pieces to every POST, and then ends or holds the stream. If it is `paced`, each
    piece but the first waits for a release of `chunk_permits`. Other requests get an empty page.

    - `requests` are those that it received; `heads` and `bodies` are those of the POSTs.
    - `running`: the POSTs in progress, but for those whose client has left; with the default script, until their last
      piece may be sent. `most`: the maximum since it was last set.
    - `client_disconnected` is set when a client closes the connection before the response is complete.
    """

    def __init__(
        self, *pieces: bytes, hold: bool = False, paced: bool = False, content_type: str = "text/event-stream",
        status: int = 200, script: Script | None = None,
    ) -> None:  # fmt: skip
        self.pieces = pieces
        self.hold = hold
        self.status = status
        self.paced = paced
        self.content_type = content_type
        self.chunk_permits = asyncio.Semaphore(0)
        self.requests: list[Request] = []
        self.client_disconnected = asyncio.Event()
        self.most = 0
        self.url = ""
        self._script = script or self._send_pieces
        self._running: set[Request] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def heads(self) -> list[bytes]:
        return [request.head for request in self.requests if request.method == "POST"]

    @property
    def bodies(self) -> list[bytes]:
        return [request.body for request in self.requests if request.method == "POST"]

    @property
    def running(self) -> int:
        return sum(request.has_client for request in self._running)

    async def start(
        self, port: int = 0, *, host: str = "127.0.0.1", unix_socket: str | None = None, certificate: Path | None = None
    ) -> None:
        """`certificate`: a PEM file with a certificate and its key. `port` 0: any."""
        if unix_socket is not None:
            self._server = await asyncio.start_unix_server(self._serve, unix_socket)
            self.url = f"unix://{unix_socket}"
            return
        tls = None
        if certificate is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(certificate)
        self._server = await asyncio.start_server(self._serve, host, port, ssl=tls)
        self.url = f"http{'s' if tls else ''}://{host}:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Accepts no more connections."""
        assert self._server is not None
        await stop_listening(self._server)

    async def die(self) -> None:
        """Closes all connections, too."""
        await self.stop()
        for writer in self._writers:
            writer.close()

    # -- the default script -------------------------------------------------------------------------------------------

    async def _send_pieces(self, request: Request) -> Response:
        if request.method != "POST":
            return Response()
        pieces = self._paced_pieces(request, self.pieces) if self.paced else self.pieces
        return Response(pieces, self.status, self.content_type, "hold" if self.hold else "complete")

    async def _paced_pieces(self, request: Request, pieces: tuple[bytes, ...]) -> AsyncGenerator[bytes, None]:
        for number, piece in enumerate(pieces, 1):
            if number > 1:
                await self.chunk_permits.acquire()
            if number == len(pieces):
                # Not when the response has been sent: the router sends the next request once it has the last event.
                self._running.discard(request)
            yield piece

    # -- connections --------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                request = await _read_request(reader, writer.transport)
                if request is None:
                    writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
                    break
                self.requests.append(request)
                await self._respond(request, reader, writer)
        except (asyncio.IncompleteReadError, OSError, _EndedByScriptError):
            pass  # otherwise the client has disconnected
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _respond(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if request.method == "POST":
            self._running.add(request)
            self.most = max(self.most, self.running)
        try:
            await _send(await self._script(request), reader, writer)
        except OSError:
            self.client_disconnected.set()
            raise
        finally:
            self._running.discard(request)


class _EndedByScriptError(Exception):
    """The connection ends as the script says."""


@contextlib.asynccontextmanager
async def served(script: Script, **where: Any) -> AsyncIterator[str]:
    """Starts an engine with this script; yields its URL. `where`: see ScriptedEngine.start."""
    engine = ScriptedEngine(script=script)
    await engine.start(**where)
    try:
        yield engine.url
    finally:
        await engine.die()


async def _read_request(reader: asyncio.StreamReader, transport: asyncio.BaseTransport) -> Request | None:
    """None if the client does not speak HTTP, but TLS for instance."""
    first = await reader.readexactly(1)
    if not first.isalpha():
        return None
    head = first + await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
    body = await reader.readexactly(int(length[1]) if length is not None else 0)
    return Request(head, body, reader, transport)


async def _send(response: Response, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    content_type = f"Content-Type: {response.content_type}\r\n" if response.content_type is not None else ""
    head = f"HTTP/1.1 {response.status} OK\r\n{content_type}".encode()
    body = response.body
    if isinstance(body, bytes):
        writer.write(b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body))
        await writer.drain()
        return
    writer.write(b"%bTransfer-Encoding: chunked\r\n\r\n" % head)
    await writer.drain()
    if isinstance(body, AsyncGenerator):
        await _send_while_there(body, reader, writer)
    else:
        for piece in body:
            await _send_chunk(piece, writer)
    match response.end:
        case "complete":
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        case "hold":
            await reader.read()
            raise ConnectionResetError
        case "reset":
            option = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)
            raise _EndedByScriptError
        case "close":
            raise _EndedByScriptError


async def _send_while_there(
    pieces: AsyncGenerator[bytes, None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    # A stream is idle until its next piece, so only a read detects that the client leaves.
    leaving = asyncio.ensure_future(reader.read(1))
    following: asyncio.Future[bytes] | None = None
    try:
        while True:
            following = asyncio.ensure_future(anext(pieces))
            either: list[asyncio.Future[bytes]] = [following, leaving]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                raise ConnectionResetError
            try:
                piece = following.result()
            except StopAsyncIteration:
                return
            await _send_chunk(piece, writer)
    finally:
        unfinished = [each for each in (following, leaving) if each is not None and not each.done()]
        for each in unfinished:
            each.cancel()
        if unfinished:
            await asyncio.wait(unfinished)
        await pieces.aclose()


async def _send_chunk(piece: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
    await writer.drain()
    # Lets the transport send each chunk on its own.
    await asyncio.sleep(0)
