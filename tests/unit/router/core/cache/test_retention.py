"""How long an entry that nobody asks for is kept, by its worth and by the memory in use."""

from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.cache.known_keys import KnownKeys
from router.core.cache.retention import MIN_LIFETIME, WorthAverage, probation_lifetime, worth

DAY = 90_000.0
MAX_KEYS = 4096
full_lifetimes = st.floats(1, 1e7)
worths = st.floats(1e-6, 1e6)
uses = st.floats(0, 2)
known = st.booleans()


@given(full=full_lifetimes, relative=worths, use=uses, asked=known)
def test_it_is_never_longer_than_without_probation_and_never_shorter_than_a_minute(
    full: float, relative: float, use: float, asked: bool
) -> None:
    lifetime = probation_lifetime(full, relative, use, asked_before=asked)
    assert min(full, MIN_LIFETIME) <= lifetime <= full


@given(full=full_lifetimes, one=worths, other=worths, use=uses, asked=known)
def test_what_saves_more_per_byte_is_kept_at_least_as_long(
    full: float, one: float, other: float, use: float, asked: bool
) -> None:
    less, more = sorted((one, other))
    assert probation_lifetime(full, less, use, asked_before=asked) <= probation_lifetime(
        full, more, use, asked_before=asked
    )


@given(full=full_lifetimes, relative=worths, one=uses, other=uses)
def test_the_fuller_redis_is_the_sooner_an_entry_leaves(full: float, relative: float, one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert probation_lifetime(full, relative, more) <= probation_lifetime(full, relative, less) * (1 + 1e-9)


@given(full=full_lifetimes, relative=worths, use=uses)
def test_what_was_asked_for_before_is_kept_at_least_as_long(full: float, relative: float, use: float) -> None:
    assert probation_lifetime(full, relative, use, asked_before=True) >= probation_lifetime(full, relative, use)


@given(relative=worths, use=st.floats(0, 0.5))
def test_nothing_leaves_early_while_half_of_the_memory_is_free(relative: float, use: float) -> None:
    assert probation_lifetime(DAY, relative, use) == DAY


def test_an_entry_of_average_worth_is_kept_for_15_minutes_in_a_full_redis_and_a_better_one_for_longer() -> None:
    assert isclose(probation_lifetime(DAY, 1.0, 1.0), 900)
    assert isclose(probation_lifetime(DAY, 4.0, 1.0), 3600)
    assert isclose(probation_lifetime(DAY, 1.0, 1.0, asked_before=True), 9000)
    assert probation_lifetime(DAY, 0.01, 1.0) == MIN_LIFETIME
    assert probation_lifetime(600, 1.0, 1.0) == 600  # a shorter TTL stays


@given(milliseconds=st.integers(0, 10**9), size=st.integers(0, 10**9))
def test_worth_is_positive_and_falls_with_the_size(milliseconds: int, size: int) -> None:
    assert 0 < worth(milliseconds, size + 1000) < worth(milliseconds, size) <= worth(milliseconds + 1, size)


@given(st.lists(worths, min_size=1, max_size=50))
def test_the_average_is_the_geometric_mean(values: list[float]) -> None:
    average = WorthAverage()
    relative = [average.relative(value) for value in values][-1]
    product = 1.0
    for value in values:
        product *= value ** (1 / len(values))
    assert relative == pytest.approx(values[-1] / product, rel=1e-6)


def test_the_average_follows_the_load() -> None:
    average = WorthAverage()
    for value in [1.0] * 2000 + [8.0] * 3000:
        relative = average.relative(value)
    assert relative == pytest.approx(1.0, rel=0.02)


def test_the_newest_keys_are_known_and_few_others_are_taken_for_known() -> None:
    keys = KnownKeys(MAX_KEYS)
    for number in range(MAX_KEYS + MAX_KEYS // 2):
        keys.add(f"key {number}")
    assert all(f"key {number}" in keys for number in range(MAX_KEYS // 2, MAX_KEYS + MAX_KEYS // 2))
    assert sum(f"other {number}" in keys for number in range(1000)) < 200


def test_the_oldest_keys_are_forgotten() -> None:
    keys = KnownKeys(MAX_KEYS)
    first = [f"first {number}" for number in range(1000)]
    for key in first:
        keys.add(key)
    for number in range(2 * MAX_KEYS + MAX_KEYS // 4):  # some find their bit set already and do not count
        keys.add(f"key {number}")
    assert sum(key in keys for key in first) < 200
