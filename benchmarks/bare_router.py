"""A minimal router in Python that could cache responses in Redis and share them: a lower bound for Roundhouse.

    .venv/bin/python -m benchmarks.bare_router PORT --engine PORT --redis SOCKET

A plain ASGI function on uvicorn: it hashes the body, queries Redis twice in sequence (as for a lookup and a claim), and
forwards the engine's response as it arrives. It does not parse, classify, record, store, share or count anything, and
has no error handling: every router of this kind has at least this cost and latency.
"""

import argparse
import asyncio
from typing import Any, cast

import hiredis
import httptools
import uvicorn
import xxhash


class Redis(asyncio.Protocol):
    """GET only; the commands of one loop iteration are sent in one write."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader()
        self._pending: list[asyncio.Future[object]] = []
        self._unsent: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get(self, key: bytes) -> "asyncio.Future[object]":
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent.append(b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(key), key))
        reply: asyncio.Future[object] = self._loop.create_future()
        self._pending.append(reply)
        return reply

    def _send(self) -> None:
        self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        done = 0
        while (reply := self._reader.gets()) is not False:
            waiting = self._pending[done]
            done += 1
            if not waiting.done():  # otherwise the caller was cancelled
                waiting.set_result(reply)
        del self._pending[:done]


class Engine(asyncio.Protocol):
    """One connection to the engine, for consecutive requests."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._parts: list[bytes] = []
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def send_request(self, path: bytes, body: bytes) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.headers, self.complete = [], False
        head = b"POST %b HTTP/1.1\r\nhost: engine\r\ncontent-type: application/json\r\n" % path
        self._transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() not in (b"transfer-encoding", b"content-length"):
            self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        self.complete = True

    async def read(self) -> bytes:
        """The data received since the last call; waits until there is some."""
        if not self._parts and not self.complete:
            self._waiter = self._loop.create_future()
            await self._waiter
        data = b"".join(self._parts)
        self._parts.clear()
        return data


class BareRouter:
    """The application."""

    def __init__(self, engine: int, redis: str) -> None:
        """`engine`: a port on this machine; `redis`: the path of a socket."""
        self._engine = engine
        self._socket = redis
        self._redis: Redis | None = None
        self._idle: list[Engine] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        while len(body) < int(dict(scope["headers"]).get(b"content-length", b"0")):
            body += (await receive())["body"]
        loop = asyncio.get_running_loop()
        if self._redis is None:
            _, self._redis = await loop.create_unix_connection(Redis, self._socket)
        key = xxhash.xxh3_128_hexdigest(body).encode("ascii")
        await self._redis.get(b"entry:" + key)
        await self._redis.get(b"claim:" + key)
        if self._idle:
            engine = self._idle.pop()
        else:
            _, engine = await loop.create_connection(Engine, "127.0.0.1", self._engine)
        engine.send_request(scope["raw_path"], body)
        data = await engine.read()
        await send({"type": "http.response.start", "status": 200, "headers": engine.headers})
        while not engine.complete:
            await send({"type": "http.response.body", "body": data, "more_body": True})
            data = await engine.read()
        self._idle.append(engine)
        await send({"type": "http.response.body", "body": data})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--engine", type=int, required=True, help="port of the engine")
    parser.add_argument("--redis", required=True, help="socket of Redis")
    arguments = parser.parse_args()
    uvicorn.run(
        BareRouter(arguments.engine, arguments.redis), port=arguments.port, lifespan="off",
        access_log=False, log_level="warning", loop="uvloop", http="httptools",
    )  # fmt: skip
