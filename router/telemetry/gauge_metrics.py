"""The gauges of engines, queues and Redis. An unknown value has no sample; it is not 0."""

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from router.core.resilience.breaker import BreakerState
from router.upstream.engine import Engine

_BREAKER_STATES: Final = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}
_REPORTED: Final = (
    ("kv_cache_usage", "vllm_kv_cache_usage", "Share of the engine's KV cache in use, 0 to 1"),
    ("prefix_cache_hit_rate", "vllm_prefix_cache_hit_rate", "Share of prompt tokens found in the prefix cache"),
    ("spec_acceptance_rate", "vllm_spec_acceptance_rate", "Share of draft tokens accepted by the target model"),
    ("spec_tokens_per_step", "vllm_spec_tokens_per_step", "Tokens per decoding step with the draft model"),
)


class GaugeMetrics:
    """The gauges of one router process; `multiprocess_mode` says how those of several workers become one.

    - A value that becomes unknown loses its sample. Several workers cannot remove samples from their files: there it is
      NaN, and metrics_page leaves it out.
    """

    def __init__(self, registry: CollectorRegistry, *, removable: bool) -> None:
        """`removable`: this is the only process."""
        self._removable = removable
        self._breaker = Gauge(
            "roundhouse_breaker_state", "Breaker state: 0 closed, 1 half-open, 2 open", ("engine",),
            multiprocess_mode="livemax", registry=registry,
        )  # fmt: skip
        self._in_flight = Gauge(
            "llm_requests_in_flight", "Requests in flight at an engine", ("engine",),
            multiprocess_mode="livesum", registry=registry,
        )  # fmt: skip
        self.queue_length = Gauge(
            "llm_requests_queued", "Requests waiting in the queue for an engine", ("model",),
            multiprocess_mode="livesum", registry=registry,
        )  # fmt: skip
        self._up = Gauge(
            "roundhouse_engine_up", "Whether the engine is up: 1 or 0", ("engine",),
            multiprocess_mode="livemin", registry=registry,
        )  # fmt: skip
        self._asleep = Gauge(
            "roundhouse_engine_asleep", "Whether requests of the engine's model wait for an engine to start: 1 or 0",
            ("engine",), multiprocess_mode="livemin", registry=registry,
        )  # fmt: skip
        self._redis_up = Gauge(
            "roundhouse_redis_up", "Whether Redis is up: 1 or 0", multiprocess_mode="livemin", registry=registry
        )
        by_task = ("engine", "task")
        self._learned_speed = Gauge(
            "roundhouse_engine_tokens_per_second", "Measured tokens per second of one request, by task", by_task,
            multiprocess_mode="livemostrecent", registry=registry,
        )  # fmt: skip
        self._draft_pays = Gauge(
            "roundhouse_draft_pays", "Whether the draft model speeds up the task: 1 or 0", by_task,
            multiprocess_mode="livemostrecent", registry=registry,
        )  # fmt: skip
        self._reported = {
            field: Gauge(name, help_, ("engine",), multiprocess_mode="livemostrecent", registry=registry)
            for field, name, help_ in _REPORTED
        }

    def _set_gauge(self, gauge: Gauge, value: float | None, *labels: str) -> None:
        if value is not None:
            gauge.labels(*labels).set(value)
        elif not self._removable:
            gauge.labels(*labels).set(math.nan)
        else:
            with contextlib.suppress(KeyError):  # some versions raise it if there is no such sample
                gauge.remove(*labels)

    def update(
        self, engines: Iterable[Engine], breaker_state: Callable[[str], BreakerState], *, redis_up: bool,
        asleep: Mapping[str, bool],
    ) -> None:  # fmt: skip
        """Takes over the results of a probe round; `breaker_state` maps an engine's name to its state.

        `asleep`: the engines of models with `wake`, see Catalog.asleep_engines.
        """
        self._redis_up.set(redis_up)
        for engine in engines:
            self._up.labels(engine.name).set(bool(engine.up))
            self._set_gauge(self._asleep, asleep.get(engine.name), engine.name)
            self._in_flight.labels(engine.name).set(engine.in_flight)
            self._breaker.labels(engine.name).set(_BREAKER_STATES[breaker_state(engine.name)])
            for field, gauge in self._reported.items():
                self._set_gauge(gauge, getattr(engine.gauges, field), engine.name)
            for task, draft in engine.drafts.items():
                self._set_gauge(self._learned_speed, draft.tokens_per_second, engine.name, task)
                self._set_gauge(self._draft_pays, draft.pays, engine.name, task)
