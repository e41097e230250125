"""The requests of batches: each is passed on as a client's, for a client that never leaves."""

import logging
import time
from collections.abc import Callable, Mapping, MutableMapping
from math import inf
from typing import Any, Final, NamedTuple

import msgspec

from router.core.cache.cache_control import CacheControl
from router.core.endpoints.endpoint import Endpoint
from router.core.quota.priority import LINE_PRIORITY
from router.core.types import BypassReason, CacheStatus
from router.errors import ApiError, internal_error
from router.flow.batches.begun_lines import BegunLine
from router.flow.body_budget import BodyAllocation
from router.flow.caller import NO_HEARTBEAT, Caller
from router.flow.exchange import Exchange, new_request_id
from router.flow.lookup import FullResponse
from router.flow.request_handler import RequestHandler
from router.shared.quota.rate_limits import RequestLimits
from router.upstream.engine import Engine

log = logging.getLogger("roundhouse.batches")

KEY_ID: Final = "batch"
"""In place of the id of an API key, so that usage shows batches apart."""

_CACHED: Final = (CacheStatus.HIT, CacheStatus.STALE)


class _NoClient:
    """In place of the client."""

    def cancel_on_disconnect(self) -> None:
        pass

    def start_response(self, status: int, header_bytes: bytes, content_length: int | None) -> None:
        pass

    def can_break_off(self) -> bool:
        return False

    def try_send(self, data: bytes) -> bool:
        return True


_NO_CLIENT: Final = _NoClient()


class LineAnswer(NamedTuple):
    """`cache`: X-Cache; empty for what was refused before."""

    request_id: str
    cache: str
    answer: FullResponse | ApiError


class LineRequests:
    """- Each request has the lowest priority, counts for its tenant's limits, and has a line of its own in the log.
    - A request that is only looked up, and not found, leaves no trace.
    - Nobody waits for it: what its tenant allows for the time to the first token does not hold.
    """

    def __init__(
        self, handlers: Mapping[str, RequestHandler], limits: RequestLimits,
        new_allocation: Callable[[], BodyAllocation], record_request: Callable[[Exchange, float], None],
        prefers: Callable[[Engine], bool],
    ) -> None:  # fmt: skip
        """`handlers`: by the path of the endpoint. `prefers`: engines that are tried before others."""
        self._handlers = handlers
        self._limits = limits
        self._new_allocation = new_allocation
        self._record_request = record_request
        self._prefers = prefers

    async def send(
        self, endpoint: Endpoint, tenant: str, control: CacheControl, body: bytes, line: BegunLine | None = None
    ) -> LineAnswer:
        """`line`: gets to know the request."""
        exchange = _new_exchange(endpoint, tenant)
        if line is not None:
            line.exchange = exchange
        try:
            answer = await self._answer(exchange, control, body, may_generate=True)
        finally:
            self._record_request(exchange, time.perf_counter())
        return _line_answer(exchange, answer)

    async def find_cached(
        self, endpoint: Endpoint, tenant: str, control: CacheControl, body: bytes
    ) -> LineAnswer | None:  # fmt: skip
        """Without a hit None, and then nothing counts or is logged. A hit may be refused as any request.

        503, if Redis does not answer.
        """
        exchange = _new_exchange(endpoint, tenant)
        control = msgspec.structs.replace(control, only_if_cached=True)
        answer = await self._answer(exchange, control, body, may_generate=False)
        if exchange.bypass_reason is BypassReason.REDIS_DOWN:
            return LineAnswer(exchange.request_id, "", ApiError(503, "The cache does not answer."))
        if exchange.cache_status not in _CACHED:
            return None
        if isinstance(answer, ApiError):
            exchange = _new_exchange(endpoint, tenant)  # nothing of the entry is served
            _refuse(exchange, answer)
        self._record_request(exchange, time.perf_counter())
        return _line_answer(exchange, answer)

    async def _answer(
        self, exchange: Exchange, control: CacheControl, body: bytes, *, may_generate: bool
    ) -> FullResponse | ApiError:
        caller = Caller(_NO_CLIENT, _send_nothing, self._new_allocation())
        caller.request_id, caller.priority = exchange.request_id, LINE_PRIORITY
        caller.prefers_engine = self._prefers
        caller.max_ttft = inf  # its tenant's is for people
        caller.is_kept_by_default = False  # one batch would replace all conversations of the tenant
        try:
            caller.body_allocation.allocate(len(body))
            if may_generate:
                await self._reserve(exchange.tenant, caller)
            response = await self._handlers[exchange.endpoint.path].handle(exchange, control, body, caller)
            assert isinstance(response, FullResponse), "a line of a batch is no stream"
            if not may_generate:  # a look that finds nothing is no request
                await self._reserve(exchange.tenant, caller)
        except ApiError as error:
            _refuse(exchange, error)
            return error.with_traceback(None)
        except Exception:  # the line gets an error as its result, and the others go on
            log.exception("a line of a batch has failed")
            failure = internal_error()
            exchange.status, exchange.outcome, exchange.error_reason = 500, "failed", failure.reason
            return failure
        finally:
            caller.heartbeat.stop()
            caller.heartbeat = NO_HEARTBEAT
            caller.body_allocation.release()
            if caller.reservation is not None:
                caller.reservation.release()
        exchange.status, exchange.outcome = 200, "complete"
        return response

    async def _reserve(self, tenant: str, caller: Caller) -> None:
        if self._limits.has_limits(tenant):
            caller.reservation = await self._limits.reserve(tenant)
            caller.reservation.raise_if_exceeded()


def _new_exchange(endpoint: Endpoint, tenant: str) -> Exchange:
    exchange = Exchange(endpoint=endpoint, request_id=new_request_id(), started_at=time.perf_counter())
    exchange.tenant, exchange.key_id, exchange.outcome = tenant, KEY_ID, "left"
    return exchange


def _refuse(exchange: Exchange, error: ApiError) -> None:
    exchange.status, exchange.outcome, exchange.error_reason = error.status, "refused", error.reason


def _line_answer(exchange: Exchange, answer: FullResponse | ApiError) -> LineAnswer:
    cache = exchange.cache_status.value if exchange.cache_status is not None else ""
    return LineAnswer(exchange.request_id, cache, answer)


async def _send_nothing(_: MutableMapping[str, Any]) -> None:
    pass
