"""The errors of requests that no engine has answered."""

from collections.abc import Sequence
from math import ceil

from router.errors import CIRCUIT_OPEN, ENGINE_FAILED, NO_ENGINE, UPSTREAM, ApiError, unavailable
from router.flow.engine_health import EngineHealth
from router.net.client.errors import EngineError
from router.upstream.engine import Engine


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
        case "status-429" | "status-503":
            wait = max(1, ceil(error.retry_after or 0.0))
            return unavailable("The engines of this model are busy.", code="engines_busy", retry_after=wait)
        case "timeout" | "slow":
            return engine_timeout()
        case _:
            return ApiError(502, f"The request failed at the engine: {error}.", kind=UPSTREAM, code=ENGINE_FAILED)


def engine_timeout() -> ApiError:
    return ApiError(504, "Timeout: the engine did not respond in time.", kind=UPSTREAM, code="engine_timeout")


def _no_attempt_error(engines: Sequence[Engine], health: EngineHealth) -> ApiError:
    # One that was drained while the request waited is left out, as it is from the engines of a new request.
    engines = [engine for engine in engines if not engine.drained]
    if not engines:
        return unavailable("All engines of this model are drained, or gone.", code=NO_ENGINE)
    wait = max(1, ceil(min((health.breakers.retry_after(engine.name) for engine in engines), default=0.0)))
    if all(engine.up is False for engine in engines):
        message = "No engine of this model can be reached."
        return unavailable(message, code=NO_ENGINE, retry_after=wait)
    message = "The circuit breakers of this model's engines are open after failures or high load."
    return unavailable(message, code=CIRCUIT_OPEN, retry_after=wait)
