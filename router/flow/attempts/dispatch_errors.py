"""The errors of requests that no engine has answered."""

from collections.abc import Sequence
from math import ceil
from typing import Final

from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.errors.engine_errors import is_error_body, parse_reported_error, unsupported_endpoint
from router.core.endpoints.errors.engine_message import MAX_ERROR_BODY
from router.core.endpoints.recording.json_repair import repaired
from router.core.endpoints.recording.recorded_response import NotStoredReason
from router.core.resilience.retry import CREDENTIAL_REASONS
from router.errors import CIRCUIT_OPEN, ENGINE_FAILED, NO_ENGINE, UPSTREAM, ApiError, unavailable
from router.flow.attempts.admission import NoSlotError
from router.flow.attempts.engine_health import EngineHealth
from router.flow.attempts.engine_request import lacks_endpoint
from router.net.client.errors import EngineError
from router.upstream.engine import Engine

_TOLD_BY_STATUS: Final = (401, 403, 407, 429, 529)  # these concern the engine otherwise than a failure of it


class Failures:
    """What has failed so far in the attempts of one request.

    - `last`: of the last attempt that failed otherwise than with "not served".
    - `no_room`: why it has not waited for a slot, or not longer.
    """

    __slots__ = ("_broken_off", "_not_served", "last", "no_room")

    def __init__(self, broken_off: EngineError | None) -> None:
        """`broken_off`: the failure of the engine whose stream is to be continued."""
        self._broken_off = broken_off
        self._not_served: Exception | None = None
        self.last = broken_off
        self.no_room: NoSlotError | None = None

    @property
    def is_seam(self) -> bool:
        """Whether the next attempt is the first one that continues a stream."""
        return self.last is not None and self.last is self._broken_off

    def add(self, error: EngineError, model: str, request: InferenceRequest) -> None:
        """`model`: the name that the client knows."""
        if error.refusal is None:
            self.last = error
        elif self._not_served is None:
            lacks = lacks_endpoint(error)
            self._not_served = unsupported_endpoint(model, request.endpoint.path) if lacks else error.refusal

    def outcome(self, engines: Sequence[Engine], health: EngineHealth) -> Exception:
        """What the client gets if no attempt is left."""
        if self.no_room is not None:
            return self.no_room
        # An engine that failed otherwise, is full, or has an open breaker may well serve the request. So the client
        # gets "not served", which means a permanent error to it, only if there is no such engine.
        if self.last is None and self._not_served is not None and not any(map(health.is_open, engines)):
            return self._not_served
        error = client_error(self.last, engines, health)
        error.__cause__ = self.last  # read by `Waking`
        return error


def client_error(error: EngineError | None, engines: Sequence[Engine], health: EngineHealth) -> ApiError:
    """The client's error if no engine succeeded. `error`: the last attempt's; None if there was no attempt."""
    if error is None:
        return _no_attempt_error(engines, health)
    match error.reason:
        case "connect" | "lost":
            return unavailable("No engine of this model can be reached.", code=NO_ENGINE)
        case "local":
            message = "The router has no file descriptor, port or memory left for a connection to an engine."
            return unavailable(message, code="out_of_resources")
        case "status-429" | "status-503" | "status-529":
            wait = max(1, ceil(error.retry_after or 0.0))
            return unavailable("The engines of this model are busy.", code="engines_busy", retry_after=wait)
        case "timeout" | "slow":
            return engine_timeout()
        case _:
            message = f"The request failed at the engine: {shown_message(error)}."
            return ApiError(502, message, kind=UPSTREAM, code=ENGINE_FAILED)


def shown_message(error: EngineError) -> str:
    """What the client may know of a failure: all but what an engine says of the router's credentials."""
    return str(error) if error.reason in CREDENTIAL_REASONS else error.full_message.rstrip(".")


def reported_error(payload: bytes, engine: Engine) -> EngineError:
    """The failure that a response with status 200 reports, in an event or as its body."""
    reported = parse_reported_error(engine.without_secrets(payload[:MAX_ERROR_BODY]), engine.address)
    refusal = reported.refusal
    if refusal is not None:
        return EngineError("refused", f"the engine rejected the request: {reported.summary}", refusal=refusal)
    reason = f"status-{reported.status}" if reported.status in _TOLD_BY_STATUS else "error-frame"
    return EngineError(reason, "the engine reported an error", detail=reported.summary)


def check_unreadable(request: InferenceRequest, body: bytes, engine: Engine) -> NotStoredReason:
    """Why a JSON response is not stored that is an error, or not JSON in the strict sense.

    Raises ApiError if it is a refusal, EngineError if it is a failure of the engine.
    """
    if is_error_body(body[:MAX_ERROR_BODY]):
        failure = reported_error(body, engine)
        raise failure.refusal or failure
    readable = repaired(body)
    recorded = request.endpoint.record_body(request, readable, len(body)) if readable is not None else None
    if recorded is None or recorded is NotStoredReason.ERROR:
        raise EngineError("malformed", "the engine's response is not valid")
    if isinstance(recorded, NotStoredReason):
        return recorded
    return NotStoredReason.NOT_FINITE if b"NaN" in body or b"Infinity" in body else NotStoredReason.INCOMPLETE


def engine_timeout() -> ApiError:
    return ApiError(504, "Timeout: the engine did not respond in time.", kind=UPSTREAM, code="engine_timeout")


def _no_attempt_error(engines: Sequence[Engine], health: EngineHealth) -> ApiError:
    # One that was drained while the request waited is left out, as it is from the engines of a new request.
    engines = [engine for engine in engines if not engine.drained]
    if not engines:
        return unavailable("All engines of this model are drained, or gone.", code=NO_ENGINE)
    if any(engine.access.refused is not None for engine in engines) and not any(engine.up for engine in engines):
        return unavailable("The engines of this model refuse the router's key, or cannot be reached.", code=NO_ENGINE)
    wait = max(1, ceil(min((health.breakers.retry_after(engine.name) for engine in engines), default=0.0)))
    if all(engine.up is False for engine in engines):
        message = "No engine of this model can be reached."
        return unavailable(message, code=NO_ENGINE, retry_after=wait)
    message = "The circuit breakers of this model's engines are open after failures or high load."
    return unavailable(message, code=CIRCUIT_OPEN, retry_after=wait)
