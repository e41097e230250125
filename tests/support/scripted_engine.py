"""An engine that sends the bytes of a test."""

import asyncio
from typing import Any


class ScriptedEngine:
    """An HTTP server that sends the same pieces, an HTTP chunk each, to every POST, and then ends or holds the stream.

    - `heads` and `bodies` are the requests that it received.
    - `client_disconnected` is set when a client closes the connection before the response is complete.
    - If it is `paced`, each piece but the first waits for a release of `chunk_permits`.
    """

    def __init__(
        self, *pieces: bytes, hold: bool = False, paced: bool = False, content_type: str = "text/event-stream",
        status: int = 200,
    ) -> None:  # fmt: skip
        self.pieces = pieces
        self.hold = hold
        self.status = status
        self.paced = paced
        self.chunk_permits = asyncio.Semaphore(0)
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.client_disconnected = asyncio.Event()
        self.url = ""
        self._type = content_type.encode()
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next((int(v) for k, v in _headers(head) if k == b"content-length"), 0)
                body = await reader.readexactly(length)
                if head.startswith(b"POST"):
                    self.heads.append(head)
                    self.bodies.append(body)
                    try:
                        await self._respond(reader, writer)
                    except OSError:
                        self.client_disconnected.set()
                        raise
                else:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        except (asyncio.IncompleteReadError, OSError):
            pass  # the client has disconnected
        finally:
            writer.close()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 %d OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n" % (self.status, self._type)
        )
        await writer.drain()
        # A paced stream is idle between permits, so only a read detects the disconnect.
        disconnect = asyncio.ensure_future(reader.read(1)) if self.paced else None
        for number, piece in enumerate(self.pieces):
            if disconnect is not None and number > 0:
                await self._wait_for_permit(disconnect)
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
            # Lets the transport send each chunk on its own.
            await asyncio.sleep(0)
        if disconnect is not None:
            disconnect.cancel()
            await asyncio.wait([disconnect])
        if self.hold:
            await reader.read()
            self.client_disconnected.set()
            raise ConnectionResetError
        writer.write(b"0\r\n\r\n")

    async def _wait_for_permit(self, disconnect: "asyncio.Future[bytes]") -> None:
        permit = asyncio.ensure_future(self.chunk_permits.acquire())
        either: list[asyncio.Future[Any]] = [permit, disconnect]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if disconnect.done():
            permit.cancel()
            self.client_disconnected.set()
            raise ConnectionResetError


def _headers(head: bytes) -> list[tuple[bytes, bytes]]:
    lines = [line.partition(b":") for line in head.lower().split(b"\r\n")[1:]]
    return [(name.strip(), value.strip()) for name, _, value in lines]
