"""The energy of an engine is divided among its requests, and none of it is counted twice."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.upstream.energy import MAX_WATTS, EnergyMeter, EnergyReading

events = st.lists(
    st.tuples(st.sampled_from(["start", "end", "power"]), st.integers(0, 20), st.integers(50, 700)), max_size=40
)


@given(events)
def test_the_requests_together_take_the_energy_of_the_engine_while_it_has_any(
    happened: list[tuple[str, int, int]],
) -> None:
    meter, now, watts = EnergyMeter(), 100.0, 300.0
    running: list[EnergyReading] = []
    expected = taken = 0.0
    meter.update(now, watts, 0)
    for kind, later, power in [*happened, *[("end", 3, 0)] * len(happened)]:
        expected += watts * later if running else 0.0
        now += later
        if kind == "start":
            running.append(meter.start(now))
        elif kind == "end" and running:
            joules = meter.joules_since(running.pop(0), now)
            assert joules is not None
            taken += joules
        elif kind == "power":
            watts = power
        meter.update(now, watts, len(running))
    assert taken == pytest.approx(expected)


def test_a_request_takes_an_equal_share_at_each_instant() -> None:
    meter = EnergyMeter()
    meter.update(0, 400, 1)
    first = meter.start(0)
    meter.update(2, 400, 4)  # three more arrive
    second = meter.start(2)
    meter.update(3, 600, 4)
    assert meter.joules_since(first, 5) == 2 * 400 + 100 + 2 * 150
    assert meter.joules_since(second, 5) == 100 + 2 * 150


def test_the_energy_is_unknown_if_the_power_was_unknown_at_any_time() -> None:
    meter = EnergyMeter()
    before = meter.start(0)
    assert meter.joules_since(before, 1) is None
    meter.update(1, 400, 1)
    assert meter.joules_since(before, 2) is None, "the power at its start is unknown"
    during = meter.start(2)
    assert meter.joules_since(during, 3) == 400
    meter.update(3, None, 1)
    assert meter.joules_since(during, 4) is None
    meter.update(4, 400, 1)
    assert meter.joules_since(during, 5) is None, "there was a gap"
    assert meter.joules_since(meter.start(4), 5) == 400


@pytest.mark.parametrize("watts", [0.0, -1.0, math.nan, math.inf, 10 * MAX_WATTS])
def test_an_impossible_power_is_unknown(watts: float) -> None:
    meter = EnergyMeter()
    meter.update(0, watts, 1)
    assert meter.joules_since(meter.start(1), 2) is None


def test_the_power_of_a_request_is_the_mean_of_the_last_ones() -> None:
    meter = EnergyMeter()
    meter.update(0, 400, 1)
    assert meter.start(0).take(2, seconds=2) == 800
    assert meter.watts_per_request == 400
    meter.update(2, 400, 8)  # more requests share it from now on
    for start in range(2, 1000):
        meter.start(start).take(start + 1, seconds=1)
    assert meter.watts_per_request == pytest.approx(50, rel=0.01)


def test_without_the_present_power_the_mean_is_unknown_too() -> None:
    meter = EnergyMeter()
    meter.update(0, 400, 1)
    meter.start(0).take(2, seconds=2)
    meter.update(2, None, 0)
    assert meter.watts_per_request is None
