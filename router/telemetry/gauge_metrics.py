"""The gauges of engines, queues, batches and Redis. An unknown value has no sample; it is not 0."""

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import Gauge

from router.core.batches.batch_overview import OPEN_STATES, OpenState
from router.core.resilience.breaker import BreakerState
from router.telemetry.metric_objects import MetricObjects
from router.upstream.engine import Engine

_BREAKER_STATES: Final = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}
_REPORTED: Final = {
    "kv_cache_usage": "vllm_kv_cache_usage",
    "prefix_cache_hit_rate": "vllm_prefix_cache_hit_rate",
    "spec_acceptance_rate": "vllm_spec_acceptance_rate",
    "spec_tokens_per_step": "vllm_spec_tokens_per_step",
}
"""The gauge of each field of EngineGauges."""


class GaugeMetrics:
    """The gauges of one router process; the table of metrics says how those of several workers become one.

    - A value that becomes unknown loses its sample. Several workers cannot remove samples from their files: there it is
      NaN, and metrics_page leaves it out.
    """

    def __init__(self, objects: MetricObjects, *, removable: bool) -> None:
        """`removable`: this is the only process."""
        self._removable = removable
        gauges = objects.gauges
        self.queue_length = gauges["llm_requests_queued"]
        self.batch_lines = gauges["roundhouse_batch_lines_in_flight"]
        self._open_batches = gauges["roundhouse_batches_open"]
        self._breaker = gauges["roundhouse_breaker_state"]
        self._in_flight = gauges["llm_requests_in_flight"]
        self._up = gauges["roundhouse_engine_up"]
        self._asleep = gauges["roundhouse_engine_asleep"]
        self._redis_up = gauges["roundhouse_redis_up"]
        self._learned_speed = gauges["roundhouse_engine_tokens_per_second"]
        self._draft_pays = gauges["roundhouse_draft_pays"]
        self._reported = {field: gauges[name] for field, name in _REPORTED.items()}

    def _set_gauge(self, gauge: Gauge, value: float | None, *labels: str) -> None:
        if value is not None:
            gauge.labels(*labels).set(value)
        elif not self._removable:
            gauge.labels(*labels).set(math.nan)
        else:
            with contextlib.suppress(KeyError):  # some versions raise it if there is no such sample
                gauge.remove(*labels)

    def set_open_batches(self, batches: Mapping[OpenState, int] | None) -> None:
        """None: they are unknown. A state without batches has 0."""
        for state in OPEN_STATES:
            self._set_gauge(self._open_batches, None if batches is None else batches.get(state, 0), state)

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
