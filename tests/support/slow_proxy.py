"""What may be between a router and Redis: a slow network, or a host name whose server changes."""

import asyncio
from types import TracebackType
from typing import Self

from router.net.tasks import cancel_and_wait
from tests.support.redis_process import RedisServer


class SlowProxy:
    """Forwards bytes between TCP clients and a Redis; `url` is where it listens.

    - `server`: the destination of new connections.
    - `bytes_per_second`: the rate of replies on one connection, in pieces of `chunk_size` bytes.
    - `stall_after`: bytes of replies after which a connection stalls.
    """

    def __init__(
        self,
        server: RedisServer,
        *,
        bytes_per_second: float = 1e9,
        chunk_size: int = 65536,
        stall_after: float = float("inf"),
    ) -> None:
        self.bytes_per_second = bytes_per_second
        self.chunk_size = chunk_size
        self.stall_after = stall_after
        self.url = ""
        self.server = server
        self._listening: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._listening = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._listening.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._listening is not None
        self._listening.close()
        await cancel_and_wait(*self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        replies, commands = await asyncio.open_unix_connection(str(self.server.socket))
        forwarders = [self._forward_commands(reader, commands), self._forward_replies(replies, writer)]
        tasks = [asyncio.get_running_loop().create_task(forwarder) for forwarder in forwarders]
        for task in tasks:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            writer.close()
            commands.close()

    async def _forward_commands(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass

    async def _forward_replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        clock = asyncio.get_running_loop().time
        due, sent = 0.0, 0
        try:
            while data := await reader.read(65536):
                while data:
                    chunk, data = data[: self.chunk_size], data[self.chunk_size :]
                    # A rate over time rather than a sleep per chunk, so that late wake-ups do not add up.
                    due = max(due, clock()) + len(chunk) / self.bytes_per_second
                    await asyncio.sleep(due - clock())
                    sent += len(chunk)
                    if sent > self.stall_after:
                        await asyncio.Event().wait()
                    writer.write(chunk)
                    await writer.drain()
        except ConnectionError:
            pass
