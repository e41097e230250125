"""Server-sent events for the dashboard: status, history, latest requests and batches, as they change.

Theory of operation. One task reads Redis for all viewers of a process, and it runs only while there is one. Each viewer
has room for one event of each kind: a newer one replaces it. So a viewer that reads slowly gets fewer events, and one
that does not read costs no memory until the server closes its connection (`router.send`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from router.errors import unavailable
from router.net.redis.errors import RedisBackendError
from router.net.tasks import cancel_and_wait

log = logging.getLogger("roundhouse.admin")

MAX_VIEWERS: Final = 50
"""Viewers of one process."""

KEEP_ALIVE_INTERVAL: Final = 15.0
"""Seconds without an event after which a comment is sent, so that no proxy closes the connection."""

_TICK: Final = 1.0  # seconds
_FIRST_LINE: Final = b"retry: 2000\n\n"  # milliseconds after which a browser connects again
_KEEP_ALIVE: Final = b": keep-alive\n\n"

ReadDocument = Callable[[], Awaitable[Any]]


class Viewer:
    """The events of one viewer that it has not been sent."""

    def __init__(self) -> None:
        self._events: dict[str, bytes] = {}
        self._changed = asyncio.Event()
        self._closed = False

    def offer(self, kind: str, event: bytes) -> None:
        self._events[kind] = event
        self._changed.set()

    def close(self) -> None:
        self._closed = True
        self._changed.set()

    async def take(self) -> bytes | None:
        """What is to be sent next; None once the viewer is closed."""
        try:
            async with asyncio.timeout(KEEP_ALIVE_INTERVAL):
                await self._changed.wait()
        except TimeoutError:
            return _KEEP_ALIVE
        self._changed.clear()
        if self._closed:
            return None
        events, self._events = self._events, {}
        return b"".join(events.values())


class EventHub:
    """The viewers of a process.

    - A new viewer gets an event of each kind at once.
    - An event that is as the last one of its kind is not sent again.
    - `close` ends all viewers; their browsers connect again.
    """

    def __init__(
        self, status: ReadDocument, history: ReadDocument, requests: ReadDocument, batches: ReadDocument
    ) -> None:
        # With the number of ticks between two events of the kind. Routers report the lines of batches every 5 seconds.
        self._kinds = {
            "status": (status, 2), "history": (history, 10), "requests": (requests, 1), "batches": (batches, 5),
        }  # fmt: skip
        self._latest: dict[str, bytes] = {}
        self._viewers: set[Viewer] = set()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def subscribe(self) -> Viewer:
        """Raises ApiError (503) if there are too many viewers, or the hub is closed."""
        if self._closed or len(self._viewers) >= MAX_VIEWERS:
            message = f"This process has {MAX_VIEWERS} viewers, or is stopping."
            raise unavailable(message, retry_after=5, code="too_many_viewers")
        viewer = Viewer()
        viewer.offer("retry", _FIRST_LINE)
        for kind, event in self._latest.items():
            viewer.offer(kind, event)
        self._viewers.add(viewer)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        return viewer

    def unsubscribe(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)

    def close(self) -> None:
        self._closed = True
        for viewer in self._viewers:
            viewer.close()

    async def aclose(self) -> None:
        self.close()
        await cancel_and_wait(self._task)

    async def _run(self) -> None:
        ticks = 0
        while self._viewers:
            for kind, (read, interval) in self._kinds.items():
                if ticks % interval == 0:
                    await self._send(kind, read)
            ticks += 1
            await asyncio.sleep(_TICK)
        # The next viewer starts with new events.
        self._latest.clear()
        self._task = None

    async def _send(self, kind: str, read: ReadDocument) -> None:
        try:
            document = await read()
        except RedisBackendError:
            return  # the status says that Redis is down
        except Exception:
            # The last line of defence: a defect in one document must not end the events.
            log.exception("cannot read the %s for the dashboard", kind)
            return
        event = b"event: %b\ndata: %b\n\n" % (kind.encode("ascii"), msgspec.json.encode(document))
        if event != self._latest.get(kind):
            self._latest[kind] = event
            for viewer in self._viewers:
                viewer.offer(kind, event)
