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

from router.net.pending_replies import Reply
from router.net.redis.backend import Answer, Link
from router.net.redis.clock import ASK_TIME, RedisClock
from router.net.redis.commands import Command, Packed
from router.net.redis.errors import LinkError
from router.net.tasks import end

log = logging.getLogger("roundhouse.redis")

Replies = list[Any]
"""One for each command; what Redis refused is an exception in its place."""

_MAX_BATCH: Final = 1 << 20  # bytes sent before those who wait behind them get their turn
_SLOWEST: Final = 10 << 20  # bytes a second; a batch may take so much longer than the timeout as it is large
_CONNECT: Final = 2.0  # seconds that the probe gives a connection, TLS handshake included


class RedisDownError(Exception):
    """Redis cannot be asked at present."""


class Line:
    """Commands in, replies out.

    - Commands reach Redis in the order in which they were given; those given together, together.
    - When Redis is gone, frozen or failing, asking costs at most `timeout` once, and nothing from then on until Redis
      answers again; it raises RedisDownError.
    - Nothing is tried twice, and no queue grows without a bound.
    """

    def __init__(
        self, link: Link, *, timeout: float, retry: float, probe_key: str, clock: RedisClock | None = None
    ) -> None:
        """`timeout`, `retry` in seconds: for a batch's answer, and between two looks for a Redis that is away.

        `probe_key`: a key of ours; a cluster routes the command that looks for Redis by it. `clock` is set whenever
        Redis is found.
        """
        self._link = link
        self._timeout = timeout
        self._retry = retry
        self._clock = clock or RedisClock()
        self._probe_command: Command = ("EXISTS", probe_key)
        self._waiting: list[_Asked] = []
        self._in_hand: list[_Asked] = []
        self._idle = asyncio.Event()  # else a batch is on its way, or will be in the next turn of the loop
        self._idle.set()
        self._loop: asyncio.AbstractEventLoop
        self._probe: asyncio.Task[None] | None = None
        self._up = asyncio.Event()

    @property
    def up(self) -> bool:
        """Whether Redis answered when it was last asked."""
        return self._up.is_set()

    @property
    def counts_receivers(self) -> bool:
        """Whether the reply to PUBLISH counts all who listen; see Link."""
        return self._link.counts_receivers

    async def start(self) -> None:
        """Begins to look for Redis; waits for it a moment, so that the first request need not."""
        self._loop = asyncio.get_running_loop()
        self._go_down(None)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._up.wait(), _CONNECT)

    async def wait_until_up(self) -> None:
        """Returns once Redis answers."""
        await self._up.wait()

    async def aclose(self) -> None:
        """Sends what waits to be sent, and closes the connections."""
        while not self._idle.is_set():
            await self._idle.wait()
            await asyncio.sleep(0)  # who has just been answered may have one more thing to say
        await end(self._probe)
        self._up.clear()  # what comes now must not connect anew
        await self._link.aclose()

    def ask(self, *commands: Command | Packed, size: int = 0) -> "asyncio.Future[Replies]":
        """Sends commands of one key each; their replies. `size`: how many bytes they have, where that is many.

        Raises RedisDownError, also through what it returns.
        """
        if not self._up.is_set():
            raise RedisDownError
        replies: asyncio.Future[Replies] = self._loop.create_future()
        self._queue((commands, size, replies))
        return replies

    def look_up(self, command: Command | Packed) -> Reply:
        """The same for one command, for who waits for its reply and need not have a task."""
        if not self._up.is_set():
            raise RedisDownError
        reply = Reply(self._loop)
        self._queue(((command,), 0, reply))
        return reply

    def tell(self, *commands: Command | Packed, size: int = 0, told: "Told | None" = None) -> None:
        """The same for commands that nobody waits for. Raises RedisDownError.

        `told` is called with the replies in the moment in which they come, or with None where Redis went away first.
        """
        if not self._up.is_set():
            raise RedisDownError
        self._queue((commands, size, _NOBODY if told is None else _Telling(told)))

    def _queue(self, asked: "_Asked") -> None:
        self._waiting.append(asked)
        if self._idle.is_set():
            self._idle.clear()
            self._loop.call_soon(self._send)  # whoever else has his turn now may ask as well

    # -- a batch ----------------------------------------------------------------------------------------------------

    def _take(self) -> "tuple[list[_Asked], int]":
        size = count = 0
        for _, bytes_, _ in self._waiting:
            size += bytes_
            count += 1
            if size >= _MAX_BATCH:
                break
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken, size

    def _send(self) -> None:
        self._in_hand, size = self._take()
        commands = [command for asked in self._in_hand for command in asked[0]]
        try:
            answer = self._link.execute(commands, self._timeout + size / _SLOWEST)
        except Exception:
            # A defect here must not leave requests waiting for ever.
            log.exception("the line to Redis failed")
            self._fail_all()
        else:
            answer.add_done_callback(self._answered)

    def _answered(self, answer: Answer) -> None:
        try:
            replies = answer.result()
        except LinkError as error:
            self._go_down(error)
            self._fail_all()
            return
        except asyncio.CancelledError:  # the process ends
            self._fail_all()
            return
        except Exception:
            log.exception("the line to Redis failed")
            self._fail_all()
            return
        answered, self._in_hand = self._in_hand, []
        if self._waiting:
            self._send()  # first, so that Redis is at work while those who are told go on
        else:
            self._idle.set()
        at = 0
        for asked, _, waiting in answered:
            if not waiting.done():  # else who asked has left
                waiting.set_result(replies[at : at + len(asked)])
            at += len(asked)

    def _fail_all(self) -> None:
        failed, self._in_hand, self._waiting = self._in_hand + self._waiting, [], []
        self._idle.set()
        for _, _, waiting in failed:
            if not waiting.done():
                waiting.set_exception(RedisDownError())
                waiting.exception()  # nobody need look

    # -- out of service and back ------------------------------------------------------------------------------------

    def _go_down(self, error: Exception | None) -> None:
        if self._probe is None:
            if error is not None:
                log.warning("Redis does not answer (%s); requests go on without it", error)
            self._up.clear()
            self._probe = self._loop.create_task(self._look_for_it(was_up=error is not None))

    async def _look_for_it(self, *, was_up: bool) -> None:
        silent = not was_up  # nothing has been said of it being away, so nothing need be said of it being back
        while True:
            try:
                await self._ask_whether_it_is_there()
                break
            except LinkError as error:
                if silent:
                    log.warning("Redis cannot be reached (%s); trying again every %g s", error, self._retry)
                silent = False
            except Exception:
                # A defect here, or an option in the address that redis-py does not know, must not end the looking.
                if silent:
                    log.exception("Redis cannot be asked")
                silent = False
            await asyncio.sleep(self._retry)
        self._probe = None
        self._up.set()
        if not silent:
            log.info("Redis answers again")

    async def _ask_whether_it_is_there(self) -> None:
        sent = self._clock.monotonic()
        reply, time = await self._link.execute([self._probe_command, ASK_TIME], max(self._timeout, _CONNECT))
        if isinstance(reply, Exception):  # it loads its data, or wants a password
            raise LinkError(str(reply))
        self._clock.note(time, sent)


Told = Callable[[Replies | None], object]


class _Telling:
    """One who is told, and takes replies as a future does."""

    __slots__ = ("_told",)

    def __init__(self, told: Told) -> None:
        self._told = told

    def done(self) -> bool:
        return False

    def set_result(self, replies: Replies | None) -> None:
        try:
            self._told(replies)
        except Exception:
            # A defect there must not keep their replies from the others.
            log.exception("what Redis has replied was not understood")

    def set_exception(self, _: Exception) -> None:
        self.set_result(None)

    def exception(self) -> None:
        pass


_NOBODY: Final = _Telling(lambda _: None)
_Asked = tuple[tuple[Command | Packed, ...], int, "asyncio.Future[Replies] | Reply | _Telling"]
