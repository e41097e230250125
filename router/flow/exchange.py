"""What happened: the story notes facts here, and telemetry tells them, once, at the end."""

from typing import Literal

from router.core.reason import MissReason
from router.core.recording import NotKept
from router.core.types import DEFAULT_TENANT, Bypass, CacheStatus, Endpoint, Task
from router.shared.limits import Permit

Outcome = Literal["complete", "refused", "failed", "left"]
"""`refused`: an error before the answer began; `failed`: one after it; `left`: the client did not wait for the end."""


class Work:
    """The facts of one generation, which may be for several requests. Instants are those of time.perf_counter.

    - `attempts`: those that failed, as (engine, reason).
    - `fallback`: the model of `engine`, where that is not the one that was asked for.
    - `error`: what it ended with, if it did not end well.
    - `estimate`: how many tokens it took, where nobody told them; see `used`.
    """

    __slots__ = (
        "attempts", "begun", "completion_tokens", "dispatched", "engine", "error", "estimate", "fallback",
        "first_token", "model", "not_kept", "prompt_tokens", "request_id", "stream", "task", "tenant", "traceparent",
    )  # fmt: skip

    def __init__(
        self, *, request_id: str, traceparent: str | None, tenant: str, model: str, task: Task, stream: bool,
        begun: float,
    ) -> None:  # fmt: skip
        self.request_id = request_id
        self.traceparent = traceparent
        self.tenant = tenant
        self.model = model
        self.task: Task = task
        self.stream = stream
        self.begun = begun
        self.engine: str | None = None
        self.fallback: str | None = None
        self.attempts: list[tuple[str, str]] = []
        self.dispatched: float | None = None
        self.first_token: float | None = None
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.estimate = 0
        self.not_kept: NotKept | None = None
        self.error: str | None = None

    @property
    def used(self) -> int:
        """Tokens that were read and generated, as far as one can know."""
        return self.prompt_tokens + self.completion_tokens or self.estimate


class Exchange:
    """The facts of one request. Instants are those of time.perf_counter; None is: it did not come to that."""

    __slots__ = (
        "adjusted", "age", "begun", "bypass", "cache", "completion_tokens", "dispatched", "endpoint", "engine", "error",
        "fallback", "first_token", "key", "local", "model", "outcome", "permit", "prompt_tokens", "reason",
        "request_id", "session", "status", "stream", "task", "tenant", "traceparent", "ttl",
    )  # fmt: skip

    def __init__(
        self, *, endpoint: Endpoint, request_id: str, begun: float, traceparent: str | None = None,
        session: str | None = None,
    ) -> None:  # fmt: skip
        self.endpoint = endpoint
        self.request_id = request_id
        self.traceparent = traceparent
        self.session = session  # the client's X-Session-ID
        self.begun = begun
        self.tenant = DEFAULT_TENANT
        self.permit: Permit | None = None  # of a tenant with limits
        self.model: str | None = None
        self.task: Task | None = None
        self.engine: str | None = None
        self.stream = False
        # The cache's part: the age and what is left of the time to live are whole seconds; `reason` is that of a miss.
        self.cache: CacheStatus | None = None
        self.bypass: Bypass | None = None
        self.reason: MissReason | None = None
        self.key: str | None = None
        self.age: int | None = None
        self.ttl: int | None = None
        self.local = False
        # The engines' part; `fallback` is the model that answered in place of the one that was asked for, `adjusted`
        # are the fields that the engine did not get.
        self.fallback: str | None = None
        self.adjusted: tuple[str, ...] = ()
        self.dispatched: float | None = None
        self.first_token: float | None = None
        self.prompt_tokens = 0
        self.completion_tokens = 0
        # How it ended.
        self.status = 0
        self.outcome: Outcome = "complete"
        self.error: str | None = None
