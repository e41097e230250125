"""The limit of an engine as its gauges show it: slow steps up, a queue, a share of it, and doubts."""

from math import inf
from typing import Final

import pytest

from router.core.batches.learned_limit import SHARE, LearnedLimit

READ: Final = 2.0
"""Seconds between two readings."""


class Engine:
    """With slots, people's requests, and lines of batches, of which as many begin as may."""

    def __init__(self, slots: int, people: int = 0) -> None:
        self.learned = LearnedLimit()
        self.slots, self.people, self.lines = slots, people, 0
        self.now = 0.0
        self.queues: list[float] = []
        self.most = 0

    def read(self, kv_cache_usage: float | None = None) -> None:
        self.now += READ
        load = self.people + self.lines
        waiting = max(0, load - self.slots)
        if waiting:
            self.queues.append(self.now)
        self.learned.on_reading(self.now, min(load, self.slots), waiting, kv_cache_usage, load)

    def run(self, seconds: float) -> None:
        """As many lines begin as may between two readings; those above the limit end."""
        end = self.now + seconds
        while self.now < end:
            self.read()
            more = int(self.learned.spare(self.people + self.lines))
            if waits := max(0, self.people + self.lines - self.slots):
                more = -max(waits, self.lines // 2)
            self.lines = max(0, self.lines + more)
            self.most = max(self.most, more)


def learned(*readings: tuple[float | None, float | None]) -> LearnedLimit:
    """After these values of running and waiting."""
    limit = LearnedLimit()
    for number, (running, waiting) in enumerate(readings):
        limit.on_reading(READ * number, running, waiting, None, int(running or 0))
    return limit


@pytest.mark.parametrize(
    ("readings", "limit", "most"),
    [
        ([], None, inf),
        ([(None, None)], None, inf),
        ([(0, 0)], None, 1),
        ([(0, None)], None, 1),
        ([(10, 0)], None, 11),
        ([(64, 0)], None, 68),
        ([(10, 0)] * 2, None, 12),
        ([(10, 0)] * 9, None, 14),
        ([(10, 0), (11, 0)], None, 12),
        ([(10, 0), (2, 0)], None, 6),
        ([(10, 0), (None, None)], None, 11),
        ([(10, 3)], 10, 0),
        ([(10, 3), (None, None)], 10, 0),
        ([(10, 3), (7, 0)], 10, 8),
        ([(10, 3), *[(7, 0)] * 9], 10, 8),
        ([(10, 3), (1, 0)], 10, 2),
        ([(10, 3), (12, 0)], 12, 9),
        ([(10, 3), (12, 1)], 12, 0),
        ([(10, 3), (9, 1)], 10, 0),
        ([(10, 3), (8, 0), (6, 1)], 6, 0),
        ([(0, 3)], None, 0),
        ([(1, 1), (0, 0)], 1, 1),
    ],
)
def test_readings_bound_the_requests(
    readings: list[tuple[float | None, float | None]], limit: float | None, most: float
) -> None:
    """`most`: the requests up to which lines begin."""
    found = learned(*readings)
    assert found.limit == limit
    assert found.spare(0) == most
    if 0 < most < inf:
        assert found.spare(most - 1) == 1
        assert found.spare(most) == 0
        assert found.spare(most + 2) < 0


def test_processes_that_share_an_engine_take_a_step_together() -> None:
    limits = [LearnedLimit() for _ in range(4)]
    begun = []
    running = 40
    for number in range(20):
        for limit in limits:
            limit.on_reading(READ * number, running, 0, None, running // 4)
        begun.append(sum(limit.spare(running) for limit in limits))
        running += int(begun[-1])
    assert sum(begun) / len(begun) == pytest.approx(1 + 3.5 / 2, abs=1.5), "not four times as many"


def test_a_queue_before_a_full_kv_cache_is_not_the_limit() -> None:
    for usage, limit in ((0.95, None), (0.5, 10), (None, 10)):
        found = LearnedLimit()
        found.on_reading(0.0, 10, 3, usage, 10)
        assert found.limit == limit
        assert found.spare(0) == 0


@pytest.mark.parametrize(("slots", "people"), [(4, 0), (8, 4), (32, 16), (256, 100)])
def test_lines_find_the_limit_in_small_steps_and_leave_a_quarter_of_it(slots: int, people: int) -> None:
    engine = Engine(slots, people)
    engine.run(170)
    assert engine.most <= max(4, slots // 4)
    assert len(engine.queues) == 1, "one queue shows it"
    assert engine.learned.limit == slots
    assert engine.people + engine.lines == pytest.approx(SHARE * slots, abs=1)


def test_an_engine_with_256_slots_is_in_use_after_a_few_minutes() -> None:
    engine = Engine(256)
    engine.run(180)
    assert engine.people + engine.lines >= 0.7 * 256


def test_a_limit_that_each_queue_confirms_is_doubted_ever_more_rarely() -> None:
    engine = Engine(32, 16)
    engine.run(8 * 3600)
    assert 5 <= len(engine.queues) <= 10
    gaps = [later - earlier for earlier, later in zip(engine.queues[1:-1], engine.queues[2:], strict=True)]
    assert gaps == sorted(gaps)
    assert gaps[-1] > 3600
    assert engine.learned.limit == pytest.approx(32, abs=16)


def test_a_queue_that_had_another_reason_does_not_hold_lines_down_for_ever() -> None:
    engine = Engine(32)
    engine.slots = 3
    engine.run(60)
    assert engine.learned.limit == 3
    engine.slots = 32
    engine.run(3600)
    assert engine.people + engine.lines >= 20


def test_without_lines_the_limit_is_not_forgotten() -> None:
    found = learned((32, 5))
    for number in range(1, 10_000):
        found.on_reading(READ * number, 10, 0, None, 10)
    assert found.limit == 32


def test_people_show_that_a_limit_is_higher() -> None:
    assert learned((3, 1), (20, 0)).limit == 20
