"""What is wrong with the deployment, a sentence each, for /healthz, `status`, `top` and the page alike.

Nothing here asks anything: the facts are those that the router has for other reasons.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from router.core.plural import pluralize
from router.net.redis.refusals import REFUSALS_IN_WORDS, WriteRefusal
from router.shared.status.status_documents import EngineRow, ModelRow, Problem, RefusedRow, Severity

WINDOW: Final = 5
"""Minutes whose traffic counts."""

MIN_REFUSED: Final = 25
"""Requests of a tenant that must have been refused in WINDOW, and failed in all; the alerts have the same limits."""

_MIN_ERROR_SHARE: Final = 0.05
_DAY: Final = 86_400
_ORDER: Final[Mapping[Severity, int]] = {"critical": 0, "warning": 1, "info": 2}
_LIMITS: Final = ("requests_limit", "tokens_limit", "concurrent_requests_limit")
_NO_TENANT: Final = "none"
_DEPLOYMENT: Final = ""


class RedisFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`state` since `since`, in seconds since the epoch. `is_replica`: it is down since it is a read-only replica."""

    state: Literal["up", "down"] | WriteRefusal = "up"
    since: float | None = None
    is_replica: bool = False


class RecentTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of the last WINDOW minutes."""

    requests: int = 0
    errors: int = 0
    refused: Sequence[RefusedRow] = ()


class DeploymentFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`refuses_all`: why every request is refused. `now`: seconds since the epoch."""

    now: float
    engines: Sequence[EngineRow] = ()
    models: Sequence[ModelRow] = ()
    redis: RedisFacts = RedisFacts()
    traffic: RecentTraffic = RecentTraffic()
    refuses_all: str | None = None


def find_problems(facts: DeploymentFacts) -> tuple[Problem, ...]:
    """The worst first."""
    # Stable: within a severity, what explains the most comes first.
    return tuple(sorted(_problems(facts), key=lambda problem: _ORDER[problem.severity]))


def lasting_problems(facts: DeploymentFacts) -> tuple[Problem, ...]:
    """The same without traffic, in words that do not change while a problem lasts: without times and counts."""
    engines = [replace(engine, since=None, failures=0) for engine in facts.engines]
    redis = replace(facts.redis, since=None)
    return find_problems(replace(facts, engines=engines, redis=redis, traffic=RecentTraffic()))


def _problems(facts: DeploymentFacts) -> Iterator[Problem]:
    if facts.refuses_all is not None:
        yield Problem(severity="critical", kind="router", words=f"every request is refused: {facts.refuses_all}")
    yield from _model_problems(facts)
    yield from _redis_problems(facts.redis, facts.now)
    for engine in facts.engines:
        yield from _engine_problems(engine, facts.now)
    yield from _traffic_problems(facts.traffic)


_OF_TENANT: Final = ("_limit", "_budget", "tenant_queue_full")
"""Ends of reasons for which a tenant is refused, and not the deployment's state."""


def in_service(engine: EngineRow) -> bool:
    """Whether it may get requests. One that is not checked yet may."""
    return engine.state in ("up", "unknown") and not engine.drained and engine.breaker != "open"


def is_well(engine: EngineRow) -> bool:
    """Nothing is wrong with it, though it may be drained or asleep."""
    return engine.asleep or (engine.state in ("up", "unknown") and engine.breaker != "open")


def _since(at: float | None, now: float) -> str:
    """In UTC: the reader may be in another time zone than the router."""
    if at is None:
        return ""
    form = "%H:%M:%S" if now - at < _DAY else "%Y-%m-%d %H:%M:%S"
    return f" since {time.strftime(form, time.gmtime(at))} UTC"


# -- models and engines -----------------------------------------------------------------------------------------------


def _model_problems(facts: DeploymentFacts) -> Iterator[Problem]:
    engines: dict[str, list[EngineRow]] = {model.name: [] for model in facts.models}
    for engine in facts.engines:
        engines.setdefault(engine.model, []).append(engine)
    serving = {name for name, each in engines.items() if any(map(in_service, each))}
    fallbacks = {model.name: model.fallback for model in facts.models}
    for model in facts.models:
        own = engines[model.name]
        # Of a model whose requests wait for an engine to start, no engine is missed.
        if model.name in serving or model.asleep:
            continue
        if not own:
            state = f"{model.name} has no engine"
        elif all(engine.drained for engine in own):
            state = f"every engine of {model.name} is drained"
        else:
            state = f"no engine of {model.name} is in service"
        fallback = _serving_fallback(model.name, fallbacks, serving)
        words = f"{state}: {'only hits are served' if fallback is None else f'its fallback {fallback} answers'}"
        severity: Severity = "critical" if fallback is None else "warning"
        yield Problem(severity=severity, kind="model", subject=model.name, words=words)


def _serving_fallback(model: str, fallbacks: Mapping[str, str | None], serving: Collection[str]) -> str | None:
    seen = {model}
    fallback = fallbacks[model]
    while fallback is not None and fallback not in seen:
        if fallback in serving:
            return fallback
        seen.add(fallback)
        fallback = fallbacks.get(fallback)
    return None


def _engine_problems(engine: EngineRow, now: float) -> Iterator[Problem]:
    since = _since(engine.since, now)
    if engine.asleep:  # meant to be down, see router.flow.attempts.waking
        return
    if engine.state == "refused":
        words = f"engine {engine.name} refuses the router's key{since}{_after_colon(engine.cause)}"
    elif engine.state == "down":
        words = f"engine {engine.name} is down{since}{_after_colon(engine.cause)}{_failures(engine)}"
    elif engine.breaker == "open":
        words, since = f"engine {engine.name} gets no requests: its breaker is open, after failures", ""
    elif engine.breaker == "half-open":
        # No more than a warning: without a request, it stays so though the engine may be well.
        words = f"engine {engine.name} gets one request to try it: its breaker was open, after failures"
        yield Problem(severity="warning", kind="engine", subject=engine.name, words=words)
        return
    elif engine.drained:
        words = f"engine {engine.name} is drained"
        yield Problem(severity="info", kind="engine", subject=engine.name, words=words)
        return
    else:
        return
    at = engine.since if since else None
    if engine.drained:  # it may be out of service for work on it
        yield Problem(severity="warning", kind="engine", subject=engine.name, words=f"{words}; it is drained", since=at)
    else:
        yield Problem(severity="critical", kind="engine", subject=engine.name, words=words, since=at)


def _after_colon(cause: str) -> str:
    return f": {cause}" if cause else ""


def _failures(engine: EngineRow) -> str:
    """Attempts: a request that failed here may have been answered by another engine, or by this one later."""
    return f"; {pluralize(engine.failures, 'attempt')} failed" if engine.failures else ""


# -- Redis ------------------------------------------------------------------------------------------------------------


def _redis_problems(redis: RedisFacts, now: float) -> Iterator[Problem]:
    if redis.state == "up":
        return
    since = _since(redis.since, now)
    if redis.state == "down":
        words = f"Redis is {'a read-only replica' if redis.is_replica else 'down'}{since}: every request is a bypass"
    else:
        words = f"{REFUSALS_IN_WORDS[redis.state]}{since}: nothing is stored"
    yield Problem(severity="critical", kind="redis", words=words, since=redis.since)


# -- traffic ----------------------------------------------------------------------------------------------------------


def _traffic_problems(traffic: RecentTraffic) -> Iterator[Problem]:
    # Of a flood that is refused, the requests of the others must not look few.
    taken = max(traffic.errors, traffic.requests - sum(row.count for row in traffic.refused))
    if traffic.errors >= MIN_REFUSED and traffic.errors > _MIN_ERROR_SHARE * taken:
        failed = f"{traffic.errors:,} of {pluralize(taken, 'request')} failed in {WINDOW} minutes"
        yield Problem(severity="critical", kind="router", words=failed)
    by_tenant: dict[str, list[RefusedRow]] = {}
    for row in traffic.refused:
        is_of_deployment = row.tenant != _NO_TENANT and not row.reason.endswith(_OF_TENANT)
        by_tenant.setdefault(_DEPLOYMENT if is_of_deployment else row.tenant, []).append(row)
    totals = {tenant: sum(row.count for row in rows) for tenant, rows in by_tenant.items()}
    for tenant in sorted(totals, key=lambda name: -totals[name]):
        if totals[tenant] > MIN_REFUSED:
            words = _refused_words(tenant, totals[tenant], by_tenant[tenant])
            if tenant == _DEPLOYMENT:
                yield Problem(severity="warning", kind="router", words=words)
                continue
            yield Problem(severity="warning", kind="tenant", subject=tenant, words=words)


def _refused_words(tenant: str, total: int, rows: Sequence[RefusedRow]) -> str:
    most = max(rows, key=lambda row: row.count).reason
    count = f"{total:,} refused in {WINDOW} minutes"
    if tenant == _DEPLOYMENT:
        sums: dict[str, int] = {}
        for row in rows:
            sums[row.tenant] = sums.get(row.tenant, 0) + row.count
        of = max(sums, key=lambda name: sums[name])
        return f"{pluralize(total, 'request')} refused in {WINDOW} minutes, most with {most}, most of tenant {of}"
    if tenant == _NO_TENANT:
        return f"{count} without a tenant, most with {most}"
    if most in _LIMITS:
        return f"tenant {tenant} is being limited: {count}, most by {most}"
    if most.endswith("_budget"):
        return f"tenant {tenant} has used up its budget: {count}, most by {most}"
    return f"tenant {tenant} has its share of a full queue: {count}"
