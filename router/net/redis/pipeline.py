"""The pipeline through which a process sends all its commands to Redis.

Theory of operation. All commands go through one queue, and one batch is in flight at a time. While Redis answers a
batch, the next one gathers. So under load a command costs a fraction of a round trip's work, the number of connections
does not grow with the number of requests, and Redis sees the commands in the order in which they were given. The
measurements are in docs/decisions/0001-one-batch-in-flight.md.

Redis is optional. The first batch that fails or times out marks the pipeline as down. From then on every call fails at
once, without waiting, until a probe in the background has had a reply.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from router.net.pending_replies import PendingReplies
from router.net.redis.backend import RedisBackend, ReplyFuture
from router.net.redis.clock import TIME_COMMAND, RedisClock
from router.net.redis.commands import Command, EncodedCommand
from router.net.redis.errors import ReadOnlyReplicaError, RedisBackendError, UnexpectedReplyError
from router.net.redis.errors import RedisDownError as RedisDownError
from router.net.redis.replies import decode_reply
from router.net.repeated_warning import RepeatedWarning
from router.net.tasks import cancel_and_wait

log = logging.getLogger("roundhouse.redis")

T = TypeVar("T")

Replies = list[Any]
"""One reply for each command, in order. The reply to a command that Redis refused is an exception."""

# Bytes. A batch ends with the item that reaches this size, so that large writes do not delay what is queued behind
# them for too long.
_MAX_BATCH_BYTES: Final = 1 << 20
# Bytes a second. The timeout bounds Redis' silence; a large batch gets the time to send it at this rate in addition.
_MIN_THROUGHPUT: Final = 10 << 20
_CONNECT_TIMEOUT: Final = 2.0  # seconds that the probe gives a connection, TLS handshake included


class RedisPipeline:
    """Commands in, replies out.

    - Commands reach Redis in the order in which they were given. Commands of one call stay together.
    - When Redis is gone, frozen or failing, a command waits for at most `timeout`, once. From then on every call raises
      RedisDownError without waiting, until Redis is up again.
    - Nothing is retried, and no queue grows without a bound.
    - Every command gets its replies or an exception, whatever the callers of others do with theirs.
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
        """`timeout` for the replies to a batch and `retry_interval` between two probes, both in seconds.

        `probe_key`: a key of the router's; a cluster routes the probe's command by it. `clock` is set by each probe
        that succeeds.
        """
        self._backend = backend
        self._timeout = timeout
        self._retry_interval = retry_interval
        self._clock = clock or RedisClock()
        self._probe_command: Command = ("EXISTS", probe_key)
        self._queued: list[_QueueItem] = []
        self._in_flight: list[_QueueItem] = []
        self._is_idle = True  # False: a batch is in flight, or is sent in the next loop iteration
        self._became_idle = asyncio.Event()  # for those that wait for it
        self._loop: asyncio.AbstractEventLoop
        self._probe_task: asyncio.Task[None] | None = None
        self._is_up = False  # asked for each command; the event is for those that wait
        self._down_since = time.time()
        self._up_since = 0.0
        self._reaches_replica = False
        self._came_up = asyncio.Event()
        self._unexpected_replies = RepeatedWarning(log)

    @property
    def up(self) -> bool:
        return self._is_up

    @property
    def down_since(self) -> float:
        """Since when it is down, in seconds since the epoch by the own clock; no meaning while it is up."""
        return self._down_since

    @property
    def seconds_up(self) -> float:
        """How long it has been up; no meaning while it is down."""
        return self._loop.time() - self._up_since

    @property
    def reaches_replica(self) -> bool:
        """Whether it is down since what it reaches is a read-only replica."""
        return not self._is_up and self._reaches_replica

    @property
    def counts_receivers(self) -> bool:
        """Whether the reply to PUBLISH counts all subscribers; see RedisBackend."""
        return self._backend.counts_receivers

    async def start(self) -> None:
        """Starts the probe and waits up to two seconds for Redis, so that the first request finds it up."""
        self._loop = asyncio.get_running_loop()
        self._mark_down(None)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._came_up.wait(), _CONNECT_TIMEOUT)

    def set_times(self, timeout: float, retry_interval: float) -> None:
        """They hold from the next batch and the next failure on."""
        self._timeout, self._retry_interval = timeout, retry_interval

    async def wait_until_up(self) -> None:
        await self._came_up.wait()

    async def aclose(self) -> None:
        """Sends what is queued, then closes the connections."""
        while not self._is_idle:
            self._became_idle.clear()
            await self._became_idle.wait()
            await asyncio.sleep(0)  # a task that has just got its replies may send one more command
        await cancel_and_wait(self._probe_task)
        self._set_up(False)  # before the backend closes: a command that comes now must not open a new connection
        await self._backend.aclose()

    def execute(self, *commands: Command | EncodedCommand, size: int = 0) -> "asyncio.Future[Replies]":
        """Sends commands of one key each and returns their replies. `size`: their bytes, for large ones.

        Raises RedisDownError; the future it returns may fail with it, too.
        """
        if not self._is_up:
            raise RedisDownError
        replies: asyncio.Future[Replies] = self._loop.create_future()
        self._enqueue((commands, size, replies))
        return replies

    def execute_eager(self, command: Command | EncodedCommand) -> PendingReplies:
        """As `execute`, for one command whose reply can be awaited without a task; see PendingReplies."""
        if not self._is_up:
            raise RedisDownError
        reply = PendingReplies(self._loop)
        self._enqueue(((command,), 0, reply))
        return reply

    def send(self, *commands: Command | EncodedCommand, size: int = 0, on_reply: "OnReply | None" = None) -> None:
        """As `execute`, for commands whose replies nobody awaits. Raises RedisDownError.

        `on_reply` is called with the replies as soon as they arrive, or with None if Redis goes down first. If it
        raises UnexpectedReplyError, it is called again, with None; so it decodes the replies before all else.
        """
        if not self._is_up:
            raise RedisDownError
        self._enqueue((commands, size, _NO_CALLBACK if on_reply is None else _ReplyCallback(on_reply)))

    def decode(self, decode: Callable[[Any], T], reply: Any) -> T:
        """What `decode` makes of a reply, which is no exception. Raises UnexpectedReplyError if it raises."""
        try:
            return decode_reply(decode, reply)
        except UnexpectedReplyError as error:
            self._unexpected_replies.log(
                "Redis' replies have an unexpected form; it counts as down for them: %s", error
            )
            raise error  # noqa: TRY201 - mypyc: not a bare raise

    def _enqueue(self, item: "_QueueItem") -> None:
        self._queued.append(item)
        if self._is_idle:
            self._is_idle = False
            self._loop.call_soon(self._send_batch)  # not at once: the other callbacks of this iteration join the batch

    # -- a batch ----------------------------------------------------------------------------------------------------

    def _set_idle(self) -> None:
        self._is_idle = True
        self._became_idle.set()

    def _take_batch(self) -> "tuple[list[_QueueItem], int]":
        size = count = 0
        for _, item_size, _ in self._queued:
            size += item_size
            count += 1
            if size >= _MAX_BATCH_BYTES:
                break
        batch, self._queued = self._queued[:count], self._queued[count:]
        return batch, size

    def _send_batch(self) -> None:
        self._in_flight, size = self._take_batch()
        commands = [command for item in self._in_flight for command in item[0]]
        try:
            reply_future = self._backend.execute(commands, self._timeout + size / _MIN_THROUGHPUT)
        except Exception:
            # The last line of defence: after a defect here, requests would wait for ever.
            log.exception("the Redis pipeline failed")
            self._fail_all()
        else:
            reply_future.add_done_callback(self._on_replies)

    def _on_replies(self, reply_future: ReplyFuture) -> None:
        try:
            replies = reply_future.result()
        except RedisBackendError as error:
            self._mark_down(error)
            self._fail_all()
            return
        except asyncio.CancelledError:  # the process ends
            self._fail_all()
            return
        except Exception:
            # As in `_send_batch`: a defect must not leave requests waiting for ever.
            log.exception("the Redis pipeline failed")
            self._fail_all()
            return
        completed, self._in_flight = self._in_flight, []
        if self._queued:
            self._send_batch()  # before the replies are handed out: Redis works while the callers process them
        else:
            self._set_idle()
        start = 0
        for commands, _, future in completed:
            if not future.done():  # done: the caller has cancelled it
                try:
                    future.set_result(replies[start : start + len(commands)])
                except Exception:
                    # What waits for these replies may run now. Its defect must not keep the others' from them.
                    log.exception("failed to process a reply from Redis")
            start += len(commands)

    def _fail_all(self) -> None:
        failed, self._in_flight, self._queued = self._in_flight + self._queued, [], []
        self._set_idle()
        for _, _, future in failed:
            if not future.done():
                try:
                    future.set_exception(RedisDownError())
                except Exception:
                    log.exception("failed to process a reply from Redis")  # as in `_on_replies`
                future.exception()  # marks it as retrieved, so that asyncio does not log it if nobody awaits it

    # -- down and up again ------------------------------------------------------------------------------------------

    def _mark_down(self, error: Exception | None) -> None:
        if self._probe_task is None:
            if error is not None:
                log.warning("Redis is down (%s); requests continue without it", error)
            self._reaches_replica = isinstance(error, ReadOnlyReplicaError)
            self._set_up(False)
            self._probe_task = self._loop.create_task(self._probe_until_up(was_up=error is not None))

    def _set_up(self, is_up: bool) -> None:
        if self._is_up and not is_up:
            self._down_since = time.time()
        if is_up and not self._is_up:
            self._up_since = self._loop.time()
        self._is_up = is_up
        if is_up:
            self._came_up.set()
        else:
            self._came_up.clear()

    async def _probe_until_up(self, *, was_up: bool) -> None:
        silent = not was_up  # at the start nothing is logged yet, so a first probe that succeeds logs nothing either
        while True:
            try:
                await self._probe_once()
                break
            except RedisBackendError as error:
                self._reaches_replica = isinstance(error, ReadOnlyReplicaError)
                if silent:
                    log.warning("Redis is down (%s); retrying every %g s", error, self._retry_interval)
                silent = False
            except Exception:
                # The last line of defence: neither a defect nor an option that redis-py rejects may end the probe.
                if silent:
                    log.exception("the probe of Redis failed")
                silent = False
            await asyncio.sleep(self._retry_interval)
        self._probe_task = None
        self._set_up(True)
        if not silent:
            log.info("Redis is up again")

    async def _probe_once(self) -> None:
        sent_at = self._clock.monotonic()
        reply, redis_time = await self._backend.execute(
            [self._probe_command, TIME_COMMAND], max(self._timeout, _CONNECT_TIMEOUT)
        )
        if isinstance(reply, Exception):  # it is loading its data, or requires a password
            raise RedisBackendError(str(reply))
        if type(reply) is not int:
            raise RedisBackendError("it does not answer as Redis does")
        self._clock.update(redis_time, sent_at)


OnReply = Callable[[Replies | None], object]


class _ReplyCallback:
    """Adapts a callback to the methods of a future that the pipeline uses."""

    def __init__(self, callback: OnReply) -> None:
        self._callback = callback

    def done(self) -> bool:
        return False

    def set_result(self, replies: Replies | None) -> None:
        try:
            self._callback(replies)
        except UnexpectedReplyError:
            self._callback(None)
        except Exception:
            # Somebody may wait for what the callback does: for that, its defect is as if there were no reply.
            log.exception("failed to process a reply from Redis")
            if replies is not None:
                self.set_result(None)

    def set_exception(self, _: Exception) -> None:
        self.set_result(None)

    def exception(self) -> None:
        pass


_NO_CALLBACK: Final = _ReplyCallback(lambda _: None)
_QueueItem = tuple[
    tuple[Command | EncodedCommand, ...], int, "asyncio.Future[Replies] | PendingReplies | _ReplyCallback"
]
