"""One WebSocket (RFC 6455) on a connection that began with HTTP: messages in both directions, and how it closes.

Theory of operation. The library parses and frames, without a socket; this protocol reads, writes and keeps the limits.
Reading is never paused, because only reading shows pongs and a disconnect. So what a client sends ahead is bounded by
the number of messages, and by the memory that all bodies share. One timer checks that the client is there, and that a
message that has begun arrives in time.

Compression is not negotiated: it costs a window of memory for each connection, and events are short.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, Protocol

from websockets.frames import Frame, Opcode
from websockets.protocol import SERVER, State
from websockets.protocol import Protocol as WebSocketParser

from router.net.server.client_connection import NextProtocol
from router.net.server.timeouts import ClientTimeouts

log = logging.getLogger("roundhouse.websocket")

PING_INTERVAL: Final = 20.0
"""Seconds between two pings. Proxies count them as traffic; a client that sends nothing until the next one is gone."""

MAX_WAITING: Final = 16
"""Messages of a client that may wait while another one is being answered."""

CLOSE_TIMEOUT: Final = 5.0
"""Seconds for which a close waits for the client's."""

_FAILED_CLOSE_TIMEOUT: Final = 1.0

# RFC 6455, section 7.4.1.
NORMAL_CLOSURE: Final = 1000
GOING_AWAY: Final = 1001
_UNSUPPORTED_DATA: Final = 1003
_INVALID_DATA: Final = 1007
_POLICY_VIOLATION: Final = 1008
_INTERNAL_ERROR: Final = 1011
_TRY_AGAIN_LATER: Final = 1013


class ByteAllocation(Protocol):
    """The memory of a message; see router.flow.body_budget.BodyAllocation."""

    def try_allocate(self, size: int) -> bool:
        """Adds bytes that have arrived; False if there is no room for them."""

    def release(self) -> None:
        """Frees them all."""


class Message(NamedTuple):
    """A text of the client as UTF-8; `allocation` is to be released when the text is no longer needed."""

    text: bytes
    allocation: ByteAllocation


class WebSocketLimits(NamedTuple):
    """`max_message`: bytes. `new_allocation`: of the memory for messages that arrive."""

    max_message: int
    timeouts: ClientTimeouts
    new_allocation: Callable[[], ByteAllocation]


class WebSocketConnection(NextProtocol):
    """One connection after its handshake; `serve` runs in a task of its own, and its end closes the connection.

    - A message over the limit closes with 1009, one that is not text with 1003, invalid UTF-8 with 1007.
    - More than MAX_WAITING messages ahead, one that does not arrive in time, and pings without reading close with 1008;
      too many bytes in memory with 1013.
    - A client that does not answer a ping, or does not read for `timeouts.send`, is cut off.
    - A close waits for the client's, but not long: a connection that closes with unread bytes is reset, and the client
      would lose what it has not read.
    - After `shutdown`, which the server calls, the messages that have arrived are answered; then `receive` gives None.
    - `on_disconnect` is called once when the client has gone.
    """

    transport: asyncio.Transport
    _connections: set[Any]
    _tasks: "set[asyncio.Task[Any]]"

    def __init__(
        self, limits: WebSocketLimits, serve: Callable[["WebSocketConnection"], Coroutine[Any, Any, None]]
    ) -> None:
        self.is_stopping = False
        self.on_disconnect: Callable[[], None] | None = None
        self._limits = limits
        self._serve = serve
        self._loop = asyncio.get_running_loop()
        self._parser = WebSocketParser(SERVER, state=State.OPEN, max_size=limits.max_message, logger=log)
        self._messages: deque[Message] = deque()
        self._part = bytearray()  # of a message in several frames
        self._allocation = limits.new_allocation()
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._has_ended = False  # nothing more is received
        self._is_idle = False  # no message is being answered
        self._awaits_pong = False
        self._message_since: float | None = None  # when the message that is arriving has begun
        self._task: asyncio.Task[None] | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}

    # -- what `serve` uses ------------------------------------------------------------------------------------------

    async def receive(self) -> Message | None:
        """The next message; None if no more will come."""
        while not self._messages:
            if self._has_ended or self.is_stopping:
                return None
            self._arrived.clear()
            self._is_idle = True
            try:
                await self._arrived.wait()
            finally:
                self._is_idle = False
        return self._messages.popleft()

    @property
    def is_open(self) -> bool:
        return self._parser.state is State.OPEN and not self.transport.is_closing()

    @property
    def is_full(self) -> bool:
        """Whether the client has yet to read what was sent."""
        return not self._writable.is_set()

    def start(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """A task that the server cancels if it is not done in time when the server stops."""
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def send(self, texts: list[bytes]) -> None:
        """Sends a message for each text, in one write."""
        if self.is_open:
            # One write for all of them: each would be a system call.
            for text in texts:
                self._parser.send_text(text)
            self._write()

    async def drain(self) -> None:
        """Returns once there is room, or the client has gone."""
        await self._writable.wait()

    def close(self, code: int = NORMAL_CLOSURE, reason: str = "") -> None:
        if self.is_open:
            self._parser.send_close(code, reason)
        self._end()

    # -- the server and the transport -------------------------------------------------------------------------------

    def attach(self, transport: asyncio.Transport, connections: set[Any], tasks: "set[asyncio.Task[Any]]") -> None:
        self.transport, self._connections, self._tasks = transport, connections, tasks
        self._set_timer("check", PING_INTERVAL, self._check)
        # Not among `tasks`: at the end of the grace period it has to send what the responses in progress end with.
        self._task = self._loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._serve(self)
        except Exception:
            # The last line of defence: the client learns of it by the code.
            log.exception("a WebSocket has failed")
            self.close(_INTERNAL_ERROR)
        else:
            self.close(GOING_AWAY if self.is_stopping else NORMAL_CLOSURE)

    def shutdown(self) -> None:
        self.is_stopping = True
        self._arrived.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        for timer in self._timers.values():
            timer.cancel()
        self._writable.set()
        self._stop_receiving()

    def data_received(self, data: bytes) -> None:
        if self._has_ended:
            self._await_close(data)
            return
        self._awaits_pong = False  # a client that sends anything is there
        # Before they are parsed: the parser keeps the bytes of an incomplete message.
        if not self._allocation.try_allocate(len(data)):
            self.close(_TRY_AGAIN_LATER, "too many messages in memory")
            return
        self._parser.receive_data(data)
        frames: list[Any] = self._parser.events_received()
        for frame in frames:
            self._on_frame(frame)
        self._write()
        if self._parser.parser_exc is not None:  # its close frame is written, and the client's will not be parsed
            self._end(_FAILED_CLOSE_TIMEOUT)
        elif frames and self._parser.current_size is None:
            self._message_since = None
            self._renew_allocation()  # it has the bytes of control frames
        elif self._message_since is None:
            self._message_since = self._loop.time()

    def eof_received(self) -> None:
        # The transport closes once it has sent what is left, which a client that does not read would prevent.
        self._end()

    def pause_writing(self) -> None:
        self._writable.clear()
        # A client that reads nothing would hold its response in memory, and the generation that feeds it.
        self._set_timer("write", self._limits.timeouts.send, lambda: self.transport.abort())

    def resume_writing(self) -> None:
        self._writable.set()
        self._cancel_timer("write")

    # -- frames -----------------------------------------------------------------------------------------------------

    def _on_frame(self, frame: Frame) -> None:
        if self._has_ended:
            return
        if frame.opcode is Opcode.BINARY:
            self.close(_UNSUPPORTED_DATA, "messages are text")
        elif frame.opcode is Opcode.CLOSE:
            self._end()
            self.transport.close()
        elif frame.opcode is Opcode.PING and self.is_full:
            # Each is answered with as many bytes, which nothing would bound.
            self.close(_POLICY_VIOLATION, "pings without reading")
        elif frame.opcode is Opcode.TEXT or frame.opcode is Opcode.CONT:
            # One buffer: a list of frames with a byte each would take fifty times its bytes.
            self._part += frame.data
            if frame.fin:
                text, self._part = bytes(self._part), bytearray()
                self._on_text(text)

    def _on_text(self, text: bytes) -> None:
        if len(self._messages) - self._is_idle >= MAX_WAITING:  # one will be taken at once
            self.close(_POLICY_VIOLATION, "too many messages ahead")
            return
        try:
            text.decode()
        except UnicodeDecodeError:
            self.close(_INVALID_DATA, "invalid UTF-8")
            return
        self._messages.append(Message(text, self._allocation))
        self._allocation = self._limits.new_allocation()
        self._arrived.set()

    def _renew_allocation(self) -> None:
        self._allocation.release()
        self._allocation = self._limits.new_allocation()

    # -- timers and the end -----------------------------------------------------------------------------------------

    def _check(self) -> None:
        now = self._loop.time()
        if self._message_since is not None and now - self._message_since >= self._limits.timeouts.receive:
            self.close(_POLICY_VIOLATION, "a message did not arrive in time")
        elif self.is_full:
            self._set_timer("check", PING_INTERVAL, self._check)  # it may not have got the ping yet
        elif self._awaits_pong:
            self.transport.abort()
        elif self.is_open:
            self._awaits_pong = True
            self._parser.send_ping(b"")
            self._write()
            self._set_timer("check", PING_INTERVAL, self._check)

    def _write(self) -> None:
        if data := b"".join(self._parser.data_to_send()):
            self.transport.write(data)

    def _end(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Sends what is left; the connection closes with the client's close, or after the time for it."""
        if not self._has_ended:
            self._write()
            self._set_timer("close", timeout, lambda: self.transport.abort())
            self._stop_receiving()

    def _await_close(self, data: bytes) -> None:
        self._parser.receive_data(data)
        if any(frame.opcode is Opcode.CLOSE for frame in self._parser.events_received() if isinstance(frame, Frame)):
            self.transport.close()

    def _stop_receiving(self) -> None:
        if self._has_ended:
            return
        # Before the callback, which may close the connection in turn.
        self._has_ended = True
        self._allocation.release()
        while self._messages:
            self._messages.popleft().allocation.release()
        self._arrived.set()
        if self.on_disconnect is not None:
            self.on_disconnect()

    def _set_timer(self, name: str, delay: float, callback: Callable[[], object]) -> None:
        self._cancel_timer(name)
        self._timers[name] = self._loop.call_later(delay, callback)

    def _cancel_timer(self, name: str) -> None:
        if name in self._timers:
            self._timers.pop(name).cancel()
