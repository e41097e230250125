"""The metrics of the announced engines, which their launchers report in Redis."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from prometheus_client.metrics_core import Metric

from router.shared.engines.announcements import AnnouncedEngine
from router.telemetry.metric_objects import counter_family, gauge_family

_REASONS: Final = ("degraded", "stalled", "errors", "scheduled")
"""The watchdog's reasons to restart an engine. A launcher may report any text: each would be a series of its own."""


def announced_families(engines: Iterable[AnnouncedEngine]) -> list[Metric]:
    """All workers and replicas report the same values, which therefore must not be summed."""
    capacity = gauge_family("roundhouse_engine_capacity")
    temperature = gauge_family("roundhouse_engine_temperature_celsius")
    power = gauge_family("roundhouse_engine_power_watts")
    restarts = counter_family("roundhouse_watchdog_restarts_total")
    for engine in engines:
        capacity.add_metric([engine.name], engine.capacity)
        if engine.temperature_celsius is not None:
            temperature.add_metric([engine.name], engine.temperature_celsius)
        if engine.power_watts is not None:
            power.add_metric([engine.name], engine.power_watts)
        by_reason: Counter[str] = Counter()
        for reason, count in engine.restarts.items():
            by_reason[reason if reason in _REASONS else "other"] += count
        for reason, count in by_reason.items():
            restarts.add_metric([engine.name, reason], count)
    return [capacity, temperature, power, restarts]
