"""The documents of /admin/status, /admin/history and /admin/requests, as they are sent. None is unknown, never 0.

Times are seconds since the epoch by Redis' clock. Counts of requests and tokens are sums over all router processes.
"""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from router.net.redis.refusals import WriteRefusal

EngineState = Literal["up", "down", "refused", "unknown"]
"""`refused`: it refuses the router's key."""
BreakerStateName = Literal["closed", "half-open", "open"]
Severity = Literal["critical", "warning", "info"]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is wrong, in `words`: a sentence.

    - `severity`: `critical`: requests fail, or would with one more failure; `warning`: some are refused, or another
      model answers; `info`: it is meant.
    - `kind` and `subject`: what it is about; `subject` is a name, and empty for Redis and the router.
    - `since`: when it began, in seconds since the epoch by the clock of the router process; None is unknown.
    """

    severity: Severity
    kind: Literal["router", "model", "redis", "engine", "tenant"]
    subject: str = ""
    words: str
    since: float | None = None


class RouterRow(msgspec.Struct, frozen=True, kw_only=True):
    """A router process. A router with several workers has one for each worker.

    - `in_flight`: requests to the endpoints that generate which it is answering; `queued`: those of them that wait for
      an engine.
    - `supervisor`: for a worker, the process id of its supervisor, which all workers of a router have in common.
    - `seen`: seconds since it published its state. `compiled`: whether it runs compiled modules.
    """

    id: str
    host: str
    pid: int
    version: str
    compiled: bool
    started_at: float
    in_flight: int
    queued: int
    seen: float
    draining: bool
    supervisor: int | None = None


class EngineRow(msgspec.Struct, frozen=True, kw_only=True):
    """An engine as the router process that answers sees it; as another one does, if only that one has it.

    - `draft`: the draft model or method of speculation, if the configuration names one.
    - `in_flight`: requests of all router processes to it; `max_in_flight`: the sum of their limits, None for none.
    - `running`, `waiting`, `kv_cache_usage` to `spec_tokens_per_step`: the engine's own metrics; ratios are 0 to 1.
    - `restarts`: by the watchdog since its launcher started. These, temperature and power: of announced engines only.
    - `prefix_tokens` to `prefix_unused_seconds`, `seconds_per_token`: see PrefixIndexStatus.
    - `asleep`: it is down, and is started when a request comes. `since`: when `state` began, by the process' own clock.
    - `cause`: why it is down, in a few words. `failures`: attempts that it failed as it went down, and since.
    """

    name: str
    model: str
    task: str
    url: str
    draft: str | None = None
    state: EngineState = "unknown"
    drained: bool = False
    breaker: BreakerStateName = "closed"
    in_flight: int = 0
    max_in_flight: int | None = None
    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None
    prefix_cache_hit_rate: float | None = None
    spec_acceptance_rate: float | None = None
    spec_tokens_per_step: float | None = None
    restarts: int | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    announced: bool = False
    prefix_tokens: int | None = None
    prefix_capacity_tokens: int | None = None
    prefix_entries: int | None = None
    prefix_unused_seconds: float | None = None
    seconds_per_token: float | None = None
    asleep: bool = False
    since: float | None = None
    cause: str = ""
    failures: int = 0


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """`engines`: their names. `fallback`: the model that answers if none of them can.

    `asleep`: no engine is up, and one is started when a request comes.
    """

    name: str
    engines: tuple[str, ...] = ()
    fallback: str | None = None
    asleep: bool = False


class GpuEngineRow(msgspec.Struct, frozen=True, kw_only=True):
    """An engine of a GPU. `state`: awake, asleep, about to sleep or waking up; `since`: when it fell asleep or woke up.

    `wake_seconds`: how long the last switch to it took.
    """

    engine: str
    state: str
    since: float | None = None
    wake_seconds: float | None = None


class GpuRow(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU whose engines take turns. `switches`, `failed`: of the last hour; `error`: of the last one that failed."""

    name: str
    engines: tuple[GpuEngineRow, ...] = ()
    switches: int = 0
    failed: int = 0
    error: str = ""


class RedisRow(msgspec.Struct, frozen=True, kw_only=True):
    """`url` without user and password. Memory in bytes; `maxmemory`: None for no limit. A cluster's are sums.

    `refuses_writes`: why it takes no writes, as the process that answers sees it; None if it takes them.
    `since`: when it went down, or began to refuse writes; None if neither.
    """

    up: bool
    url: str
    refuses_writes: WriteRefusal | None = None
    since: float | None = None
    version: str | None = None
    used_memory: int | None = None
    maxmemory: int | None = None
    keys: int | None = None


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """In milliseconds, interpolated within the buckets of the histogram."""

    p50: float | None = None
    p99: float | None = None


class FirstTokenTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Times to the first token by cache result."""

    hit: Percentiles = Percentiles()
    miss: Percentiles = Percentiles()


class TrafficSums(msgspec.Struct, frozen=True, kw_only=True):
    """Requests by cache result, tokens, and seconds of generation.

    - `requests`: all that ended. `rejected`: refused before an engine was selected; `errors`: answered with a 5xx
      status, or broken off. A request may be both.
    - `saved_tokens`: those that were not generated again. `gpu_seconds_saved`: the seconds that this would have taken.
    """

    requests: int = 0
    hits: int = 0
    misses: int = 0
    coalesced: int = 0
    stale: int = 0
    bypass: int = 0
    rejected: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    saved_tokens: int = 0
    gpu_seconds_spent: float = 0.0
    gpu_seconds_saved: float = 0.0


class RefusedRow(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that were rejected. `reason`, `tenant`: the labels of llm_requests_rejected_total."""

    reason: str
    tenant: str
    count: int


class MinuteRow(TrafficSums, frozen=True, kw_only=True):
    """One minute's traffic. `at`: its start. `refused`: the parts of `rejected`, the largest first."""

    at: int
    ttft_ms: FirstTokenTimes = FirstTokenTimes()
    refused: tuple[RefusedRow, ...] = ()


class LastHour(TrafficSums, frozen=True, kw_only=True):
    """The last 60 minutes. `hit_ratio`: hits among the requests that were looked up. Percentiles over all requests."""

    hit_ratio: float | None = None
    ttft_p50_ms: float | None = None
    ttft_p99_ms: float | None = None


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True):
    """A request to an engine. `result`: ok, or the reason of the failure; then `ms` until it, and what was said."""

    engine: str
    result: str
    ms: float | None = None
    message: str = ""


_END_OF_9999: Final = 253_370_000_000


class RequestRow(msgspec.Struct, frozen=True, kw_only=True):
    """A request that has ended, without its prompt and response.

    - `at`: its end. `router`: the id of the process that answered it. `ms`, `ttft_ms`: its duration and the time to the
      first token in milliseconds.
    - `cache`: HIT, MISS, COALESCED, STALE or BYPASS. `reason`: why it was a miss or a bypass, or why it was refused.
    - `outcome`: complete, refused, failed or left; see docs/operating.md. `error`: the code of an error.
    - `notable`: it failed at the router or an engine, or was slower than most of its model.
    - `times`: the parts of its time in milliseconds, by their names in the log.
    - `attempts`: at engines, the last ones. `shared_with`: the request whose generation it shared.
    """

    at: Annotated[float, Meta(ge=0, le=_END_OF_9999)]
    request_id: str
    router: str
    tenant: str
    model: str | None
    task: str | None
    cache: str | None
    reason: str | None
    engine: str | None
    status: int
    outcome: str
    ms: float
    ttft_ms: float | None
    completion_tokens: int
    key: str | None
    path: str = ""
    key_id: str | None = None
    stream: bool = False
    error: str | None = None
    notable: bool = False
    times: dict[str, float] = {}
    attempts: tuple[AttemptRow, ...] = ()
    shared_with: str | None = None

    @property
    def has_failed(self) -> bool:
        return self.status >= 400 or self.outcome == "failed"

    @property
    def is_refused(self) -> bool:
        """For what the client sent, or as one too many: with a status below 500."""
        return 400 <= self.status < 500 and self.outcome != "failed"


class ExplanationLine(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be said about a part of a request: `asked`, `answered`, `cache`, `time`, `engines` or `next`."""

    name: str
    text: str


class ExplainedRow(RequestRow, frozen=True, kw_only=True):
    """`words`: see router.shared.status.request_explanation. Several lines may have one name."""

    words: tuple[ExplanationLine, ...] = ()


class StatusDocument(msgspec.Struct, frozen=True, kw_only=True):
    """/admin/status. `last_hour`: None while Redis is down. `problems`: the worst first.

    `router_now`: by the clock of the process that answers, as `since`.
    """

    now: float
    routers: tuple[RouterRow, ...]
    engines: tuple[EngineRow, ...]
    models: tuple[ModelRow, ...]
    redis: RedisRow
    last_hour: LastHour | None
    problems: tuple[Problem, ...] = ()
    gpus: tuple[GpuRow, ...] = ()
    router_now: float | None = None


class HistoryDocument(msgspec.Struct, frozen=True, kw_only=True):
    """/admin/history: one row a minute, the oldest first; the last is the present minute."""

    minutes: tuple[MinuteRow, ...]


class RequestsDocument(msgspec.Struct, frozen=True, kw_only=True):
    """/admin/requests: the newest first.

    `all_routers`: False while Redis is down or takes no writes; then the new ones are those of one process.
    """

    requests: tuple[RequestRow, ...]
    all_routers: bool = True


class ExplainedRequestsDocument(msgspec.Struct, frozen=True, kw_only=True):
    """/admin/requests with `words=1`. A router of an earlier version leaves out the words."""

    requests: tuple[ExplainedRow, ...]
    all_routers: bool = True
