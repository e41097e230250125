"""The events of a response that is generated in the background, or was, for one client; at any router."""

import asyncio
import contextlib
import zlib
from collections.abc import AsyncGenerator, Generator
from typing import Final
from urllib.parse import parse_qs

from router.core.cache.cache_control import CacheControl
from router.core.endpoints.conversations.background_events import (
    ended_events,
    error_event,
    events_after,
    failed_event,
)
from router.core.endpoints.conversations.ids import is_storable_id, shown_id
from router.core.endpoints.recording.sse import split_events
from router.errors import ApiError, bad_request, unavailable
from router.flow.caller import Caller
from router.flow.exchange import Exchange
from router.flow.heartbeat import Heartbeats
from router.flow.lookup import FullResponse
from router.flow.memory.background_run import END, FULL
from router.flow.request_handler import StreamedResponse
from router.flow.sharing.inflight import TrySend
from router.net.redis.pipeline import RedisDownError
from router.shared.inflight.inflight_leases import InFlightLeases
from router.shared.inflight.stream_reader import LeaderLostError
from router.shared.responses.background_records import LEASE, BackgroundRecords, StoredResponse
from router.shared.responses.kept_response import ResponseNotFoundError

_MAX_DIGITS: Final = 9
_RETRY_DELAY: Final = 0.5  # seconds until a process is asked again that was not reached


class BackgroundStreams:
    """`GET /v1/responses/{id}?stream=true`, with `starting_after`: the number of the last event that the client has."""

    def __init__(self, records: BackgroundRecords, leases: InFlightLeases, heartbeats: Heartbeats) -> None:
        self._records = records
        self._leases = leases
        self._heartbeats = heartbeats

    async def handle(
        self, exchange: Exchange, control: CacheControl, body: bytes, caller: Caller
    ) -> FullResponse | StreamedResponse:
        id_, after = caller.scope["path_params"]["id"], _starting_after(caller.scope["query_string"])
        found = await find_response(self._records, exchange.tenant, id_)
        if not found.is_background:
            raise bad_request("Only a response that was made with `background` can be streamed.", param="stream")
        exchange.stream = True
        if found.is_running:
            return self.attach(exchange, caller, id_, found, after)
        parts: list[bytes] = []
        for part in stored_events(found, after):
            caller.body_allocation.allocate(len(part))
            parts.append(part)
            await asyncio.sleep(0)  # other requests are served between them
        return FullResponse(b"".join(parts), stream=True)

    def attach(
        self, exchange: Exchange, caller: Caller, id_: str, found: StoredResponse, after: int
    ) -> StreamedResponse:
        """`found`: the response, which is running. `after`: the number of the last event that the client has, or -1."""
        caller.connection.cancel_on_disconnect()
        caller.heartbeat = self._heartbeats.start(exchange, caller)
        return BackgroundStream(self._records, self._leases, exchange, id_, found, after)


async def find_response(records: BackgroundRecords, tenant: str, id_: str) -> StoredResponse:
    if not is_storable_id(id_):
        raise response_not_found(id_)
    try:
        return await records.find(tenant, id_, with_events=True)
    except ResponseNotFoundError:
        raise response_not_found(id_) from None
    except RedisDownError:
        raise responses_unavailable() from None


def response_not_found(id_: str) -> ApiError:
    return ApiError(404, f"Response with id '{shown_id(id_)}' not found.", param="id", code="response_not_found")


def responses_unavailable() -> ApiError:
    return unavailable("The kept responses cannot be read: Redis does not answer.", code="redis_down")


def _starting_after(query: bytes) -> int:
    values = parse_qs(query.decode("latin-1")).get("starting_after")
    if values is None:
        return -1
    if not (values[-1].isascii() and values[-1].isdecimal() and len(values[-1]) <= _MAX_DIGITS):
        raise bad_request("`starting_after` must be the number of an event.", param="starting_after")
    return int(values[-1])


class BackgroundStream:
    """See StreamedResponse.

    - Each event with a number above `after` comes once, in its order, and the last one after the response is stored.
    - It goes on while the process that generates the response, or Redis, is not reached, up to a lease.
    """

    def __init__(
        self, records: BackgroundRecords, leases: InFlightLeases, exchange: Exchange, id_: str, found: StoredResponse,
        after: int,
    ) -> None:  # fmt: skip
        """`found`: the response, which is running."""
        self.finished = False
        self.is_broken_off = False
        self._records = records
        self._leases = leases
        self._exchange = exchange
        self._id = id_
        self._found = found
        self._last = after
        self._give_up_at = 0.0  # 0: Redis answers
        self._parts = self._follow()

    async def read(self, try_send: TrySend | None = None) -> bytes:
        if self.finished:
            return b""
        try:
            return await anext(self._parts)
        except StopAsyncIteration:
            self.finished = True
            return b""

    def position(self) -> int:
        return self._last

    def close(self) -> None:
        self.finished = True

    async def _follow(self) -> AsyncGenerator[bytes, None]:
        tenant = self._exchange.tenant
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with contextlib.aclosing(self._live_events()) as live:
                    async for events in live:
                        yield events
                return
            except (LeaderLostError, RedisDownError):
                # It has ended, or is dead, or is paused, or did not get the message: its record says which.
                self._give_up_at = self._give_up_at or loop.time() + LEASE + 1
            try:
                self._found = await self._records.find(tenant, self._id, with_events=True)
                if not self._found.is_running:
                    for part in stored_events(self._found, self._last):
                        if part:
                            yield part
                        await asyncio.sleep(0)  # other requests are served between them
                    return
            except ResponseNotFoundError:
                error = response_not_found(self._id)
                self._note(error)
                yield failed_event(self._found.body, error, self._last + 1)
                return
            except RedisDownError:
                if loop.time() > self._give_up_at:
                    # It may complete: its client has to ask again.
                    self._note(responses_unavailable())
                    self.is_broken_off = True
                    return
            else:
                self._give_up_at = 0.0
            await asyncio.sleep(_RETRY_DELAY)

    async def _live_events(self) -> AsyncGenerator[bytes, None]:
        """Returns after the last event. Raises LeaderLostError and RedisDownError."""
        source = self._records.source(self._exchange.tenant, self._id, self._found.runner, self._last)
        async with contextlib.aclosing(self._leases.follow_source(source)) as records:
            async for record in records:
                self._give_up_at = 0.0
                if record.frames:
                    self._last += len(split_events(record.frames))
                    yield record.frames
                if record.outcome == FULL:
                    self._note(_not_kept())
                    yield error_event(_not_kept(), self._last)
                elif record.outcome not in (None, END):
                    raise LeaderLostError

    def _note(self, error: ApiError) -> None:
        self._exchange.outcome, self._exchange.error_reason = "failed", error.reason


def stored_events(found: StoredResponse, after: int) -> Generator[bytes, None, None]:
    """Those of a response that has ended, in parts. Of one whose events are not kept, those that its object makes."""
    if found.events:
        with contextlib.suppress(zlib.error):
            yield from events_after(found.events, after)
            return
    yield ended_events(found.body, after)


def _not_kept() -> ApiError:
    return bad_request(
        "The events of this response are too large to be kept; retrieve it without `stream`.", param="stream"
    )
