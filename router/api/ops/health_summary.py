"""The document of /healthz: whether this router process is well, and what is not."""

import datetime as dt
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from router.core.resilience.breaker import BreakerState
from router.flow.replicas.router_snapshot import BREAKER_STATES, model_rows
from router.shared.connection.redis_writes import RedisWrites
from router.shared.status.problems import DeploymentFacts, RedisFacts, find_problems, lasting_problems
from router.shared.status.status_documents import EngineRow, Problem
from router.upstream.catalog import Catalog
from router.upstream.engine import Engine


class EngineHealth(NamedTuple):
    engine: Engine
    breaker: BreakerState
    asleep: bool


class HealthSummary:
    """`document` and the status of its response.

    The page needs no key. So it has nothing of tenants, and of an engine's messages only why a check failed.
    """

    def __init__(
        self, catalog: Catalog, breaker_state: Callable[[str], BreakerState], redis_writes: RedisWrites,
        refuses_all: Callable[[], str | None], last_check: Callable[[], float | None],
    ) -> None:  # fmt: skip
        """`refuses_all`: why every request is refused. `last_check`: of the engines, in seconds since the epoch."""
        self._catalog = catalog
        self._breaker_state = breaker_state
        self._redis_writes = redis_writes
        self._refuses_all = refuses_all
        self._last_check = last_check

    def document(self) -> tuple[dict[str, Any], int]:
        """503 if no engine is up, since then only hits can be served, or if nothing is.

        The engines of a model that is asleep do not count: they are meant to be down.
        """
        engines = self._engines()
        wanted = [each.engine for each in engines if not each.asleep]
        any_open = any(each.breaker is BreakerState.OPEN for each in engines)
        redis, refuses_all = self._redis_writes.redis_state, self._refuses_all()
        all_drained = self._catalog.all_drained
        problems = find_problems(self._facts(engines))
        is_any_critical = any(problem.severity == "critical" for problem in problems)
        if refuses_all is not None or (wanted and not any(engine.up for engine in wanted)):
            status = "unhealthy"
        elif redis == "up" and not all_drained and all(engine.up for engine in wanted) and not is_any_critical:
            status = "healthy"
        else:
            status = "degraded"
        usages = [
            each.engine.gauges.kv_cache_usage for each in engines if each.engine.gauges.kv_cache_usage is not None
        ]
        last_check = self._last_check()
        summary = {
            "status": status,
            "reason": refuses_all or ("all engines are drained" if all_drained else None),
            "problems": problems,
            "circuit_breaker_open": any_open,
            "gpu_cache_usage_percent": round(100 * max(usages), 2) if usages else None,
            "last_check": dt.datetime.fromtimestamp(last_check, dt.UTC).isoformat() if last_check is not None else None,
            "engines": {each.engine.name: _engine_document(each) for each in engines},
            "redis": redis,
        }
        return summary, 503 if status == "unhealthy" else 200

    def lasting_problems(self) -> tuple[Problem, ...]:
        """For metrics, whose labels must not change from scrape to scrape."""
        return lasting_problems(self._facts(self._engines()))

    def _engines(self) -> list[EngineHealth]:
        asleep = self._catalog.asleep_engines(self._breaker_state)
        return [
            EngineHealth(engine, self._breaker_state(engine.name), asleep.get(engine.name, False))
            for engine in self._catalog.engines.values()
        ]

    def _facts(self, engines: list[EngineHealth]) -> DeploymentFacts:
        return DeploymentFacts(
            now=time.time(),
            engines=[_engine_row(each) for each in engines],
            models=model_rows(self._catalog, self._breaker_state),
            redis=RedisFacts(
                state=self._redis_writes.redis_state,
                since=self._redis_writes.since,
                is_replica=self._redis_writes.reaches_replica,
            ),
            refuses_all=self._refuses_all(),
        )


def _engine_document(health: EngineHealth) -> dict[str, Any]:
    engine, breaker, asleep = health
    return {
        "model": engine.model,
        "task": engine.task,
        "up": engine.up,
        "state": engine.state,
        "since": engine.since,
        "cause": engine.cause,
        "drained": engine.drained,
        "asleep": asleep,
        "breaker": breaker.value,
        "in_flight": engine.in_flight,
        "kv_cache_usage": engine.gauges.kv_cache_usage,
        "running": engine.gauges.running,
        "waiting": engine.gauges.waiting,
        "drafts": engine.drafts,
    }


def _engine_row(health: EngineHealth) -> EngineRow:
    engine = health.engine
    return EngineRow(
        name=engine.name, model=engine.model, task=engine.task, url=engine.url, state=engine.state,
        drained=engine.drained, breaker=BREAKER_STATES[health.breaker], asleep=health.asleep, since=engine.since,
        cause=engine.cause, failures=engine.failures,
    )  # fmt: skip
