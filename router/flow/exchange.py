"""The facts of a request and of a generation. The flow records them; telemetry reports them once, at the end."""

from random import getrandbits
from typing import Literal

import msgspec

from router.core.cache.fingerprint import MissReason
from router.core.endpoints.endpoint import Endpoint
from router.core.endpoints.recorded_response import NotStoredReason, RequestSpeculation
from router.core.types import DEFAULT_TENANT, BypassReason, CacheStatus, Task
from router.flow.body_budget import BodyAllocation
from router.flow.request_trace import GenerationTrace, RequestTrace
from router.flow.result import LOST
from router.shared.rate_limits import Reservation
from router.upstream.adapters import Adapter
from router.upstream.energy import EnergyReading

RequestOutcome = Literal["complete", "refused", "failed", "left"]
"""`refused`: an error before the response started; `failed`: one after that; `left`: the client disconnected early."""


def new_request_id() -> str:
    return getrandbits(128).to_bytes(16).hex()  # unlike uuid4, without a system call


class GenerationRecord(msgspec.Struct, kw_only=True, eq=False):
    """The facts of one generation, which several requests may share. Times are those of time.perf_counter.

    - `request_id`: that of the request that started it; `engine_request_id`: see Exchange.
    - `traceparent`, `tracestate`: for the engine; see router.core.trace_context. `trace`: None if it is not traced.
    - `leader_traceparent`: of the request in another process that started it, if that is traced.
    - `key_id`: of the API key of that request; see Exchange. `priority`: see router.core.quota.priority.
    - `attempts`: those at engines, so far. `failed_attempts`: as (engine, reason).
    - `dispatched_at`: when the first attempt was sent. `sent_at`: when the one that is at `engine` was sent; None while
      there is none, and after it has failed. `energy`: the engine's meter at that time.
    - `model`: the name in metrics. `adapter`: None for a model of the configuration.
    - `fallback_model`: the model of `engine`, if it is not the requested one.
    - `engine_revision`: see ParsedRequest. `has_other_revision`: `engine` has another one, or
      another path of the adapter.
    - `error_reason`: None if the generation succeeded.
    - `body_allocation`: the memory of the request's body, which is released when the generation ends.
    - `log_odds`: the classifier's score of the prompt, whose sign gives `task`.
    - `speculation`: its steps with a draft, if the engine reported them.
    - `media_type`: as in Exchange.
    - `choices`: the number that the request asks for; an engine generates them at the same time.
    - `estimated_tokens`: estimated usage, if the engine reported none; see `total_tokens`.
    """

    request_id: str
    engine_request_id: str = msgspec.field(default_factory=new_request_id)
    traceparent: str | None
    tracestate: str | None = None
    trace: GenerationTrace | None = None
    leader_traceparent: str | None = None
    tenant: str
    key_id: str | None = None
    priority: int = 0
    model: str
    adapter: Adapter | None = None
    engine_revision: str | None = None
    has_other_revision: bool = False
    task: Task
    log_odds: float = 0.0
    stream: bool
    started_at: float
    body_allocation: BodyAllocation | None = None
    engine: str | None = None
    fallback_model: str | None = None
    attempts: int = 0
    failed_attempts: list[tuple[str, str]] = msgspec.field(default_factory=list)
    dispatched_at: float | None = None
    sent_at: float | None = None
    energy: EnergyReading | None = None
    first_token_at: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated_tokens: int = 0
    speculation: RequestSpeculation | None = None
    choices: int = 1
    media_type: str | None = None
    not_stored_reason: NotStoredReason | None = None
    error_reason: str | None = None

    @property
    def total_tokens(self) -> int:
        """Prompt and completion tokens as reported by the engine, else the estimate."""
        return self.prompt_tokens + self.completion_tokens or self.estimated_tokens

    def gpu_seconds(self, now: float) -> float:
        """Seconds for which an engine was busy with it; 0 if no engine has worked on it, as far as is known."""
        if self.sent_at is None or (self.first_token_at is None and self.error_reason != LOST):
            return 0.0
        return max(0.0, now - self.sent_at)

    def generation_ms(self, now: float) -> int:
        """Milliseconds that the engine has worked on the response; 0 if it has not."""
        return round(1000 * (now - self.sent_at)) if self.sent_at is not None else 0


class Exchange(msgspec.Struct, kw_only=True, eq=False):
    """The facts of one request. Times are those of time.perf_counter; None means that the request did not get there.

    - `request_id`: the client's if `has_client_request_id`, else the router's. `engine_request_id`: the id that engines
      get instead. It is never chosen by a client, because some connectors of vLLM read addresses out of request ids.
    - `traceparent`, `tracestate`: the client's, which engines get if the request is not traced.
    - `trace_id`: of the client's traceparent, or of the trace that the router has begun: 32 hexadecimal digits. None if
      there is neither.
    - `trace`: None if it is not traced.
    - `key_id`: identifies the API key that the client sent; see router.api.auth.
    - `body_allocation`: the memory that its body is counted for.
    - `session_id`: the client's X-Session-ID.
    - `form_type`: the request's Content-Type at an endpoint that takes a form; None at the others.
    - `media_type`: the Content-Type of a response that is neither JSON nor a stream; else None.
    - `permit`: the reservation of a tenant with limits.
    - `generation_ms`: how long the engine took for the response, which may not have been generated for this request.
    - `age`, and `ttl` (the remaining time to live), are in whole seconds.
    - `generation`: the last one that it waited for, its own or another request's.
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
    tracestate: str | None = None
    trace_id: str | None = None
    trace: RequestTrace | None = None
    session_id: str | None = None
    form_type: bytes | None = None
    media_type: str | None = None
    tenant: str = DEFAULT_TENANT
    key_id: str | None = None
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
    generation: GenerationRecord | None = None
    fallback_model: str | None = None
    adjusted_fields: tuple[str, ...] = ()
    dispatched_at: float | None = None
    first_token_at: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    generation_ms: int = 0
    # Outcome.
    status: int = 0
    outcome: RequestOutcome = "complete"
    error_reason: str | None = None
