"""Gauges: what is unknown has no sample."""

import math

import pytest
from prometheus_client import CollectorRegistry

from router.telemetry.gauge_metrics import GaugeMetrics
from router.telemetry.metric_objects import create_objects


@pytest.mark.parametrize("removable", [True, False])
def test_each_state_of_open_batches_has_a_sample_until_they_are_unknown(removable: bool) -> None:
    registry = CollectorRegistry()
    gauges = GaugeMetrics(create_objects(registry), removable=removable)

    def value(state: str) -> float | None:
        found = registry.get_sample_value("roundhouse_batches_open", {"state": state})
        return None if found is None or math.isnan(found) else found

    assert value("running") is None
    gauges.set_open_batches({"running": 2})
    assert (value("running"), value("paused"), value("outside_hours")) == (2, 0, 0)
    gauges.set_open_batches(None)
    gauges.set_open_batches(None)
    assert (value("running"), value("paused")) == (None, None)
