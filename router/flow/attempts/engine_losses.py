"""Stops requests that take their engines down; see router.core.resilience.engine_losses.

After a failure with which an engine may have died, its health is requested once, for all requests that it had. So a
connection that a proxy resets, or a 500 of an engine that lives, counts for nothing. Known to this process only.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from xxhash import xxh3_64_intdigest

from router.core.endpoints.endpoint import InferenceRequest
from router.core.resilience.engine_losses import MAX_LOSSES, SAME_LOSS, Suspects, may_be_a_loss
from router.errors import ENGINE_LOST, UPSTREAM, ApiError
from router.flow.attempts.attempt import Attempt
from router.flow.sharing.inflight import InFlightRequest
from router.net.client.errors import EngineError
from router.upstream.client import EngineClient
from router.upstream.engine import Engine

log = logging.getLogger("roundhouse.dispatch")

_CHECK_TIMEOUT: Final = 1.0  # seconds


class EngineLosses:
    """The requests with which engines died."""

    def __init__(
        self, client: EngineClient, suspects: Suspects, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`suspects`: of the process. They outlive reloads: an announced engine that ends causes one."""
        self._client = client
        self._clock = clock
        self._suspects = suspects
        self._checks: dict[str, tuple[float, asyncio.Task[bool]]] = {}  # by engine, with the instant of their start

    def require_allowed(self, tenant: str, request: InferenceRequest) -> None:
        """Raises ApiError if no engine gets this request any more."""
        if self.is_stopped(tenant, request):
            raise engine_lost()

    def is_stopped(self, tenant: str, request: InferenceRequest) -> bool:
        return bool(self._suspects) and self._suspects.is_stopped(_digest(tenant, request), self._clock())

    async def on_failed_attempt(self, inflight: InFlightRequest, attempt: Attempt, error: EngineError) -> None:
        """Before its first token or after it."""
        if inflight.wait_plan is not None:
            return  # an engine that starts may end connections
        origin, age = inflight.origin, time.perf_counter() - attempt.sent_at
        await self.on_failure(origin.request_id, origin.tenant, inflight.request, attempt.engine, error, age)

    async def on_failure(
        self, request_id: str, tenant: str, request: InferenceRequest, engine: Engine, error: EngineError, age: float
    ) -> None:
        """`age`: seconds from the attempt to its failure."""
        if may_be_a_loss(error.reason, age):
            count = self._count_if_lost(request_id, _digest(tenant, request), engine)
            # In a task of its own: it counts too if the request is cancelled meanwhile, as its client has left.
            await asyncio.shield(asyncio.get_running_loop().create_task(count))

    async def _count_if_lost(self, request_id: str, digest: int, engine: Engine) -> None:
        if await self._is_alive(engine):
            return
        now = self._clock()
        suspect = self._suspects.record_loss(digest, engine.name, now)
        if suspect.is_stopped(now):
            engines = ", ".join(name for name, _ in suspect.losses)
            log.warning("request %s: engines ended with it: %s; no engine gets it any more", request_id, engines)

    def on_success(self, tenant: str, request: InferenceRequest) -> None:
        if self._suspects:
            self._suspects.forget(_digest(tenant, request))

    async def _is_alive(self, engine: Engine) -> bool:
        now = self._clock()
        started_at, check = self._checks.get(engine.name, (0.0, None))
        # One that has found it alive says nothing of a failure since.
        if check is None or now - started_at >= SAME_LOSS or (check.done() and check.result()):
            self._checks = {name: each for name, each in self._checks.items() if now - each[0] < SAME_LOSS}
            check = asyncio.get_running_loop().create_task(self._check(engine))
            self._checks[engine.name] = (now, check)
        return await asyncio.shield(check)

    async def _check(self, engine: Engine) -> bool:
        try:
            with await self._client.get(engine, engine.traits.health, timeout=_CHECK_TIMEOUT) as response:
                return response.status < 500
        except EngineError as error:
            return error.reason in ("timeout", "local")  # it is busy, or was not reached because of this machine


def engine_lost() -> ApiError:
    message = f"The engines that got this request ended: {MAX_LOSSES} in a short time. No other engine gets it."
    return ApiError(502, message, kind=UPSTREAM, code=ENGINE_LOST)


def _digest(tenant: str, request: InferenceRequest) -> int:
    """Of the client's bytes: a retry repeats them, also for what is not cached."""
    return xxh3_64_intdigest(request.body, xxh3_64_intdigest(f"{tenant}\n{request.endpoint.path}".encode()))
