"""What an engine must have to serve a request, as far as it is known before it is asked."""

from router.core.endpoints.endpoint import InferenceRequest
from router.core.routing.context_length import context_need
from router.core.routing.draft_models.draft_stats import unsupported_fields
from router.upstream.engine import Engine


def has_endpoint(engine: Engine, path: str, now: float) -> bool:
    """`now`: of time.perf_counter, as in `EngineRequests`, which notes the endpoints that an engine lacks."""
    return not engine.unserved_paths.has(path, now)


def supports_fields(engine: Engine, fields: tuple[str, ...]) -> bool:
    """`fields`: those of the request that engines with a draft do not support; see `unsupported_fields`."""
    # `has_draft` is None if unknown; such an engine may well support them.
    return not fields or engine.has_draft is not True


def is_eligible(engine: Engine, request: InferenceRequest, now: float) -> bool:
    """Whether it can serve the request as it is. A selection takes the same steps, since it says which one fails."""
    return (
        has_endpoint(engine, request.endpoint.path, now)
        and engine.has_room_for(context_need(request))
        and supports_fields(engine, unsupported_fields(request))
    )
