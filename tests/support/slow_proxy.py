"""What may stand between a router and Redis: a network that is slow, a name behind which servers change."""

import asyncio
from types import TracebackType
from typing import Self

from router.net.tasks import cancel_and_wait
from tests.support.redis_process import RedisServer


class SlowProxy:
    """Passes bytes between TCP clients and a Redis; `url` is where it listens.

    - `server`: where new connections lead to.
    - `rate`: bytes a second that one connection gets back from Redis, in pieces of `piece` bytes.
    - `silent_after`: bytes that one connection gets back; after them, nothing more comes.
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
        answers, commands = await asyncio.open_unix_connection(str(self.server.socket))
        works = [self._forward_commands(reader, commands), self._forward_replies(answers, writer)]
        tasks = [asyncio.get_running_loop().create_task(work) for work in works]
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
        due, passed = 0.0, 0
        try:
            while data := await reader.read(65536):
                while data:
                    said, data = data[: self.chunk_size], data[self.chunk_size :]
                    due = max(due, clock()) + len(said) / self.bytes_per_second
                    await asyncio.sleep(due - clock())
                    passed += len(said)
                    if passed > self.stall_after:
                        await asyncio.Event().wait()
                    writer.write(said)
                    await writer.drain()
        except ConnectionError:
            pass
