"""The metrics of the announced engines, which their launchers report in Redis."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from router.shared.engines.announcements import AnnouncedEngine

_REASONS: Final = ("degraded", "stalled", "errors", "scheduled")
"""The watchdog's reasons to restart an engine. A launcher may report any text: each would be a series of its own."""


def announced_families(engines: Iterable[AnnouncedEngine]) -> list[Metric]:
    """All workers and replicas report the same values, which therefore must not be summed."""
    capacity = GaugeMetricFamily(
        "roundhouse_engine_capacity", "Share of its in-flight limit that the engine may get", labels=["engine"]
    )
    temperature = GaugeMetricFamily(
        "roundhouse_engine_temperature_celsius", "Highest temperature of the engine's GPUs", labels=["engine"]
    )
    power = GaugeMetricFamily(
        "roundhouse_engine_power_watts", "Power draw of the engine's GPUs", labels=["engine"], unit="watts"
    )
    restarts = CounterMetricFamily(
        "roundhouse_watchdog_restarts", "Restarts of the engine by the watchdog", labels=["engine", "reason"]
    )
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
