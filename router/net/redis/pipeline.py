"""The one line of a process to Redis.

Theory of operation. All commands go through one queue, and one batch of them is on its way at a time: while Redis
answers one, the next gathers. So a command costs a fraction of a round trip's work under load, the number of
connections does not grow with the number of requests, and Redis sees the commands in the order in which they were
given.

Redis is a help and not a need. The first batch that fails or takes too long puts the line out of service: from then on
whoever asks is told so at once, without waiting, until a probe in the background has had an answer again.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final

from router.net.pending_replies import PendingReplies
from router.net.redis.backend import RedisBackend, ReplyFuture
from router.net.redis.clock import TIME_COMMAND, RedisClock
from router.net.redis.commands import Command, EncodedCommand
from router.net.redis.errors import RedisBackendError
from router.net.tasks import cancel_and_wait

log = logging.getLogger("roundhouse.redis")

Replies = list[Any]
"""One for each command; what Redis refused is an exception in its place."""

_MAX_BATCH_BYTES: Final = 1 << 20  # bytes sent before those who wait behind them get their turn
_MIN_THROUGHPUT: Final = 10 << 20  # bytes a second; a batch may take so much longer than the timeout as it is large
_CONNECT_TIMEOUT: Final = 2.0  # seconds that the probe gives a connection, TLS handshake included


class RedisDownError(Exception):
    """Redis cannot be asked at present."""


class RedisPipeline:
    """Commands in, replies out.

    - Commands reach Redis in the order in which they were given; those given together, together.
    - When Redis is gone, frozen or failing, asking costs at most `timeout` once, and nothing from then on until Redis
      answers again; it raises RedisDownError.
    - Nothing is tried twice, and no queue grows without a bound.
    """

    def __init__(
        self,
        backend: RedisBackend,
        *,
        timeout: float,
        retry_interval: float,
        probe_key: str,
        clock: RedisClock | None = None,
    ) -> None:
        """`timeout`, `retry` in seconds: for a batch's answer, and between two looks for a Redis that is away.

        `probe_key`: a key of ours; a cluster routes the command that looks for Redis by it. `clock` is set whenever
        Redis is found.
        """
        self._backend = backend
        self._timeout = timeout
        self._retry_interval = retry_interval
        self._clock = clock or RedisClock()
        self._probe_command: Command = ("EXISTS", probe_key)
        self._queued: list[_QueueItem] = []
        self._in_flight: list[_QueueItem] = []
        self._idle = asyncio.Event()  # else a batch is on its way, or will be in the next turn of the loop
        self._idle.set()
        self._loop: asyncio.AbstractEventLoop
        self._probe_task: asyncio.Task[None] | None = None
        self._up = asyncio.Event()

    @property
    def up(self) -> bool:
        """Whether Redis answered when it was last asked."""
        return self._up.is_set()

    @property
    def counts_receivers(self) -> bool:
        """Whether the reply to PUBLISH counts all who listen; see Link."""
        return self._backend.counts_receivers

    async def start(self) -> None:
        """Begins to look for Redis; waits for it a moment, so that the first request need not."""
        self._loop = asyncio.get_running_loop()
        self._mark_down(None)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._up.wait(), _CONNECT_TIMEOUT)

    async def wait_until_up(self) -> None:
        """Returns once Redis answers."""
        await self._up.wait()

    async def aclose(self) -> None:
        """Sends what waits to be sent, and closes the connections."""
        while not self._idle.is_set():
            await self._idle.wait()
            await asyncio.sleep(0)  # who has just been answered may have one more thing to say
        await cancel_and_wait(self._probe_task)
        self._up.clear()  # what comes now must not connect anew
        await self._backend.aclose()

    def execute(self, *commands: Command | EncodedCommand, size: int = 0) -> "asyncio.Future[Replies]":
        """Sends commands of one key each; their replies. `size`: how many bytes they have, where that is many.

        Raises RedisDownError, also through what it returns.
        """
        if not self._up.is_set():
            raise RedisDownError
        replies: asyncio.Future[Replies] = self._loop.create_future()
        self._enqueue((commands, size, replies))
        return replies

    def execute_eager(self, command: Command | EncodedCommand) -> PendingReplies:
        """The same for one command, for who waits for its reply and need not have a task."""
        if not self._up.is_set():
            raise RedisDownError
        reply = PendingReplies(self._loop)
        self._enqueue(((command,), 0, reply))
        return reply

    def send(self, *commands: Command | EncodedCommand, size: int = 0, on_reply: "OnReply | None" = None) -> None:
        """The same for commands that nobody waits for. Raises RedisDownError.

        `told` is called with the replies in the moment in which they come, or with None where Redis went away first.
        """
        if not self._up.is_set():
            raise RedisDownError
        self._enqueue((commands, size, _NO_CALLBACK if on_reply is None else _ReplyCallback(on_reply)))

    def _enqueue(self, item: "_QueueItem") -> None:
        self._queued.append(item)
        if self._idle.is_set():
            self._idle.clear()
            self._loop.call_soon(self._send_batch)  # whoever else has his turn now may ask as well

    # -- a batch ----------------------------------------------------------------------------------------------------

    def _take_batch(self) -> "tuple[list[_QueueItem], int]":
        size = count = 0
        for _, bytes_, _ in self._queued:
            size += bytes_
            count += 1
            if size >= _MAX_BATCH_BYTES:
                break
        taken, self._queued = self._queued[:count], self._queued[count:]
        return taken, size

    def _send_batch(self) -> None:
        self._in_flight, size = self._take_batch()
        commands = [command for asked in self._in_flight for command in asked[0]]
        try:
            answer = self._backend.execute(commands, self._timeout + size / _MIN_THROUGHPUT)
        except Exception:
            # A defect here must not leave requests waiting for ever.
            log.exception("the line to Redis failed")
            self._fail_all()
        else:
            answer.add_done_callback(self._on_replies)

    def _on_replies(self, answer: ReplyFuture) -> None:
        try:
            replies = answer.result()
        except RedisBackendError as error:
            self._mark_down(error)
            self._fail_all()
            return
        except asyncio.CancelledError:  # the process ends
            self._fail_all()
            return
        except Exception:
            log.exception("the line to Redis failed")
            self._fail_all()
            return
        answered, self._in_flight = self._in_flight, []
        if self._queued:
            self._send_batch()  # first, so that Redis is at work while those who are told go on
        else:
            self._idle.set()
        at = 0
        for asked, _, waiting in answered:
            if not waiting.done():  # else who asked has left
                waiting.set_result(replies[at : at + len(asked)])
            at += len(asked)

    def _fail_all(self) -> None:
        failed, self._in_flight, self._queued = self._in_flight + self._queued, [], []
        self._idle.set()
        for _, _, waiting in failed:
            if not waiting.done():
                waiting.set_exception(RedisDownError())
                waiting.exception()  # nobody need look

    # -- out of service and back ------------------------------------------------------------------------------------

    def _mark_down(self, error: Exception | None) -> None:
        if self._probe_task is None:
            if error is not None:
                log.warning("Redis does not answer (%s); requests go on without it", error)
            self._up.clear()
            self._probe_task = self._loop.create_task(self._probe_until_up(was_up=error is not None))

    async def _probe_until_up(self, *, was_up: bool) -> None:
        silent = not was_up  # nothing has been said of it being away, so nothing need be said of it being back
        while True:
            try:
                await self._probe_once()
                break
            except RedisBackendError as error:
                if silent:
                    log.warning("Redis cannot be reached (%s); trying again every %g s", error, self._retry_interval)
                silent = False
            except Exception:
                # A defect here, or an option in the address that redis-py does not know, must not end the looking.
                if silent:
                    log.exception("Redis cannot be asked")
                silent = False
            await asyncio.sleep(self._retry_interval)
        self._probe_task = None
        self._up.set()
        if not silent:
            log.info("Redis answers again")

    async def _probe_once(self) -> None:
        sent = self._clock.monotonic()
        reply, time = await self._backend.execute(
            [self._probe_command, TIME_COMMAND], max(self._timeout, _CONNECT_TIMEOUT)
        )
        if isinstance(reply, Exception):  # it loads its data, or wants a password
            raise RedisBackendError(str(reply))
        self._clock.update(time, sent)


OnReply = Callable[[Replies | None], object]


class _ReplyCallback:
    """One who is told, and takes replies as a future does."""

    __slots__ = ("_callback",)

    def __init__(self, callback: OnReply) -> None:
        self._callback = callback

    def done(self) -> bool:
        return False

    def set_result(self, replies: Replies | None) -> None:
        try:
            self._callback(replies)
        except Exception:
            # A defect there must not keep their replies from the others.
            log.exception("what Redis has replied was not understood")

    def set_exception(self, _: Exception) -> None:
        self.set_result(None)

    def exception(self) -> None:
        pass


_NO_CALLBACK: Final = _ReplyCallback(lambda _: None)
_QueueItem = tuple[
    tuple[Command | EncodedCommand, ...], int, "asyncio.Future[Replies] | PendingReplies | _ReplyCallback"
]
