"""Reads KV events over ZMQ, as vLLM publishes them. Needs pyzmq, so it is imported only if it is used.

- A SUB socket: each batch is the three frames topic, number (8 bytes, big endian) and payload.
- A DEALER socket for each replay: the request is an empty frame and the first number that is missing. The answers are
  an empty frame and the frames of a batch each; the last one has the number -1.
- One side binds, the other connects. vLLM binds an endpoint with `*` or `::`, and one of ipc; the router binds one with
  `*`. vLLM always binds the endpoint of replays.

An engine that is not there, or goes away, is waited for by ZMQ itself.
"""

import asyncio
import logging
import time
from collections import deque
from typing import Final

import zmq
import zmq.asyncio

from router.core.routing.prefix_cache.kv_event_batches import KvEventBatches
from router.settings.replicas import is_bound_here
from router.upstream.kv_feeds import KvFeed

log = logging.getLogger("roundhouse.engines")

MAX_MESSAGE: Final = 16 << 20
"""Bytes of a message; ZMQ closes the connection of an engine that sends a longer one, and connects again."""

MAX_QUEUED: Final = 10_000
"""Batches that wait to be read. Further ones are dropped, which is a gap."""

REPLAY_TIMEOUT: Final = 5.0
"""Seconds between two answers of a replay, after which it has failed."""

QUIET_INTERVAL: Final = 10.0
"""Seconds without a batch until it is checked whether there should have been one."""

MANY_PROMPTS: Final = 3
"""Prompts that an engine has computed, after which it should have published something."""

MANY_RESTARTS: Final = 5
RESTARTS_PERIOD: Final = 60.0
"""Seconds in which an engine does not restart MANY_RESTARTS times, but two engines at one endpoint look as if."""

_END: Final = (-1).to_bytes(8, "big", signed=True)
_NUMBER_BYTES: Final = 8
_RETRY: Final = 1.0  # seconds until an endpoint is bound again that another process has


async def subscribe(feed: KvFeed, batches: KvEventBatches) -> None:
    """Reads until it is cancelled."""
    context = zmq.asyncio.Context()
    problem = ""
    try:
        while True:
            try:
                await _Subscription(context, feed, batches).run()
            except zmq.ZMQError as error:
                if problem != str(error):
                    problem = str(error)
                    log.warning("engine %s: KV events cannot be read at %s: %s", feed.name, feed.endpoint, problem)
            await asyncio.sleep(_RETRY)
    finally:
        context.destroy(linger=0)


class _Subscription:
    def __init__(self, context: zmq.asyncio.Context, feed: KvFeed, batches: KvEventBatches) -> None:
        self._context = context
        self._feed = feed
        self._batches = batches
        self._report = _Report(feed, batches)

    async def run(self) -> None:
        with self._open(zmq.SUB, MAX_QUEUED) as socket:
            socket.set(zmq.SUBSCRIBE, b"")
            open_endpoint = socket.bind if is_bound_here(self._feed.endpoint) else socket.connect
            open_endpoint(self._feed.endpoint)
            while True:
                if await socket.poll(int(1000 * QUIET_INTERVAL)):
                    await self._take(await socket.recv_multipart())
                    await asyncio.sleep(0)  # requests come first: a message that is there is read without a wait
                self._report.update()

    def _open(self, kind: int, max_queued: int) -> "zmq.asyncio.Socket":
        socket = self._context.socket(kind)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.RCVHWM, max_queued)
        socket.set(zmq.MAXMSGSIZE, MAX_MESSAGE)
        socket.set(zmq.IPV6, 1)
        return socket

    async def _take(self, frames: list[bytes]) -> None:
        if len(frames) != 3 or len(frames[1]) != _NUMBER_BYTES:
            self._batches.unreadable += 1
            return
        number, payload = int.from_bytes(frames[1], "big"), frames[2]
        missing = self._batches.on_published(number, payload)
        if missing is not None:
            if self._feed.replay_endpoint is not None:
                await self._replay(self._feed.replay_endpoint, missing)
            self._batches.on_replay_end(number, payload)

    async def _replay(self, endpoint: str, missing: int) -> None:
        # No limit of messages: vLLM drops what a subscriber's queue has no room for. It keeps `buffer_steps` at most.
        with self._open(zmq.DEALER, 0) as socket:
            socket.connect(endpoint)
            await socket.send_multipart((b"", missing.to_bytes(_NUMBER_BYTES, "big")))
            while await socket.poll(int(1000 * REPLAY_TIMEOUT)):
                frames = await socket.recv_multipart()
                if len(frames) != 4 or len(frames[2]) != _NUMBER_BYTES or frames[2] == _END:
                    return
                self._batches.on_replayed(int.from_bytes(frames[2], "big"), frames[3])
                await asyncio.sleep(0)
        log.debug("engine %s: no replay of KV events from %s", self._feed.name, endpoint)


class _Report:
    """Logs what happens to the events of one engine, each thing once."""

    def __init__(self, feed: KvFeed, batches: KvEventBatches) -> None:
        self._feed = feed
        self._batches = batches
        self._restarts = batches.restarts
        self._restarted_at: deque[float] = deque(maxlen=MANY_RESTARTS)
        self._has_logged: set[str] = set()

    def update(self) -> None:
        batches, feed = self._batches, self._feed
        if batches.received:
            self._log_once(logging.INFO, "engine %s: reading its KV events at %s", feed.name, feed.endpoint)
        elif batches.blocks.waiting >= MANY_PROMPTS:
            self._log_once(
                logging.WARNING,
                "engine %s: no KV events at %s, although it has computed prompts: exactly one side must bind "
                "(a * in its endpoint), the other connects; see docs/routing.md",
                feed.name, feed.endpoint,
            )  # fmt: skip
        if batches.unreadable:
            self._log_once(logging.WARNING, "engine %s: some KV events cannot be read", feed.name)
        if batches.lost:
            remedy = "set kv_events_replay" if feed.replay_endpoint is None else "it keeps buffer_steps batches"
            self._log_once(logging.WARNING, "engine %s: KV events were lost (%s)", feed.name, remedy)
        if batches.restarts > self._restarts:
            self._restarts = batches.restarts
            self._on_restart(time.monotonic())

    def _on_restart(self, now: float) -> None:
        self._restarted_at.append(now)
        if len(self._restarted_at) == MANY_RESTARTS and now - self._restarted_at[0] < RESTARTS_PERIOD:
            self._log_once(
                logging.WARNING,
                "engine %s: its KV events begin anew again and again: only one engine may publish at %s",
                self._feed.name, self._feed.endpoint,
            )  # fmt: skip
        else:
            log.info("engine %s: its KV events begin anew, so its prefix cache is empty", self._feed.name)

    def _log_once(self, level: int, text: str, *values: object) -> None:
        if text not in self._has_logged:
            self._has_logged.add(text)
            log.log(level, text, *values)
