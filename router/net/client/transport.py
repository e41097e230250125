"""The connections from the router to its engines, for thousands of concurrent streams.

    target      the constant part of a request
    http1       parses bytes to a response
    connection  a socket that carries one exchange after the other
    pool        selects an idle connection
    response    a response, which holds its connection
    transport   this module: runs an exchange and owns the connections
    watch       decides about an exchange that is silent
    client      (router.upstream) the requests that engines get

A request costs one dictionary lookup, one write and one future; a chunk of its response costs none of these.
"""

import asyncio
import contextlib
import ssl
from typing import Self

from router.net.client.connection import HTTPConnection
from router.net.client.errors import EngineError, out_of_resources, timed_out, unreachable
from router.net.client.pool import IdlePool
from router.net.client.response import EngineResponse
from router.net.client.target import Origin
from router.net.client.tls import create_tls_context
from router.net.client.watch import Watch
from router.net.local_errors import local_cause


class HTTPTransport:
    """Carries requests over HTTP/1.1. Each has a connection of its own until it ends.

    - A request is one write.
    - A response passes on each read as one bytes object, undecoded and at once.
    - A response that is read to its end returns its connection to the pool. One that is closed early, or whose reader
      is cancelled, closes the connection at once, so that the engine sees the client disconnect.
    - Reading from an engine pauses while more than `high_water` bytes are unread, and resumes when they are taken.
    - A connection that the server closed while it was idle is not used.
    - If a reused connection fails before any byte of the response came, the request is sent once more, on a new
      connection. After a byte came, it is never sent again. If nothing accepts that connection, the failure is that of
      the first: the server may have ended because of the request.
    - The connection that became idle last is used first, none is used after `idle_expiry` seconds, and at most
      `max_idle` are kept.
    - No wait exceeds the timeouts of the caller. The number of connections has no limit, so there is no wait for one:
      admission limits the work.
    - Failures are EngineErrors: `connect`, `local` (this machine lacks a resource for the connection), `timeout`,
      `reset` (the connection broke), `broken-off` (a response that is cut short, malformed, or with a head of more than
      `max_head` bytes); the cause has the details.
    - Interim responses are skipped, 204 and 304 have no body, a body without a length ends with the connection,
      trailers are dropped, and a connection with bytes beyond the response is closed.
    - `in_use` counts connections that carry an exchange or are being opened for one, `idle` those in the pool.

    `idle_expiry` is below the 5 seconds after which vLLM (`VLLM_HTTP_TIMEOUT_KEEP_ALIVE`) and uvicorn close an idle
    connection, so that a request seldom uses one that is just being closed. A transport belongs to one event loop.
    """

    def __init__(
        self,
        *,
        max_idle: int = 256,
        idle_expiry: float = 4.0,
        high_water: int = 256 * 1024,
        max_head: int = 64 * 1024,
    ) -> None:
        self._idle: IdlePool[Origin, HTTPConnection] = IdlePool(max_idle=max_idle, expiry=idle_expiry)
        self._busy: set[HTTPConnection] = set()
        self._open: set[HTTPConnection] = set()  # all with a socket: idle, busy or just being closed
        self._high_water = high_water
        self._max_head = max_head
        self._tls_contexts: dict[str, ssl.SSLContext] = {}  # by the file of the authorities
        # Cached: up to Python 3.11, get_running_loop makes a system call each time.
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
        self, origin: Origin, request: bytes, *, connect_timeout: float, head_timeout: float, total_timeout: float,
        watch: Watch | None = None,
    ) -> EngineResponse:  # fmt: skip
        """Send a request and wait for the head. The caller reads the response to its end or closes it.

        Timeouts are in seconds from now; `total_timeout` covers the whole response. `watch`: may allow more than
        `head_timeout`, and than the timeouts per chunk of the response. Raises EngineError.
        """
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        now = loop.time()
        deadline, total_deadline = now + head_timeout, now + total_timeout
        connection = self._take_idle(origin, now)
        failure: Exception | None = None
        while True:
            if connection is None:
                try:
                    connection = await self._connect(loop, origin, deadline, connect_timeout)
                except EngineError as error:
                    if failure is None or error.reason != "connect":
                        raise error  # noqa: TRY201 - compiled, a `raise` without it costs more
                    raise failure  # noqa: B904 - its cause is its own
            try:
                failure = await connection.send_request(request, deadline, total_deadline, watch)
            except BaseException:  # a cancellation too: the connection would stay in `_busy`
                self._release(connection)
                raise
            if failure is None:
                return EngineResponse(connection, self._release)
            self._release(connection)
            # The server may have closed the idle connection while the request was on its way (RFC 9112 section 9.3.1).
            # The retry uses a new connection, which cannot be `closed_while_idle`: so there is no third attempt.
            if not connection.closed_while_idle or self._closing:
                raise failure
            connection = None

    async def aclose(self) -> None:
        """Close all connections and wait for that. Exchanges in progress fail with EngineError, `reset`."""
        self._closing = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        self._idle.clear()
        for connection in self._busy | self._open:  # busy ones may still be connecting, without a socket
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
        scheme, host, port, ca_file = origin
        connection = HTTPConnection(
            origin, loop, high_water=self._high_water, max_head=self._max_head, on_lost=self._on_connection_lost
        )
        self._busy.add(connection)  # before the first await, so that `aclose` finds it
        started_at = connect_by = loop.time()
        try:
            context = self._tls_context(ca_file) if scheme == "https" else None  # reads files when it is new
            connect_by = loop.time() + connect_timeout
            async with asyncio.timeout_at(min(connect_by, deadline)):
                if scheme == "unix":
                    await loop.create_unix_connection(lambda: connection, host)
                else:
                    name = host if context is not None else None
                    await loop.create_connection(lambda: connection, host, port, ssl=context, server_hostname=name)
        except BaseException as error:
            self._release(connection)
            # OSError: sockets, TLS and the timeout. OverflowError: a port over 65535. UnicodeError: an invalid IDNA
            # host name.
            if not isinstance(error, OSError | OverflowError | UnicodeError):
                raise
            missing_resource = local_cause(error)
            if missing_resource is not None:
                failure = out_of_resources(missing_resource)
            else:
                # The caller's deadline is a timeout; the connect timeout alone means that the engine is unreachable.
                failure = timed_out() if isinstance(error, TimeoutError) and deadline < connect_by else unreachable()
            failure.__cause__ = error
            raise failure  # noqa: B904 - mypyc ignores `from`
        connection.connect_seconds = loop.time() - started_at
        if connection.is_open:  # else it was lost already, and `_on_connection_lost` will not come again
            self._open.add(connection)
        return connection

    def prepare(self, origin: Origin) -> None:
        """Reads the certificate authorities of an origin, which would delay all connections at the first request."""
        scheme, _, _, ca_file = origin
        if scheme == "https":
            with contextlib.suppress(OSError):  # a connection reports it
                self._tls_context(ca_file)

    def _tls_context(self, ca_file: str) -> ssl.SSLContext:
        """Raises OSError if the file cannot be read, or holds no certificates."""
        context = self._tls_contexts.get(ca_file)
        if context is None:
            context = self._tls_contexts[ca_file] = create_tls_context(ca_file)
        return context

    def _release(self, connection: HTTPConnection) -> None:
        """The only way for an exchange to release its connection."""
        self._busy.discard(connection)
        if not connection.finish_exchange() or self._closing or (loop := self._loop) is None:
            connection.abort()
            return
        for surplus in self._idle.put(connection.origin, connection, loop.time()):
            surplus.abort()
        if self._sweep_timer is None:  # one timer for all idle connections, set for the oldest
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
