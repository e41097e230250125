"""When the requests of a load arrive, and what they ask."""

from collections import Counter
from itertools import islice, pairwise
from random import Random

import pytest

from benchmarks.arrivals import Kind, Mix, Phase, Zipf, arrival_times, parse_phases, seconds_of


def test_a_ramp_is_parsed_into_phases() -> None:
    assert parse_phases("50:30s, 200:1m") == [Phase(50, 30), Phase(200, 60)]


@pytest.mark.parametrize(
    "text", ["", "50", "50:", "50:30", "x:30s", "0:30s", "-1:30s", "50:0s", "1000000:1s", "nan:1s"]
)
def test_a_ramp_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_phases(text)


def test_a_duration_without_a_unit_is_refused_by_its_text() -> None:
    with pytest.raises(ValueError, match="'30' is not a duration"):
        seconds_of("30")


def test_constant_arrivals_have_equal_distances_in_each_phase() -> None:
    times = list(arrival_times([Phase(10, 1), Phase(100, 0.1)], None))
    assert times == pytest.approx([n / 10 for n in range(10)] + [1 + n / 100 for n in range(10)])


def test_poisson_arrivals_have_the_rates_of_their_phases_and_exponential_distances() -> None:
    times = list(arrival_times([Phase(100, 100), Phase(400, 100)], Random(1)))
    assert times == sorted(times)
    first = [time for time in times if time < 100]
    assert len(first) == pytest.approx(10_000, rel=0.05)
    assert len(times) - len(first) == pytest.approx(40_000, rel=0.05)
    gaps = [after - before for before, after in pairwise(first)]
    # 1 - 1/e of an exponential distribution is below its mean; of equal distances, none or all.
    assert sum(gap < 0.01 for gap in gaps) / len(gaps) == pytest.approx(0.632, abs=0.02)


def test_arrivals_are_not_computed_before_they_are_needed() -> None:
    assert len(list(islice(arrival_times([Phase(1000, 1e9)], Random(1)), 10))) == 10


def test_prompts_have_the_frequencies_of_a_zipf_distribution() -> None:
    zipf, rng = Zipf(1000, 1.1), Random(1)
    counts = Counter(zipf.draw(rng) for _ in range(50_000))
    total = sum((rank + 1) ** -1.1 for rank in range(1000))
    for rank in (0, 1, 9):
        assert counts[rank] / 50_000 == pytest.approx((rank + 1) ** -1.1 / total, rel=0.1)
    assert set(counts) <= set(range(1000))


def test_with_exponent_0_all_prompts_are_equally_frequent() -> None:
    zipf, rng = Zipf(4, 0), Random(1)
    counts = Counter(zipf.draw(rng) for _ in range(20_000))
    assert all(count == pytest.approx(5000, rel=0.1) for count in counts.values())


@pytest.mark.parametrize(("count", "exponent"), [(0, 1), (10_000_001, 1), (10, -1)])
def test_a_zipf_distribution_out_of_bounds_is_refused(count: int, exponent: float) -> None:
    with pytest.raises(ValueError, match="prompts"):
        Zipf(count, exponent)


def test_a_mix_has_its_shares() -> None:
    mix, rng = Mix(followers=0.2, new=0.3), Random(1)
    counts = Counter(mix.kind(rng, in_flight=3) for _ in range(20_000))
    assert counts[Kind.FOLLOWER] / 20_000 == pytest.approx(0.2, abs=0.02)
    assert counts[Kind.NEW] / 20_000 == pytest.approx(0.3, abs=0.02)


def test_without_a_request_in_flight_nothing_follows() -> None:
    assert Mix(followers=1.0).kind(Random(1), in_flight=0) is Kind.POPULAR
