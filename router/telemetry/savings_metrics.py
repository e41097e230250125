"""The metrics of what generations took and what the cache saved: GPU seconds and energy.

GPU seconds are seconds of generation, from sending a request to its engine to the end of the response. Requests that
an engine works on at the same time count each for itself, so these are not the seconds of the GPU's clock.
"""

from router.telemetry.metric_objects import MetricObjects


class SavingsMetrics:
    """Counts in batches: each method is called a few times a second, not for each request."""

    def __init__(self, objects: MetricObjects) -> None:
        self._gpu_seconds = objects.counters["llm_gpu_seconds_total"]
        self._joules = objects.counters["llm_energy_joules_total"]

    def record_saved(self, tenant: str, model: str, seconds: float, joules: float | None) -> None:
        """What the responses of requests took to generate that caused no generation; `joules`: None if unknown."""
        self._gpu_seconds.labels(tenant, model, "saved").inc(seconds)
        if joules is not None:
            self._joules.labels(tenant, model, "saved").inc(joules)

    def record_spent(self, tenant: str, model: str, seconds: float, joules: float | None) -> None:
        """`joules`: of those generations whose engine's power is known; None if there are none."""
        self._gpu_seconds.labels(tenant, model, "spent").inc(seconds)
        if joules is not None:
            self._joules.labels(tenant, model, "spent").inc(joules)
