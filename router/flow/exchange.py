"""The facts of a request and of a generation. The flow records them; telemetry reports them once, at the end."""

from random import getrandbits
from typing import Literal

import msgspec

from router.core.cache.fingerprint import MissReason
from router.core.endpoints.endpoint import Endpoint
from router.core.endpoints.recorded_response import NotStoredReason
from router.core.types import DEFAULT_TENANT, BypassReason, CacheStatus, Task
from router.flow.body_budget import BodyAllocation
from router.shared.rate_limits import Reservation

RequestOutcome = Literal["complete", "refused", "failed", "left"]
"""`refused`: an error before the response started; `failed`: one after that; `left`: the client disconnected early."""


def new_request_id() -> str:
    return getrandbits(128).to_bytes(16).hex()  # unlike uuid4, without a system call


class GenerationRecord(msgspec.Struct, kw_only=True, eq=False):
    """The facts of one generation, which several requests may share. Times are those of time.perf_counter.

    - `request_id`: that of the request that started it; `engine_request_id`: see Exchange.
    - `failed_attempts`: as (engine, reason).
    - `fallback_model`: the model of `engine`, if it is not the requested one.
    - `error_reason`: None if the generation succeeded.
    - `body_allocation`: the memory of the request's body, which is released when the generation ends.
    - `estimated_tokens`: estimated usage, if the engine reported none; see `total_tokens`.
    """

    request_id: str
    engine_request_id: str = msgspec.field(default_factory=new_request_id)
    traceparent: str | None
    tenant: str
    model: str
    task: Task
    stream: bool
    started_at: float
    body_allocation: BodyAllocation | None = None
    engine: str | None = None
    fallback_model: str | None = None
    failed_attempts: list[tuple[str, str]] = msgspec.field(default_factory=list)
    dispatched_at: float | None = None
    first_token_at: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated_tokens: int = 0
    not_stored_reason: NotStoredReason | None = None
    error_reason: str | None = None

    @property
    def total_tokens(self) -> int:
        """Prompt and completion tokens as reported by the engine, else the estimate."""
        return self.prompt_tokens + self.completion_tokens or self.estimated_tokens


class Exchange(msgspec.Struct, kw_only=True, eq=False):
    """The facts of one request. Times are those of time.perf_counter; None means that the request did not get there.

    - `request_id`: the client's if `has_client_request_id`, else the router's. `engine_request_id`: the id that engines
      get instead. It is never chosen by a client, because some connectors of vLLM read addresses out of request ids.
    - `body_allocation`: the memory that its body is counted for.
    - `session_id`: the client's X-Session-ID.
    - `permit`: the reservation of a tenant with limits.
    - `age`, and `ttl` (the remaining time to live), are in whole seconds.
    - `fallback_model`: the model that generated the response, if it is not the requested one.
    - `adjusted_fields`: the fields that were left out of the request to the engine.
    """

    endpoint: Endpoint
    request_id: str
    started_at: float
    has_client_request_id: bool = False
    engine_request_id: str | None = None
    body_allocation: BodyAllocation | None = None
    traceparent: str | None = None
    session_id: str | None = None
    tenant: str = DEFAULT_TENANT
    permit: Reservation | None = None
    model: str | None = None
    task: Task | None = None
    engine: str | None = None
    stream: bool = False
    # Cache.
    cache_status: CacheStatus | None = None
    bypass_reason: BypassReason | None = None
    miss_reason: MissReason | None = None
    key: str | None = None
    age: int | None = None
    ttl: int | None = None
    from_local_cache: bool = False
    # Engines.
    fallback_model: str | None = None
    adjusted_fields: tuple[str, ...] = ()
    dispatched_at: float | None = None
    first_token_at: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    # Outcome.
    status: int = 0
    outcome: RequestOutcome = "complete"
    error_reason: str | None = None
