"""What happened in one request: the story notes facts here, and telemetry tells them, once, at the end."""

from typing import Literal

from router.core.recording import NotKept
from router.core.types import DEFAULT_TENANT, Bypass, CacheStatus, Endpoint, Task

Outcome = Literal["complete", "refused", "failed", "left"]
"""`refused`: an error before the answer began; `failed`: one after it; `left`: the client did not wait for the end."""


class Exchange:
    """The facts of one request. Instants are those of time.perf_counter; None is: it did not come to that."""

    __slots__ = (
        "age", "attempts", "begun", "bypass", "cache", "completion_tokens", "dispatched", "endpoint", "engine",
        "error", "first_token", "key", "model", "not_kept", "outcome", "prompt_tokens", "request_id", "status",
        "stream", "task", "tenant", "traceparent", "ttl",
    )  # fmt: skip

    def __init__(self, *, endpoint: Endpoint, request_id: str, begun: float, traceparent: str | None = None) -> None:
        self.endpoint = endpoint
        self.request_id = request_id
        self.traceparent = traceparent
        self.begun = begun
        self.tenant = DEFAULT_TENANT
        self.model: str | None = None
        self.task: Task | None = None
        self.engine: str | None = None
        self.stream = False
        # The cache's part: the age and the time to live are whole seconds.
        self.cache: CacheStatus | None = None
        self.bypass: Bypass | None = None
        self.key: str | None = None
        self.age: int | None = None
        self.ttl: int | None = None
        self.not_kept: NotKept | None = None
        # The engines' part: `attempts` are those that failed, as (engine, reason).
        self.attempts: list[tuple[str, str]] = []
        self.dispatched: float | None = None
        self.first_token: float | None = None
        self.prompt_tokens = 0
        self.completion_tokens = 0
        # How it ended.
        self.status = 0
        self.outcome: Outcome = "complete"
        self.error: str | None = None
