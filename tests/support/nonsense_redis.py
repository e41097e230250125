"""A server that speaks Redis' protocol, is up by its probe, and answers everything else in one form."""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

import hiredis

from tests.support.listeners import stop_listening

_SENSIBLE: Final[Mapping[str, bytes]] = {
    "HELLO": b"%1\r\n$6\r\nserver\r\n$5\r\nredis\r\n",
    "SELECT": b"+OK\r\n",
    "CLIENT": b"+OK\r\n",
    "PING": b"+PONG\r\n",
    "SUBSCRIBE": b">3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n",
    "EXISTS": b":0\r\n",
    "DEL": b":0\r\n",
    "TIME": b"*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n",
}

NONSENSE: Final[Mapping[str, bytes]] = {
    "nothing": b"_\r\n",
    "a number": b":7\r\n",
    "a negative number": b":-7\r\n",
    "a huge number": b":9223372036854775807\r\n",
    "a fraction": b",1.5\r\n",
    "no number": b",nan\r\n",
    "infinity": b",inf\r\n",
    "true": b"#t\r\n",
    "a status": b"+OK\r\n",
    "a string": b"$3\r\nabc\r\n",
    "an empty string": b"$0\r\n\r\n",
    "no text": b"$2\r\n\xff\xfe\r\n",
    "digits without an end": b"$6000\r\n" + 6000 * b"9" + b"\r\n",
    "an empty list": b"*0\r\n",
    "a list of one": b"*1\r\n:1\r\n",
    "numbers": b"*6\r\n:99\r\n:-1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
    "seven numbers": b"*7\r\n:1\r\n:-1\r\n:1\r\n:1\r\n:1\r\n:1\r\n,nan\r\n",
    "strings": b"*7\r\n" + 7 * b"$1\r\na\r\n",
    "seventeen numbers": b"*17\r\n" + 17 * b":1\r\n",
    "lists": b"*3\r\n" + 3 * b"*2\r\n_\r\n*0\r\n",
    "records without ids": b"*1\r\n*2\r\n$3\r\nabc\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n",
    "records without fields": b"*1\r\n*2\r\n$3\r\n1-0\r\n_\r\n",
    "a map": b"%1\r\n$1\r\na\r\n$1\r\nb\r\n",
    "a map of numbers": b"%2\r\n:1\r\n:2\r\n:3\r\n*0\r\n",
    "a map whose key is a list": b"%1\r\n*0\r\n:1\r\n",
    "a set": b"~1\r\n$1\r\na\r\n",
    "an error": b"-ERR nonsense\r\n",
    "an error without text": b"-\r\n",
    "a redirection to nowhere": b"-MOVED\r\n",
    "a redirection to a slot that does not exist": b"-MOVED 99999 127.0.0.1:99999\r\n",
    "a redirection of one command": b"-ASK x y\r\n",
    "no protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
}
"""Replies by what they are."""


class NonsenseRedis:
    """Answers with `replies`, by a command's name, else with `otherwise`. `deleted`: the keys of DEL."""

    def __init__(self, otherwise: bytes, replies: Mapping[str, bytes] = {}) -> None:
        self.replies = {**_SENSIBLE, **replies}
        self.otherwise = otherwise
        self.port = 0
        self.deleted: list[bytes] = []
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None] | None, asyncio.StreamWriter] = {}

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        await stop_listening(self._server)
        for writer in self._connections.values():
            writer.close()
        await asyncio.gather(*(task for task in self._connections if task is not None))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections[asyncio.current_task()] = writer
        parser = hiredis.Reader(notEnoughData=...)  # of commands, which have the form of replies
        try:
            while data := await reader.read(1 << 16):
                parser.feed(data)
                while (command := parser.gets()) is not ...:
                    name = command[0].decode().upper()
                    if name == "DEL":
                        self.deleted += command[1:]
                    writer.write(self.replies.get(name, self.otherwise))
        except ConnectionError:
            pass  # the router has closed it
        finally:
            del self._connections[asyncio.current_task()]
            writer.close()
