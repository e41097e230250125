"""Popularity of prompts, and the shares of hits that the simulation's two models of a cache give."""

from random import Random

import pytest

from lab.scale.caches import ExplicitCache, Generation, StationaryCache
from lab.scale.popularity import Popularity, Prompt, characteristic_time, stationary_shares

FOREVER = 1e9


@pytest.mark.parametrize("exponent", [0.7, 1.0, 1.2])
def test_prompts_are_drawn_with_their_shares(exponent: float) -> None:
    popularity, random = Popularity(1000, exponent, FOREVER), Random(3)
    ranks = [popularity.draw(random, 0.0).rank for _ in range(40_000)]
    assert ranks.count(1) / len(ranks) == pytest.approx(popularity.share(1), rel=0.05)
    assert sum(each <= 100 for each in ranks) / len(ranks) == pytest.approx(
        sum(popularity.share(rank) for rank in range(1, 101)), rel=0.02
    )
    assert max(ranks) <= 1000
    assert sum(popularity.share(rank) for rank in range(1, 1001)) == pytest.approx(1)
    assert sum(count * share for count, share in popularity.groups()) == pytest.approx(1)


def test_the_prompt_at_a_rank_is_replaced_once_in_its_lifetime() -> None:
    popularity = Popularity(1, 1.0, 10.0)
    numbers = [popularity.draw(Random(1), at / 10).number for at in range(1000)]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) in (10, 11)


@pytest.mark.parametrize("lifetime", [FOREVER, 20.0])
def test_an_explicit_cache_has_the_shares_of_the_formula(lifetime: float) -> None:
    ttl, generation, rate, random = 20.0, 0.5, 5.0, Random(5)
    popularity = Popularity(100, 1.0, lifetime)
    cache = ExplicitCache(1, ttl=ttl, local_entries=0)
    running: list[tuple[float, Prompt, Generation]] = []
    counts = {"hit": 0, "follower": 0, "miss": 0}
    now = 0.0
    while now < 20_000:
        now += random.expovariate(rate)
        while running and running[0][0] <= now:
            end, prompt, ended = running.pop(0)
            cache.end(prompt, ended, end)
        prompt = popularity.draw(random, now)
        found = cache.look_up(0, prompt, now)
        if found is False:
            started = Generation(0, now, 10)
            cache.begin(prompt, started)
            running.append((now + generation, prompt, started))
        counts["hit" if found is True else "miss" if found is False else "follower"] += 1
    expected = [0.0, 0.0, 0.0]
    for rank in range(1, 101):
        share = popularity.share(rank)
        shares = stationary_shares(rate * share, ttl=ttl, lifetime=lifetime, generation=generation)
        for index in range(3):
            expected[index] += share * shares[index]
    total = sum(counts.values())
    assert [counts[name] / total for name in ("hit", "follower", "miss")] == pytest.approx(expected, abs=0.01)


def test_a_local_cache_holds_what_its_characteristic_time_says() -> None:
    popularity, random, processes = Popularity(2000, 1.0, FOREVER), Random(9), 1
    explicit = ExplicitCache(processes, ttl=FOREVER, local_entries=100)
    for rank in range(1, 2001):  # everything is in Redis
        explicit.end(Prompt(rank, 0), Generation(0, 0.0, 1), 0.0)
    popularity = popularity._replace(lifetime=1e15)  # all numbers are 0
    local = 0
    for number in range(40_000):
        prompt = popularity.draw(random, 1.0)
        if explicit.is_local(0, prompt, 1.0):
            local += number >= 20_000
        else:
            explicit.look_up(0, prompt, 1.0)
    stationary = StationaryCache(random, popularity, rate=1e6, processes=processes, ttl=1e12, local_entries=100)
    assert local / 20_000 == pytest.approx(stationary.totals().local, abs=0.02)


def test_a_cache_for_everything_has_no_characteristic_time() -> None:
    assert characteristic_time([(10, 1.0)], 10) == float("inf")
    assert 0 < characteristic_time([(10, 1.0)], 5) < 2


def test_shares_add_up_to_one() -> None:
    for rate in (0.0, 1e-6, 0.1, 1e4):
        for lifetime in (10.0, FOREVER):
            shares = stationary_shares(rate, ttl=100.0, lifetime=lifetime, generation=2.0)
            assert shares.hit + shares.follower + shares.miss == pytest.approx(1)
            assert min(shares) >= 0
