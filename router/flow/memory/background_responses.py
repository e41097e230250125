"""Responses with `background: true`: the client is answered at once, and the generation goes on without it.

Theory of operation. The request is passed on as one for a stream, whose client never leaves. So it is looked up,
shared, routed and retried as any other, and it has a line of its own in the log, whose request id is the id of the
response. The POST waits for the lookup alone: a hit is complete at once, and what is refused is refused. From then on
the response is in Redis (background_records), where every router finds it.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any, NamedTuple

from router.core.cache.cache_control import CacheControl
from router.core.endpoints.conversations.background_events import (
    EventLog,
    ended_event,
    ended_events,
    events_after,
    failed_event,
)
from router.core.endpoints.conversations.background_response import (
    ended_response,
    foreground_body,
    queued_response,
    wants_stream,
)
from router.core.endpoints.conversations.final_response import FinalResponse, find_final_response
from router.core.endpoints.responses import RESPONSES
from router.errors import RATE_LIMIT, UPSTREAM, ApiError, bad_request, internal_error, unavailable
from router.flow.caller import NO_HEARTBEAT, Caller
from router.flow.exchange import Exchange
from router.flow.lookup import FullResponse
from router.flow.memory.background_run import END, GONE, BackgroundRun, BackgroundRuns
from router.flow.memory.background_stream import BackgroundStreams
from router.flow.request_handler import RequestHandler, StreamedResponse
from router.flow.sharing.generation_rules import GenerationRules
from router.flow.trace.request_trace import UNTRACED
from router.net.redis.pipeline import RedisDownError
from router.net.tasks import cancel_and_wait
from router.shared.inflight.inflight_leases import InFlightLeases
from router.shared.responses.background_records import (
    LEASE,
    RENEW_INTERVAL,
    RETRY_DELAY,
    BackgroundRecords,
    StoredResponse,
)
from router.shared.responses.kept_response import ResponseNotFoundError

log = logging.getLogger("roundhouse.responses")

Keep = Callable[[FinalResponse, bytes], Awaitable[str]]
"""Stores the response and its events, as ConversationGateway does; the result is a word for the metric."""


class BackgroundLimits(NamedTuple):
    """How many a process generates at once, and how many of a tenant; for how many seconds at most.

    `max_size`: bytes of a response, and of its events; see EventLog.
    """

    total: int
    per_tenant: int
    seconds: float
    max_size: int


class _NoClient:
    """In place of the client, who may be gone."""

    def __init__(self, on_generating: Callable[[], None]) -> None:
        self._on_generating = on_generating

    def cancel_on_disconnect(self) -> None:
        self._on_generating()

    def start_response(self, status: int, header_bytes: bytes, content_length: int | None) -> None:
        pass

    def can_break_off(self) -> bool:
        return False

    def try_send(self, data: bytes) -> bool:
        return True


class BackgroundResponses:
    """- The client has the id of a response only once it is in Redis.
    - A response is completed, in Redis, before anyone gets the event that says so.
    - It ends, whatever happens: with what its engine has said, or as failed or cancelled.
    - It counts for its tenant's limits until then.
    """

    def __init__(
        self, gateway: RequestHandler, records: BackgroundRecords, runs: BackgroundRuns, leases: InFlightLeases,
        rules: GenerationRules, streams: BackgroundStreams, limits: BackgroundLimits, *,
        record_request: Callable[[Exchange, float], None], clock: Callable[[], float],
    ) -> None:  # fmt: skip
        """`rules.running` counts them: they use the configuration. `clock`: see CacheLookup."""
        self._gateway = gateway
        self._records = records
        self._runs = runs
        self._leases = leases
        self._rules = rules
        self._streams = streams
        self._limits = limits
        self._record_request = record_request
        self._clock = clock

    async def start(
        self, exchange: Exchange, control: CacheControl, asked: bytes, body: bytes, caller: Caller, parent: str,
        keep: Keep,
    ) -> FullResponse | StreamedResponse:  # fmt: skip
        """`asked`: the body of the client; `body`: the same with all that was said before. Raises ApiError.

        `parent`: the id of the response before it; empty in a first turn.
        """
        self._check_limits(exchange.tenant)
        id_ = f"resp_{secrets.token_hex(16)}"
        queued = queued_response(asked, id_, self._clock())
        run = BackgroundRun(id_, exchange.tenant, parent, queued, self._limits.max_size, self._leases)
        own, own_caller = _own_exchange(exchange, id_), _own_caller(caller, run)
        self._runs.add(run)
        self._rules.running += 1
        task = asyncio.get_running_loop().create_task(
            self._run(run, own, control, foreground_body(body), own_caller, keep)
        )
        task.add_done_callback(partial(self._on_done, run, own_caller))
        run.task = task
        try:
            await self._begin(run)
        except BaseException as failure:
            run.stop(None)
            exchange.trace = own.trace
            if isinstance(failure, RedisDownError):
                raise unavailable("The response cannot be kept: Redis does not answer.", code="redis_down") from None
            raise
        finally:
            exchange.model = own.model
        # From here on, it counts for the limits until it ends.
        own_caller.reservation, caller.reservation = caller.reservation, None
        if run.is_generating:
            exchange.endpoint = RESPONSES.at("POST /v1/responses background")
        else:
            await asyncio.wait((task,))
            _show_hit(exchange, own)
        return self._answer(run, exchange, caller, is_stream=wants_stream(asked))

    async def _begin(self, run: BackgroundRun) -> None:
        refusal = await run.ready
        if refusal is not None:
            raise refusal
        await self._records.begin(run.tenant, run.id, run.queued, self._leases.process_id)
        run.has_begun.set()
        run.changed.set()  # the record gets its full time to live

    def _check_limits(self, tenant: str) -> None:
        # Of this process: a count in Redis would cost each of them two more commands, and a lease.
        limits = self._limits
        if not (limits.total and limits.per_tenant):
            raise bad_request(
                "This router generates no response in the background.", param="background", code="background_off"
            )
        if len(self._runs) >= limits.total or self._runs.count(tenant) >= limits.per_tenant:
            raise ApiError(
                429, "Too many responses are generated in the background.", kind=RATE_LIMIT,
                code="background_limit", param="background", retry_after=5,
            )  # fmt: skip

    def _answer(
        self, run: BackgroundRun, exchange: Exchange, caller: Caller, *, is_stream: bool
    ) -> FullResponse | StreamedResponse:
        exchange.stream = is_stream
        if not is_stream:
            # Not what there is by now: that it is complete may be said only once it is stored.
            return FullResponse(run.queued if run.is_generating else run.response, stream=False)
        if not run.is_generating:
            events = b"".join(events_after(run.log.compressed(), -1))
            return FullResponse(events or ended_events(run.response, -1), stream=True)
        found = StoredResponse(run.response, self._leases.process_id, is_background=True, events=b"")
        return self._streams.attach(exchange, caller, run.id, found, -1)

    # -- a generation -------------------------------------------------------------------------------------------------

    async def _run(
        self, run: BackgroundRun, own: Exchange, control: CacheControl, body: bytes, caller: Caller, keep: Keep
    ) -> None:
        lease = asyncio.get_running_loop().create_task(self._hold_lease(run))
        try:
            last = await self._last_events(run, own, control, body, caller)
            run.set_ready(None)
            await run.has_begun.wait()
            run.is_concluding = True
        finally:
            caller.heartbeat.stop()
            caller.heartbeat = NO_HEARTBEAT  # it refers to the caller
            await cancel_and_wait(lease)
        if not run.is_cancelled and await self._is_running(run):
            is_stored = await self._store(run, keep)
        else:
            is_stored = False
            await self._keep_events(run)
        if is_stored:
            run.publish(last)
            run.end_streams(END)
        else:  # who follows it looks how it has ended
            run.end_streams(GONE)
        if run.is_generating:
            ended_at = time.perf_counter()
            self._record_request(own, ended_at)
            own.trace.finish(own, ended_at)

    async def _last_events(
        self, run: BackgroundRun, own: Exchange, control: CacheControl, body: bytes, caller: Caller
    ) -> bytes:
        # What is refused before an engine is asked becomes the result of `ready`, and a cancellation: then there is no
        # response, and its client gets the error.
        try:
            async with asyncio.timeout(self._limits.seconds):
                events = await self._generate(run, own, control, body, caller)
            return events if run.events.is_over else events + _fail(run, _no_end())
        except ApiError as refused:
            own.status, own.outcome, error = refused.status, "refused", refused.with_traceback(None)
        except TimeoutError:
            own.outcome, error = "failed", _too_long(self._limits.seconds)
        except asyncio.CancelledError:
            own.outcome = "left" if run.is_cancelled else "failed"
            # Without a record there is nothing to end; a cancellation that nobody asked for ends the process.
            if run.stop_error is None and (not run.is_cancelled or not run.has_begun.is_set()):
                raise
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            if run.stop_error is None:
                return b""
            error = run.stop_error
        except Exception:
            # The last line of defence: without an end, clients would wait for it.
            log.exception("a response in the background has failed")
            own.status, own.outcome, error = 500, "failed", internal_error()
        own.error_reason, own.status = error.reason, own.status or error.status
        if not run.ready.done():
            run.set_ready(error)
            raise asyncio.CancelledError
        return _fail(run, error)

    async def _generate(
        self, run: BackgroundRun, own: Exchange, control: CacheControl, body: bytes, caller: Caller
    ) -> bytes:
        # The last events are not published, but returned: until the response is stored, nobody may get them.
        response = await self._gateway.handle(own, control, body, caller)
        own.status = 200
        if isinstance(response, FullResponse):
            return run.take(response.body)
        try:
            data = await response.read()
            while not response.finished:
                run.publish(run.take(data))
                data = await response.read()
            return run.take(data)
        finally:
            response.close()

    async def _hold_lease(self, run: BackgroundRun) -> None:
        await run.has_begun.wait()
        is_new = False
        delay = RENEW_INTERVAL
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await run.changed.wait()
            is_new = is_new or run.changed.is_set()
            run.changed.clear()
            try:
                # The message that ends it may be lost, and DELETE, a purge and an eviction send none.
                if not await self._records.renew(run.tenant, run.id, run.response if is_new else b""):
                    run.stop(None)
                    return
                is_new, delay = False, RENEW_INTERVAL
            except RedisDownError:
                delay = 0.0
                await asyncio.sleep(RETRY_DELAY)

    async def _is_running(self, run: BackgroundRun) -> bool:
        """Whether it has not been ended elsewhere. Waits for Redis, as long as the lease may hold."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + LEASE
        while loop.time() < give_up_at:
            try:
                return await self._records.renew(run.tenant, run.id)
            except RedisDownError:
                await asyncio.sleep(RETRY_DELAY)
        return True

    async def _store(self, run: BackgroundRun, keep: Keep) -> bool:
        """Whether the response is stored as its last event says. Waits for Redis, as `_is_running`."""
        final, body, events = find_final_response(run.response, is_stream=False), run.response, run.log.compressed()
        kept_events, is_too_large = events, len(body) > self._limits.max_size
        if is_too_large:
            body, events = ended_response(run.queued, "failed", _too_large()), b""
            run.response, run.log = body, EventLog(self._limits.max_size)  # also for the client of a hit
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + LEASE
        while True:
            try:
                if final is not None:
                    result = await keep(final, kept_events)
                    if result == "stored":
                        return True
                    final = final if result == "failed" else None
                # It cannot be continued, but it can be read. One that counts as purged may still be there: it began
                # after the purge, or the log of purges was lost.
                return await self._records.end(run.tenant, run.id, body, events) and not is_too_large
            except RedisDownError:
                if loop.time() >= give_up_at:  # who asks for it finds that its lease has run out
                    log.warning("a response in the background cannot be stored: Redis takes no writes")
                    return False
            await asyncio.sleep(RETRY_DELAY)
            if not await self._is_running(run):
                return False

    async def _keep_events(self, run: BackgroundRun) -> None:
        """Of a response that has ended elsewhere, for who asks for its stream."""
        if run.events.is_over or not run.events.count:
            return
        with contextlib.suppress(ResponseNotFoundError, RedisDownError):
            found = await self._records.find(run.tenant, run.id)
            if not found.is_running:
                run.log.append(ended_event(found.body, run.events.count))
                await self._records.add_events(run.tenant, run.id, run.log.compressed())

    def _on_done(self, run: BackgroundRun, caller: Caller, _: "asyncio.Task[None]") -> None:
        run.set_ready(None)
        run.end_streams(GONE)  # if the task was cancelled
        self._runs.remove(run)
        self._rules.running -= 1
        caller.body_allocation.release()
        if caller.reservation is not None:
            caller.reservation.release()


def _own_exchange(exchange: Exchange, id_: str) -> Exchange:
    own = Exchange(
        endpoint=RESPONSES, request_id=id_, started_at=time.perf_counter(), traceparent=exchange.traceparent,
        tracestate=exchange.tracestate, trace_id=exchange.trace_id,
    )  # fmt: skip
    own.tenant, own.key_id = exchange.tenant, exchange.key_id
    # The span of the request ends with the generation.
    own.trace, exchange.trace = exchange.trace, UNTRACED
    return own


def _own_caller(caller: Caller, run: BackgroundRun) -> Caller:
    caller.body_allocation.retain()
    own = Caller(_NoClient(run.on_generating), _send_nothing, caller.body_allocation)
    own.session, own.max_ttft, own.prefer, own.request_id = caller.session, caller.max_ttft, caller.prefer, run.id
    own.at_engine = caller.at_engine
    return own


async def _send_nothing(_: MutableMapping[str, Any]) -> None:
    pass


def _show_hit(exchange: Exchange, own: Exchange) -> None:
    # A response from the cache has no line of its own in the log: its POST has what is known of it.
    exchange.trace, exchange.task, exchange.engine = own.trace, own.task, own.engine
    exchange.cache_status, exchange.key, exchange.from_local_cache = own.cache_status, own.key, own.from_local_cache
    exchange.age, exchange.ttl, exchange.lookup_seconds = own.age, own.ttl, own.lookup_seconds
    exchange.prompt_tokens, exchange.completion_tokens = own.prompt_tokens, own.completion_tokens
    exchange.generation_ms = own.generation_ms


def _fail(run: BackgroundRun, error: ApiError) -> bytes:
    return run.take(failed_event(run.response, error))


def _no_end() -> ApiError:
    return ApiError(502, "The engine's response has no end.", kind=UPSTREAM, code="engine_failed")


def _too_long(seconds: float) -> ApiError:
    return ApiError(
        504, f"The response was not complete after {seconds:g} seconds.", kind=UPSTREAM, code="background_timeout"
    )


def _too_large() -> ApiError:
    return ApiError(502, "The response is larger than responses.max_size.", kind=UPSTREAM, code="response_too_large")
