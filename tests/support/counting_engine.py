"""An engine that counts the requests that it has at the same time."""

import asyncio
from typing import Any

from tests.support.scripted_engine import ScriptedEngine


class CountingEngine(ScriptedEngine):
    """A paced engine with two pieces: a request counts until the second one may be sent, or its client is gone.

    `most`: the maximum of `running` since it was last set.
    """

    def __init__(self, first: bytes, second: bytes) -> None:
        super().__init__(first, second, paced=True)
        self._running: dict[asyncio.Task[Any] | None, asyncio.StreamReader] = {}
        self.most = 0

    @property
    def running(self) -> int:
        # Not of a client that is gone: its connection ends before the task of its request does.
        return sum(not reader.at_eof() and reader.exception() is None for reader in self._running.values())

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._running[asyncio.current_task()] = reader
        self.most = max(self.most, self.running)
        try:
            await super()._respond(reader, writer)
        finally:
            self._running.pop(asyncio.current_task(), None)

    async def _wait_for_permit(self, disconnect: "asyncio.Future[bytes]") -> None:
        try:
            await super()._wait_for_permit(disconnect)
        finally:
            # Not when the response has been sent: the router sends the next request as soon as it has the last event.
            self._running.pop(asyncio.current_task(), None)
