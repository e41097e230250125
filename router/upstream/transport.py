"""The road from the router to its engines: an httpx transport for thousands of streams at once.

httpx's own pool walks over all its connections at every request, so that it grows slower with concurrency. Here a
request costs one look into a dictionary and one write, and a chunk of a stream one future.

    http1       bytes to a response, a request to bytes
    connection  a socket that carries one exchange after the other
    pool        which idle connection serves next
    bodies      what a request sends and a response brings, as streams
    transport   this: the story of an exchange, and who holds which connection
"""

import asyncio
import ssl
from types import MappingProxyType
from typing import Final

import httpx

from router.upstream.bodies import RequestBody, ResponseStream, encode_request
from router.upstream.connection import Connection, Origin
from router.upstream.pool import IdlePool

DEFAULT_PORTS: Final = MappingProxyType({"http": 80, "https": 443})


class Transport(httpx.AsyncBaseTransport):
    """Carries httpx requests over HTTP/1.1, each on a connection of its own while it lasts.

    - A request whose body is in memory is one write; any other body is sent as it comes, framed as its headers say.
    - Headers go out as they are given, and none that could be read as something else than the fields they are.
    - The stream of a response yields what has arrived since the last read as one bytes object, undecoded.
    - A response that is read to its end gives its connection back; one that is closed early, or whose reader is
      cancelled, closes it at once, so that the engine sees the client leave.
    - Reading from an engine pauses while more than `high_water` bytes wait unread, and goes on when they are taken.
    - A connection that the server closed while idle is not used.
    - If a reused connection dies before any byte of the response came, a request whose body is in memory is sent once
      more, on a fresh connection; after a byte came it never is.
    - The connection that became idle last is used first, none is used after `idle_expiry` seconds, and at most
      `max_idle` are kept.
    - `request.extensions["timeout"]` limits, in seconds, `connect`, `read` (no byte while somebody waits for one) and
      `write` (a streamed body of which the server takes nothing). There is no bound on connections and so no wait for
      one: `pool` never passes, and admission bounds the work.
    - Errors are httpx's and carry the request: ConnectError, ConnectTimeout, ReadTimeout, WriteTimeout, ReadError
      (reset), RemoteProtocolError (a response that is cut short, malformed, or with a head of more than `max_head`
      bytes), LocalProtocolError (a request that cannot be sent as it is), UnsupportedProtocol.
    - Interim responses are skipped, HEAD, 204 and 304 have no body, a body without a length ends with the connection,
      trailers are dropped, and a connection on which more comes than was asked for is closed.
    - `in_use` counts connections that carry an exchange or are being opened for one, `idle` those that wait for one.

    `idle_expiry` is below the 5 seconds after which vLLM (`VLLM_HTTP_TIMEOUT_KEEP_ALIVE`) and uvicorn close an idle
    connection, so that a request seldom meets one that is just being closed. A transport belongs to one event loop.
    """

    def __init__(
        self,
        *,
        max_idle: int = 256,
        idle_expiry: float = 4.0,
        high_water: int = 256 * 1024,
        max_head: int = 64 * 1024,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._idle: IdlePool[Origin, Connection] = IdlePool(max_idle=max_idle, expiry=idle_expiry)
        self._busy: set[Connection] = set()
        self._open: set[Connection] = set()  # those with a socket, idle, busy or just being closed
        self._high_water = high_water
        self._max_head = max_head
        self._ssl_context = ssl_context
        self._sweeper: asyncio.TimerHandle | None = None
        self._closing = False
        self._all_lost: asyncio.Event | None = None

    @property
    def in_use(self) -> int:
        return len(self._busy)

    @property
    def idle(self) -> int:
        return len(self._idle)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request and wait for the head; whoever gets the response reads it to its end or closes it."""
        if self._closing:
            raise RuntimeError("the transport is closed")
        origin = _origin(request)
        message, body = encode_request(request)
        connection = self._take_idle(origin)
        if connection is None:
            connection = await self._connect(request, origin)
        try:
            return await self._exchange(connection, request, message, body)
        except (httpx.ReadError, httpx.RemoteProtocolError):
            if not connection.stale or body is not None or self._closing:
                raise
        # The server closed it while the request was under way (RFC 9112 section 9.3.1).
        connection = await self._connect(request, origin)
        return await self._exchange(connection, request, message, body)

    async def aclose(self) -> None:
        """Close all connections and wait until they are; exchanges under way fail with `httpx.ReadError`."""
        self._closing = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self._idle.clear()
        for connection in self._busy | self._open:
            connection.abort(httpx.ReadError, "the transport was closed")
        if self._open:
            self._all_lost = self._all_lost or asyncio.Event()
            await self._all_lost.wait()

    async def _exchange(
        self, connection: Connection, request: httpx.Request, message: bytes, body: RequestBody | None
    ) -> httpx.Response:
        timeouts = request.extensions.get("timeout") or {}
        reader = connection.reader
        try:
            connection.begin(request, timeouts.get("read"))
            connection.write(message)
            if body is None:
                connection.sent = True
            else:
                connection.sent = await body.send(connection)
            while not reader.head:
                connection.check()
                await connection.more()
        except BaseException:
            self._release(connection)
            raise
        return httpx.Response(
            reader.status,
            headers=reader.headers,
            stream=ResponseStream(connection, self._release),
            request=request,
            extensions={"http_version": reader.http_version},
        )

    def _take_idle(self, origin: Origin) -> Connection | None:
        if not len(self._idle):
            return None
        now = asyncio.get_running_loop().time()
        while (connection := self._idle.take(origin, now)) is not None:
            if connection.usable:
                self._busy.add(connection)
                return connection
            connection.abort()
        return None

    async def _connect(self, request: httpx.Request, origin: Origin) -> Connection:
        scheme, host, port = origin
        timeout = (request.extensions.get("timeout") or {}).get("connect")
        loop = asyncio.get_running_loop()
        connection = Connection(
            origin, loop, high_water=self._high_water, max_head=self._max_head, on_lost=self._forget
        )
        self._busy.add(connection)
        try:
            context = self._secure() if scheme == "https" else None
            async with asyncio.timeout(timeout):
                await loop.create_connection(
                    lambda: connection, host, port, ssl=context, server_hostname=host if context is not None else None
                )
        except BaseException as error:
            self._release(connection)
            if isinstance(error, TimeoutError):
                raise httpx.ConnectTimeout(
                    f"no connection to {host}:{port} within {timeout} s", request=request
                ) from error
            # Beside what sockets and TLS raise: a port over 65535, and a host name that IDNA refuses.
            if isinstance(error, OSError | OverflowError | UnicodeError):
                raise httpx.ConnectError(f"no connection to {host}:{port}: {error}", request=request) from error
            raise
        if connection.is_open:
            self._open.add(connection)
        return connection

    def _secure(self) -> ssl.SSLContext:
        if self._ssl_context is None:
            self._ssl_context = httpx.create_ssl_context()
        return self._ssl_context

    def _release(self, connection: Connection) -> None:
        """The one way in which an exchange lets go of its connection."""
        self._busy.discard(connection)
        if not connection.finish() or self._closing:
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        for surplus in self._idle.put(connection.origin, connection, loop.time()):
            surplus.abort()
        self._schedule_sweep(loop)

    def _forget(self, connection: Connection) -> None:
        self._idle.discard(connection)
        self._open.discard(connection)
        if not self._open and self._all_lost is not None:
            self._all_lost.set()

    def _schedule_sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        expiry = self._idle.next_expiry()
        if self._sweeper is None and expiry is not None:
            self._sweeper = loop.call_at(expiry, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweeper = None
        for connection in self._idle.expire(loop.time()):
            connection.abort()
        self._schedule_sweep(loop)


def _origin(request: httpx.Request) -> Origin:
    url = request.url
    scheme = url.scheme
    if scheme not in DEFAULT_PORTS:
        raise httpx.UnsupportedProtocol(f"not an HTTP URL: {url}", request=request)
    return scheme, url.raw_host.decode("ascii"), url.port or DEFAULT_PORTS[scheme]
