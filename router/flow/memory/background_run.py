"""The responses that this process generates in the background, and who follows them.

A follower, here or at another router, sends a message once a second. The first one begins a stream in Redis with the
events that it has not got yet (router.shared.inflight.stream_writer).
"""

import asyncio
from typing import Final

from router.core.cache.redis_keys import response_key
from router.core.endpoints.conversations.background_events import BackgroundEvents, EventLog, later_events
from router.errors import ApiError, unavailable
from router.net.tasks import cancel_and_wait
from router.shared.inflight.inflight_leases import InFlightLeases
from router.shared.inflight.stream_writer import Producer
from router.shared.responses.background_records import FOLLOWER_TIMEOUT, STOP

END: Final = b"end"
"""The outcome of a stream that has the last event."""

FULL: Final = b"full"
"""The outcome of a stream whose events are not kept any more; see EventLog."""

GONE: Final = b"gone"
"""The outcome of a stream that ends early: the follower has to look again."""

_CLOSE_TIMEOUT: Final = 5.0
_NO_PRODUCER: Final = Producer()


class _Follower:
    """`heard_at`: when its last message came. `after`: up to this number, it wants no events."""

    def __init__(self, heard_at: float, after: int) -> None:
        self.heard_at = heard_at
        self.after = after


class BackgroundRun:
    """One response.

    - `queued`: the object before there is any of it; `response`: that of now. `changed` is set when there is a new one,
      but not the last one.
    - `ready`: set once an engine is to generate it, or there is an answer; the result is an error that came before.
    - `has_begun`: set once its record is in Redis.
    - `stop`: ends it, with an error or because it has ended elsewhere (`is_cancelled`), until it `is_concluding`: from
      then on its end is stored.
    """

    def __init__(
        self, id_: str, tenant: str, parent: str, response: bytes, max_size: int, leases: InFlightLeases
    ) -> None:
        """`response`: the object before there is any of it. `max_size`: see EventLog."""
        self.id = id_
        self.tenant = tenant
        self.queued = self.response = response
        self.events = BackgroundEvents(id_, parent)
        self.log = EventLog(max_size)
        self.changed = asyncio.Event()
        self.has_begun = asyncio.Event()
        self.ready: asyncio.Future[ApiError | None] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None
        self.is_generating = False
        self.is_cancelled = self.is_concluding = False
        self.stop_error: ApiError | None = None
        self._leases = leases
        self._key = response_key(tenant, id_)
        self._followers: dict[str, _Follower] = {}  # by the id of the stream

    def on_generating(self) -> None:
        self.is_generating = True
        self.set_ready(None)

    def set_ready(self, error: ApiError | None) -> None:
        if not self.ready.done():
            self.ready.set_result(error)

    def stop(self, error: ApiError | None) -> None:
        """`error`: why it has failed; None: it has ended elsewhere."""
        if self.task is None or self.is_concluding or self.is_cancelled or self.stop_error is not None:
            return
        self.is_cancelled, self.stop_error = error is None, error
        self.task.cancel()

    def take(self, data: bytes) -> bytes:
        """The events in a part of the stream, which are to be published."""
        before = self.events.response
        events = self.events.feed(data)
        if self.events.response is not before and self.events.response is not None:
            self.response = self.events.response
            if not self.events.is_over:
                self.changed.set()
        self.log.append(events)
        return events

    # -- followers ----------------------------------------------------------------------------------------------------

    def publish(self, events: bytes) -> None:
        self._drop_silent_followers(asyncio.get_running_loop().time())
        for stream_id, follower in self._followers.items():
            if later := later_events(events, follower.after):
                follower.after = -1  # all others have larger numbers
                self._leases.publish(self._key, stream_id, _NO_PRODUCER, later)

    def end_streams(self, outcome: bytes) -> None:
        for stream_id in list(self._followers):
            self._finish(stream_id, outcome)

    def on_follower(self, stream_id: str, after: int) -> None:
        # Each has a stream of its own: that of another one begins elsewhere, and may have been trimmed.
        now = asyncio.get_running_loop().time()
        if stream_id in self._followers:
            self._followers[stream_id].heard_at = now
            return
        self._drop_silent_followers(now)
        self._followers[stream_id] = _Follower(now, after)
        # Also without events: the first record shows the follower that this process is alive.
        self._leases.publish(self._key, stream_id, _NO_PRODUCER, self.log.after(after))
        if self.log.is_full:
            self._finish(stream_id, FULL)

    def _drop_silent_followers(self, now: float) -> None:
        for stream_id, follower in list(self._followers.items()):
            if now - follower.heard_at > FOLLOWER_TIMEOUT:
                self._finish(stream_id, GONE)

    def _finish(self, stream_id: str, outcome: bytes) -> None:
        del self._followers[stream_id]
        self._leases.finish(self._key, stream_id, _NO_PRODUCER, outcome)


class BackgroundRuns:
    """All of this process."""

    def __init__(self) -> None:
        self._runs: dict[str, BackgroundRun] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def count(self, tenant: str) -> int:
        return sum(run.tenant == tenant for run in self._runs.values())

    def add(self, run: BackgroundRun) -> None:
        self._runs[run.id] = run

    def remove(self, run: BackgroundRun) -> None:
        del self._runs[run.id]

    def on_message(self, text: str) -> bool:
        """A message on this process' channel. False: it is about none of these."""
        id_, _, rest = text.partition(".")
        run = self._runs.get(id_)
        if run is None:
            return False
        stream_id, _, after = rest.partition(".")
        if rest == STOP:
            run.stop(None)
        elif run.task is not None and after.lstrip("-").isdecimal():
            run.on_follower(stream_id, int(after))
        return True

    async def aclose(self) -> None:
        """The process ends: those that are running end as failed, which is stored."""
        tasks = [run.task for run in self._runs.values() if run.task is not None]
        for run in list(self._runs.values()):
            run.stop(unavailable("The router that generated the response was stopped.", code="stopping"))
        if tasks:
            _, slow = await asyncio.wait(tasks, timeout=_CLOSE_TIMEOUT)  # Redis may not answer
            await cancel_and_wait(*slow)
