"""What generations took and what the cache saved: GPU seconds and energy, as metrics and in the savings ledger.

GPU seconds are seconds of generation, from sending a request to its engine to the end of the response. Requests that
an engine works on at the same time count each for itself, so these are not the seconds of the GPU's clock.
"""

from collections.abc import Callable
from typing import Final

from router.core.types import CacheStatus
from router.net.redis.pipeline import RedisPipeline
from router.shared.accounting.ledger import SavingsLedger
from router.telemetry.metric_objects import MetricObjects

_FROM_STORE: Final = (CacheStatus.HIT, CacheStatus.STALE)
_SAVING: Final = (*_FROM_STORE, CacheStatus.COALESCED)


class SavingsMetrics:
    """Counts in batches: each method is called a few times a second, not for each request."""

    def __init__(self, objects: MetricObjects, watts_per_request: Callable[[str], float | None]) -> None:
        """`watts_per_request`: of an engine by its name, see EnergyMeter; None is unknown."""
        self._ledger = SavingsLedger()
        self._watts_per_request = watts_per_request
        self._gpu_seconds = objects.counters["llm_gpu_seconds_total"]
        self._joules = objects.counters["llm_energy_joules_total"]

    def record_requests(
        self, tenant: str, model: str, cache: CacheStatus, engine: str | None,
        requests: int, tokens: int, seconds: float,
    ) -> None:  # fmt: skip
        """Requests of one kind; `tokens` and `seconds`: what their responses took to generate, all together."""
        ledger, saving = self._ledger, cache in _SAVING
        ledger.add(tenant, model, [("requests", requests)])
        if not saving:
            return
        ledger.add(tenant, model, [("hits" if cache in _FROM_STORE else "coalesced", requests)])
        ledger.add(tenant, model, [("saved_tokens", tokens), ("gpu_seconds_saved", seconds)])
        self._gpu_seconds.labels(tenant, model, "saved").inc(seconds)
        watts = self._watts_per_request(engine) if engine is not None else None
        if watts is not None:
            ledger.add(tenant, model, [("joules_saved", watts * seconds)])
            self._joules.labels(tenant, model, "saved").inc(watts * seconds)

    def record_generations(self, tenant: str, model: str, seconds: float, joules: float | None) -> None:
        """`joules`: of those whose engine's power is known; None if there are none."""
        self._ledger.add(tenant, model, [("gpu_seconds_spent", seconds), ("joules_spent", joules or 0.0)])
        self._gpu_seconds.labels(tenant, model, "spent").inc(seconds)
        if joules is not None:
            self._joules.labels(tenant, model, "spent").inc(joules)

    def flush_ledger(self, pipeline: RedisPipeline, now: float) -> None:
        self._ledger.flush(pipeline, now)
