"""The facts of a request and of a generation: the flow records them, telemetry reports them."""

from random import getrandbits
from typing import Final, Literal

from router.core.cache.fingerprint import MissReason
from router.core.endpoints.endpoint import Endpoint
from router.core.endpoints.errors.error_envelope import BrokenStream
from router.core.endpoints.recording.recorded_response import NotStoredReason, RequestSpeculation
from router.core.routing.prefill import PrefillEstimate
from router.core.routing.prefix_tokens import PrefixTokens
from router.core.types import DEFAULT_TENANT, BypassReason, CacheStatus, Task
from router.flow.attempts.continuation.continuation_facts import Continuation
from router.flow.request_origin import RequestOrigin
from router.flow.result import LOST
from router.flow.trace.request_trace import UNTRACED, RequestTrace
from router.net.client.errors import EngineError
from router.shared.inflight.stream_writer import Producer
from router.upstream.energy import EnergyReading

RequestOutcome = Literal["complete", "refused", "failed", "left"]
"""`refused`: an error before the response started; `failed`: one after that; `left`: the client disconnected early."""

ResponseFacts = tuple[
    int,
    bool,
    CacheStatus | None,
    bool,
    bool,
    bool,
    BypassReason | None,
    MissReason | None,
    Task | None,
    str | None,
    str | None,
    tuple[str, ...],
    str | None,
]
"""The fields of ResponseKind."""

RequestFacts = tuple[
    ResponseFacts, str, str | None, str, str | None, RequestOutcome, str | None, bool, bool, bool, bool, bool, bool
]
"""The fields of RequestKind, the response's as a tuple."""


def new_request_id() -> str:
    return getrandbits(128).to_bytes(16).hex()  # unlike uuid4, without a system call


class AttemptFacts:
    """The facts of one request to one engine; times are those of time.perf_counter.

    - `fallback_model`: the engine's model, if it is not the requested one.
    - `connect_seconds`: how long its new connection took to open; None if it got one that was open.
    - `energy`: the engine's meter at `sent_at`; None if its power is unknown.
    - `error_reason`: EngineError.reason; None if it has not failed. `failed_at`: when; `had_token`: after a token.
    - `error_message`: what went wrong, in words, with what the engine said.
    - `joules`: of an attempt that failed after a token, up to then.
    """

    engine: str
    sent_at: float
    fallback_model: str | None = None
    connect_seconds: float | None = None
    energy: EnergyReading | None = None
    error_reason: str | None = None
    failed_at: float | None = None
    had_token: bool = False
    error_message: str = ""
    joules: float | None = None

    def __init__(
        self, *, engine: str, sent_at: float, fallback_model: str | None = None, energy: EnergyReading | None = None,
        error_reason: str | None = None,
    ) -> None:  # fmt: skip
        self.engine = engine
        self.sent_at = sent_at
        self.fallback_model = fallback_model
        self.energy = energy
        self.error_reason = error_reason

    @property
    def has_failed(self) -> bool:
        return self.error_reason is not None

    @property
    def concerns_engine(self) -> bool:
        """Whether its result says anything of the engine: not if the router lacked a resource for the connection."""
        return self.error_reason != "local"

    @property
    def has_worked(self) -> bool:
        """Whether it may have a token: an engine that fails without one may have refused the request."""
        return self.error_reason is None or self.had_token

    def failed_before_token(self, error: EngineError, now: float) -> None:
        self.error_reason, self.error_message, self.failed_at = error.reason, error.full_message, now

    def failed_after_token(self, error: EngineError, now: float) -> None:
        self.failed_before_token(error, now)
        self.had_token = True
        if self.energy is not None:
            self.joules = self.energy.take(now, now - self.sent_at)

    def take_joules(self, now: float) -> float | None:
        """Those of its engine, at the end of the generation; None is unknown."""
        # Taken once: each reading counts in the mean power of the engine's requests.
        if self.failed_at is not None or self.energy is None:
            return self.joules
        return self.energy.take(now, now - self.sent_at)

    def seconds(self, now: float) -> float:
        """For which its engine has worked on it."""
        if not self.has_worked:
            return 0.0
        return max(0.0, (now if self.failed_at is None else self.failed_at) - self.sent_at)


class PromptPlacement:
    """Where the prompt of a generation was sent last.

    - `choice`: why to that engine, in words; empty if there was no choice.
    - `estimate`: what was expected of the engine; None if there was no choice.
    - `prefix_tokens`: what the engine held of the prompt; None before its answer, and without an estimate.
    """

    choice: str = ""
    estimate: PrefillEstimate | None = None
    prefix_tokens: PrefixTokens | None = None


NOT_PLACED: Final = PromptPlacement()
"""Of a prompt that has only one engine."""


class GenerationRecord:
    """The facts of one generation, which several requests may share. Times are those of time.perf_counter.

    - `origin`: the request that started it.
    - `leader`: what generates it in another process; None if this process does.
    - `wait_seconds`: the wait for an engine to start. `queue_seconds`: the wait for a slot at an engine that is up.
      `waiting_since`, `queued_since`: when such a wait began that has not ended.
    - `ended_at`: None until all of it has ended.
    - `attempts`: in their order, those that failed included.
    - `error_reason`: None if the generation succeeded.
    - `speculation`: its steps with a draft, if the engine reported them.
    - `media_type`: as in Exchange.
    - `continuations`: where an engine broke the stream off.
    - `estimated_tokens`: estimated usage, if the engine reported none; see `total_tokens`.
    """

    origin: RequestOrigin
    leader: Producer | None = None
    wait_seconds: float = 0.0
    waiting_since: float | None = None
    queue_seconds: float = 0.0
    queued_since: float | None = None
    ended_at: float | None = None
    attempts: list[AttemptFacts]
    continuations: list[Continuation]
    first_token_at: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated_tokens: int = 0
    speculation: RequestSpeculation | None = None
    media_type: str | None = None
    not_stored_reason: NotStoredReason | None = None
    error_reason: str | None = None
    placement: PromptPlacement

    def __init__(self, origin: RequestOrigin, placement: PromptPlacement = NOT_PLACED) -> None:
        self.origin = origin
        self.placement = placement
        self.attempts = []
        self.continuations = []

    @property
    def responding(self) -> AttemptFacts | None:
        """The attempt that the response comes from, as far as there is one: the last one that has worked on it."""
        for attempt in reversed(self.attempts):
            if attempt.has_worked:
                return attempt
        return self.attempts[-1] if self.attempts and self.attempts[-1].concerns_engine else None

    @property
    def engine(self) -> str | None:
        """The one that works on it, or has done so last."""
        if self.leader is not None:
            return self.leader.engine
        attempt = self.responding
        return None if attempt is None else attempt.engine

    @property
    def fallback_model(self) -> str | None:
        """The model of `engine`, if it is not the requested one."""
        if self.leader is not None:
            return self.leader.fallback
        attempt = self.responding
        return None if attempt is None else attempt.fallback_model

    @property
    def dispatched_at(self) -> float | None:
        """When the first attempt was sent."""
        return self.attempts[0].sent_at if self.attempts else None

    @property
    def total_tokens(self) -> int:
        """Prompt and completion tokens as reported by the engine, else the estimate."""
        return self.prompt_tokens + self.completion_tokens or self.estimated_tokens

    def gpu_seconds(self, now: float) -> float:
        """Seconds for which an engine was busy with it; 0 if no engine has worked on it, as far as is known."""
        if self.first_token_at is None and self.error_reason != LOST:
            return 0.0
        return sum([attempt.seconds(now) for attempt in self.attempts], 0.0)

    def generation_ms(self, now: float) -> int:
        """Milliseconds that engines have worked on the response; 0 if none has."""
        return round(1000 * sum([attempt.seconds(now) for attempt in self.attempts], 0.0))

    @property
    def continued(self) -> str:
        """The engines that went on with the stream, each with the tokens that had been generated: `name:12`."""
        return ",".join([f"{each.engine}:{each.tokens}" for each in self.continuations if each.engine is not None])


class Exchange:
    """The facts of one request. Times are those of time.perf_counter; None means that the request did not get there.

    - `request_id`: the client's if it has sent one, else the router's. `engine_request_id`: the id that engines got
      instead; None if they got none or `request_id`.
    - `traceparent`, `tracestate`: the client's, which engines get if the request is not traced.
    - `trace_id`: of the client's traceparent, or of the trace that the router has begun: 32 hexadecimal digits. None if
      there is neither.
    - `trace`: UNTRACED if it is not traced.
    - `key_id`: identifies the API key that the client sent; see router.api.access.auth.
    - `media_type`: the Content-Type of a response that is neither JSON nor a stream; else None.
    - `limit_headers`: the header lines of a tenant with limits.
    - `generation_ms`: how long the engine took for the response, which may not have been generated for this request.
    - `age`, and `ttl` (the remaining time to live), are in whole seconds.
    - `generation`: the last one that it waited for, its own or another request's.
    - `fallback_model`: the model that generated the response, if it is not the requested one.
    - `broken_stream`: what an error event needs to know of a stream that ended early; None if none did.
    - `lookup_seconds`: how long Redis took for the first lookup; 0 if it was not asked.
    - `joined_at`: when it joined a generation, or started one.
    - `adjusted_fields`: the fields that were left out of the request to the engine.
    """

    endpoint: Endpoint
    request_id: str
    started_at: float
    engine_request_id: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    trace_id: str | None = None
    trace: RequestTrace = UNTRACED
    media_type: str | None = None
    tenant: str = DEFAULT_TENANT
    key_id: str | None = None
    limit_headers: bytes = b""
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
    lookup_seconds: float = 0.0
    # Engines.
    generation: GenerationRecord | None = None
    fallback_model: str | None = None
    broken_stream: BrokenStream | None = None
    adjusted_fields: tuple[str, ...] = ()
    joined_at: float | None = None
    first_token_at: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    generation_ms: int = 0
    # Outcome.
    status: int = 0
    outcome: RequestOutcome = "complete"
    error_reason: str | None = None

    def __init__(
        self, *, endpoint: Endpoint, request_id: str, started_at: float, traceparent: str | None = None,
        tracestate: str | None = None, trace_id: str | None = None,
    ) -> None:  # fmt: skip
        self.endpoint = endpoint
        self.request_id = request_id
        self.started_at = started_at
        self.traceparent = traceparent
        self.tracestate = tracestate
        self.trace_id = trace_id


def response_facts(exchange: Exchange) -> ResponseFacts:
    return (
        exchange.status,
        exchange.stream,
        exchange.cache_status,
        exchange.from_local_cache,
        exchange.key is not None,
        exchange.age is not None,
        exchange.bypass_reason,
        exchange.miss_reason,
        exchange.task,
        exchange.engine,
        exchange.fallback_model,
        exchange.adjusted_fields,
        exchange.media_type,
    )


def request_facts(exchange: Exchange) -> RequestFacts:
    generation = exchange.generation
    return (
        response_facts(exchange),
        exchange.tenant,
        exchange.key_id,
        exchange.endpoint.path,
        exchange.model,
        exchange.outcome,
        exchange.error_reason,
        exchange.first_token_at is not None,
        exchange.engine_request_id is not None,
        generation is not None,
        exchange.trace_id is not None,
        generation is not None and bool(generation.continuations) and bool(generation.continued),
        generation is not None and generation.placement.estimate is not None,
    )
