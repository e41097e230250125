"""The shares of engines in the requests of their model."""

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.routing.traffic_share import REST, WHOLE, choose_cohort, order_cohorts, request_point

SESSIONS = [f"session-{number}" for number in range(20_000)]


def session_point(session: str, model: str = "llama") -> float:
    return request_point(model, "acme", session, "key")


@pytest.mark.parametrize("shares", [{"canary": 10}, {"a": 5, "b": 20}, {"a": 30, "b": 70}, {"canary": 1}, {"a": 0}])
def test_each_cohort_gets_its_share_of_the_sessions(shares: Mapping[str, int]) -> None:
    counts = Counter(choose_cohort(shares, session_point(each), {REST, *shares}) for each in SESSIONS)
    for name, share in {**shares, REST: WHOLE - sum(shares.values())}.items():
        # Four standard deviations of a binomial distribution; the hash has no seed, so this never varies.
        tolerance = 4 * (share * (WHOLE - share) / len(SESSIONS)) ** 0.5
        assert 100 * counts[name] / len(SESSIONS) == pytest.approx(share, abs=tolerance)


def test_requests_without_a_session_are_divided_by_their_keys() -> None:
    points = [request_point("llama", "acme", None, f"rh:1:acme:llama:{n}") for n in range(20_000)]
    assert sum(point < 10 for point in points) / len(points) == pytest.approx(0.1, abs=0.01)


def test_a_session_keeps_its_cohort_whatever_it_asks() -> None:
    assert len({request_point("llama", "acme", "s", key) for key in ("a", "b", "c")}) == 1
    assert len({request_point(model, tenant, "s", "a") for model in "lm" for tenant in "ab"}) == 4


def test_a_larger_share_of_one_canary_keeps_the_sessions_that_it_has() -> None:
    def members(share: int) -> set[str]:
        return {each for each in SESSIONS if choose_cohort({"canary": share}, session_point(each), {"canary"})}

    def chosen(share: int) -> set[str]:
        both = {REST, "canary"}
        return {each for each in SESSIONS if choose_cohort({"canary": share}, session_point(each), both) == "canary"}

    assert chosen(5) < chosen(10) < chosen(50) < members(50)


@given(st.dictionaries(st.text("abcd", min_size=1, max_size=3), st.integers(0, 20), max_size=5), st.floats(0, 99.999))
def test_an_order_has_each_cohort_once(shares: Mapping[str, int], point: float) -> None:
    assert sorted(order_cohorts(shares, point)) == sorted([REST, *shares])


def test_the_rest_takes_over_first_and_a_standby_last() -> None:
    shares = {"small": 5, "large": 10, "standby": 0}
    assert order_cohorts(shares, 50.0) == [REST, "large", "small", "standby"]
    assert order_cohorts(shares, 3.0) == ["large", REST, "small", "standby"]
    assert choose_cohort(shares, 3.0, {REST, "small", "standby"}) == REST
    assert choose_cohort(shares, 50.0, {"small", "standby"}) == "small"
    assert choose_cohort(shares, 50.0, {"standby"}) == "standby"
    assert choose_cohort(shares, 3.0, set()) == "large"
