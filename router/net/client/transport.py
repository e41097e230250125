"""The road from the router to its engines, for thousands of streams at once.

    page        what of a request is known before there is one
    http1       bytes to a response
    connection  a socket that carries one exchange after the other
    pool        which idle connection serves next
    response    an answer, and the hold on its connection
    transport   this: the story of an exchange, and who holds which connection
    client      what is asked of an engine

A request costs one look into a dictionary, one write and one future; a chunk of its answer none of these.
"""

import asyncio
import ssl
from typing import Self

import httpx

from router.net.client.connection import HTTPConnection
from router.net.client.errors import out_of_resources, timed_out, unreachable
from router.net.client.pool import IdlePool
from router.net.client.response import EngineResponse
from router.net.client.target import Origin
from router.net.local_errors import local_cause


class HTTPTransport:
    """Carries requests over HTTP/1.1, each on a connection of its own while it lasts.

    - A request is one write.
    - A response gives what has arrived as one bytes object, undecoded, and at once.
    - A response that is read to its end gives its connection back; one that is closed early, or whose reader is
      cancelled, closes it at once, so that the engine sees the client leave.
    - Reading from an engine pauses while more than `high_water` bytes wait unread, and goes on when they are taken.
    - A connection that the server closed while idle is not used.
    - If a reused connection dies before any byte of the response came, the request is sent once more, on a fresh
      connection; after a byte came it never is.
    - The connection that became idle last is used first, none is used after `idle_expiry` seconds, and at most
      `max_idle` are kept.
    - Nothing is waited for beyond the time that the caller names. There is no bound on connections and so no wait
      for one: admission bounds the work.
    - What goes wrong is an EngineError: `connect`, `local` (this machine lacks what a connection needs), `timeout`,
      `reset` (the connection broke), `broken-off` (a response that is cut short, malformed, or with a head of more than
      `max_head` bytes); its cause tells more.
    - Interim responses are skipped, 204 and 304 have no body, a body without a length ends with the connection,
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
        self._idle: IdlePool[Origin, HTTPConnection] = IdlePool(max_idle=max_idle, expiry=idle_expiry)
        self._busy: set[HTTPConnection] = set()
        self._open: set[HTTPConnection] = set()  # those with a socket, idle, busy or just being closed
        self._high_water = high_water
        self._max_head = max_head
        self._ssl_context = ssl_context
        # Asked for once: up to Python 3.11, get_running_loop makes a system call each time.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._all_closed: asyncio.Event | None = None

    @property
    def in_use(self) -> int:
        return len(self._busy)

    @property
    def idle(self) -> int:
        return len(self._idle)

    async def send(
        self, origin: Origin, request: bytes, *, connect_timeout: float, head_timeout: float, total_timeout: float
    ) -> EngineResponse:
        """Send a request and wait for the head; whoever gets the response reads it to its end or closes it.

        In seconds from now: `patience` for the head, `total` for all of it; and `connect` for a connection. Raises
        EngineError.
        """
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        now = loop.time()
        until, last = now + head_timeout, now + total_timeout
        connection = self._take_idle(origin, now)
        while True:
            if connection is None:
                connection = await self._connect(loop, origin, until, connect_timeout)
            try:
                failure = await connection.send_request(request, until, last)
            except BaseException:
                self._release(connection)
                raise
            if failure is None:
                return EngineResponse(connection, self._release)
            self._release(connection)
            # The server may have closed it while the request was under way (RFC 9112 section 9.3.1).
            if not connection.closed_while_idle or self._closing:
                raise failure
            connection = None

    async def aclose(self) -> None:
        """Close all connections and wait until they are; exchanges under way fail with EngineError, `reset`."""
        self._closing = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        self._idle.clear()
        for connection in self._busy | self._open:
            connection.abort()
        if self._open:
            self._all_closed = self._all_closed or asyncio.Event()
            await self._all_closed.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _take_idle(self, origin: Origin, now: float) -> HTTPConnection | None:
        while (connection := self._idle.take(origin, now)) is not None:
            if connection.usable:
                self._busy.add(connection)
                return connection
            connection.abort()
        return None

    async def _connect(
        self, loop: asyncio.AbstractEventLoop, origin: Origin, deadline: float, connect_timeout: float
    ) -> HTTPConnection:
        if self._closing:
            raise RuntimeError("the transport is closed")
        scheme, host, port = origin
        context = self._tls_context() if scheme == "https" else None
        connection = HTTPConnection(
            origin, loop, high_water=self._high_water, max_head=self._max_head, on_lost=self._on_connection_lost
        )
        self._busy.add(connection)
        patience = loop.time() + connect_timeout
        try:
            async with asyncio.timeout_at(min(patience, deadline)):
                await loop.create_connection(
                    lambda: connection, host, port, ssl=context, server_hostname=host if context is not None else None
                )
        except BaseException as error:
            self._release(connection)
            # Beside what sockets and TLS raise: a port over 65535, and a host name that IDNA refuses.
            if not isinstance(error, OSError | OverflowError | UnicodeError):
                raise
            lacking = local_cause(error)
            if lacking is not None:
                failure = out_of_resources(lacking)
            else:
                failure = timed_out() if isinstance(error, TimeoutError) and deadline < patience else unreachable()
            failure.__cause__ = error
            raise failure  # noqa: B904 - mypyc passes over `from`
        if connection.is_open:
            self._open.add(connection)
        return connection

    def _tls_context(self) -> ssl.SSLContext:
        if self._ssl_context is None:
            self._ssl_context = httpx.create_ssl_context()
        return self._ssl_context

    def _release(self, connection: HTTPConnection) -> None:
        """The one way in which an exchange lets go of its connection."""
        self._busy.discard(connection)
        if not connection.finish_exchange() or self._closing or (loop := self._loop) is None:
            connection.abort()
            return
        for surplus in self._idle.put(connection.origin, connection, loop.time()):
            surplus.abort()
        if self._sweep_timer is None:
            self._schedule_sweep(loop)

    def _on_connection_lost(self, connection: HTTPConnection) -> None:
        self._idle.discard(connection)
        self._open.discard(connection)
        if not self._open and self._all_closed is not None:
            self._all_closed.set()

    def _schedule_sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        expiry = self._idle.next_expiry()
        if expiry is not None:
            self._sweep_timer = loop.call_at(expiry, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweep_timer = None
        for connection in self._idle.expire(loop.time()):
            connection.abort()
        self._schedule_sweep(loop)
