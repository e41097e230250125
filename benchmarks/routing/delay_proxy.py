"""A TCP proxy that passes bytes on later, so that what routers send each other through Redis is late."""

import asyncio
import contextlib
from pathlib import Path


class DelayProxy:
    """A port before a server's Unix socket. All that passes, in either direction, is `delay` seconds late.

    The delay is that of each byte, and does not add up for pieces that follow each other.
    """

    def __init__(self, target: Path, delay: float) -> None:
        self._target, self._delay = target, delay
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "DelayProxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(str(self._target))
        for source, sink in ((reader, server_writer), (server_reader, writer)):
            task = asyncio.create_task(self._pass(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def read() -> None:
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(65536):
                    pieces.put_nowait((loop.time() + self._delay, data))
            pieces.put_nowait((loop.time(), b""))

        reading = asyncio.create_task(read())
        try:
            while (piece := await pieces.get())[1]:
                await asyncio.sleep(piece[0] - loop.time())
                writer.write(piece[1])
        finally:
            reading.cancel()
            writer.close()
