"""What happened: the story notes facts here, and telemetry tells them, once, at the end."""

from random import getrandbits
from typing import Literal

import msgspec

from router.core.cache.fingerprint import MissReason
from router.core.endpoints.recorded_response import NotStoredReason
from router.core.types import DEFAULT_TENANT, BypassReason, CacheStatus, Endpoint, Task
from router.flow.body_budget import BodyAllocation
from router.shared.rate_limits import Reservation

RequestOutcome = Literal["complete", "refused", "failed", "left"]
"""`refused`: an error before the answer began; `failed`: one after it; `left`: the client did not wait for the end."""


def new_request_id() -> str:
    """An id as long as a UUID, made without a system call."""
    return getrandbits(128).to_bytes(16).hex()


class GenerationRecord(msgspec.Struct, kw_only=True, eq=False):
    """The facts of one generation, which may be for several requests. Instants are those of time.perf_counter.

    - `request_id`: that of the request that began it; `engine_request_id`: what engines get, see below.
    - `attempts`: those that failed, as (engine, reason).
    - `fallback`: the model of `engine`, where that is not the one that was asked for.
    - `error`: what it ended with, if it did not end well.
    - `body`: that of its request, which is released when the generation is over.
    - `estimate`: how many tokens it took, where nobody told them; see `used`.
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
        """Tokens that were read and generated, as far as one can know."""
        return self.prompt_tokens + self.completion_tokens or self.estimated_tokens


class Exchange(msgspec.Struct, kw_only=True, eq=False):
    """The facts of one request. Instants are those of time.perf_counter; None is: it did not come to that.

    - `request_id`: the client's if `named_by_client`, else the router's. `engine_request_id`: what engines get in its
      place. It is never chosen by a client, since some connectors of vLLM read addresses out of it.
    - `body`: what its body counts for.
    - `session`: the client's X-Session-ID.
    - `permit`: of a tenant with limits.
    - `reason`: that of a miss. `age`, and `ttl`, what is left of the time to live, are whole seconds.
    - `fallback`: the model that answered in place of the one that was asked for.
    - `adjusted`: the fields that the engine did not get.
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
    # The cache's part.
    cache_status: CacheStatus | None = None
    bypass_reason: BypassReason | None = None
    miss_reason: MissReason | None = None
    key: str | None = None
    age: int | None = None
    ttl: int | None = None
    from_local_cache: bool = False
    # The engines' part.
    fallback_model: str | None = None
    adjusted_fields: tuple[str, ...] = ()
    dispatched_at: float | None = None
    first_token_at: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    # How it ended.
    status: int = 0
    outcome: RequestOutcome = "complete"
    error_reason: str | None = None
