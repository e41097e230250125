"""What the watchdog decides: a table of situations, and properties of all sequences of observations."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from engines.watchdog.decision import KEEP, Decision, WatchPolicy, WatchState, decide
from engines.watchdog.observation import Observation

STEP = 5.0
POLICY = WatchPolicy()
NORMAL = Observation(
    healthy=True, running=8, waiting=2, kv_cache_usage=0.6, generated=400, prefilled=100, preemptions=0, error_rate=0
)
SLOW = replace(NORMAL, generated=40, prefilled=10, waiting=14)


class Watched:
    """Feeds observations to `decide`, one each five seconds."""

    def __init__(self, policy: WatchPolicy = POLICY) -> None:
        self.policy = policy
        self.state = WatchState()
        self.now = 1000.0
        self.others_available = True
        self.decisions: list[tuple[float, Decision]] = []

    def see(self, observation: Observation, times: int = 1) -> list[Decision]:
        """What was decided, without the decisions to keep it."""
        before = len(self.decisions)
        for _ in range(times):
            self.now += STEP
            self.state, decision = decide(
                self.state, observation, self.policy, self.now, others_available=self.others_available
            )
            if decision.action != "keep":
                self.decisions.append((self.now, decision))
            else:
                assert decision == KEEP
        return [decision for _, decision in self.decisions[before:]]


def experienced(policy: WatchPolicy = POLICY) -> Watched:
    """Knows its baseline."""
    watched = Watched(policy)
    assert watched.see(NORMAL, times=60) == []
    return watched


@pytest.mark.parametrize(
    "change",
    [
        {"waiting": 0},
        {"waiting": None},
        {"running": 0, "waiting": 0, "generated": 0, "prefilled": 0},
        {"generated": None, "prefilled": None},
        {"healthy": False},
        {"hot": True},
        {"generated": 300.0},
        {"prefilled": 500.0},
    ],
    ids=["no work waits", "unknown queue", "idle", "unknown throughput", "unhealthy", "hot", "fast", "long prompts"],
)
def test_an_engine_is_kept_if(change: dict[str, Any]) -> None:
    assert experienced().see(replace(SLOW, **change), times=100) == []


def test_a_queue_that_is_empty_now_and_then_does_not_hide_a_slow_engine() -> None:
    watched = experienced()
    decisions = [
        decision for _ in range(8) for decision in [*watched.see(SLOW, 4), *watched.see(replace(SLOW, waiting=0))]
    ]
    assert [decision.reason for decision in decisions] == ["degraded"]


def test_a_queue_now_and_then_does_not_make_an_engine_slow_that_gets_little_work() -> None:
    watched = experienced()
    little = replace(NORMAL, generated=120, prefilled=30, waiting=0)
    for _ in range(100):
        assert watched.see(little, 4) == []
        assert watched.see(replace(little, waiting=1)) == []
    assert watched.state.baseline.best.generated > 380


def test_a_full_kv_cache_alone_is_no_reason() -> None:
    full = replace(NORMAL, kv_cache_usage=1.0, waiting=50, preemptions=3.0, time_to_first_token=20.0)
    assert experienced().see(full, times=100) == []


def test_an_engine_that_is_slow_while_work_waits_is_restarted_after_a_minute_and_the_reason_has_the_figures() -> None:
    watched = experienced()
    began = watched.now
    (decision,) = watched.see(replace(SLOW, kv_cache_usage=0.97, preemptions=2.0, time_to_first_token=9.0), times=20)
    assert (decision.action, decision.reason) == ("drain and restart", "degraded")
    assert 60 <= watched.decisions[0][0] - began <= 95
    assert decision.text.endswith("14 requests wait, KV cache 97%, 2.0 preemptions/s, errors 0%, first token 9.0 s"), (
        decision.text
    )
    assert "% of its baseline" in decision.text


def test_an_engine_that_computes_nothing_has_stalled() -> None:
    (decision,) = experienced().see(replace(SLOW, generated=0, prefilled=0), times=20)
    assert (decision.action, decision.reason) == ("drain and restart", "stalled")


def test_an_engine_that_fails_most_requests_is_restarted_however_fast_it_is() -> None:
    (decision,) = experienced().see(replace(NORMAL, error_rate=0.9), times=20)
    assert (decision.action, decision.reason) == ("drain and restart", "errors")


def test_the_only_engine_is_not_drained_and_a_person_is_told() -> None:
    watched = experienced()
    watched.others_available = False
    (decision,) = watched.see(SLOW, times=20)
    assert decision.action == "page"
    assert "no other engine of the model is available" in decision.text
    watched.others_available = True
    assert watched.see(SLOW, times=100) == [], "the cooldown holds after a page too"
    assert [decision.action for decision in watched.see(SLOW, times=30)] == ["drain and restart"]


def test_after_its_restarts_it_is_drained_and_an_hour_later_restarted_again() -> None:
    watched = experienced()
    decisions = watched.see(SLOW, times=500)
    assert [decision.action for decision in decisions[:3]] == ["drain and restart", "drain and restart", "drain"]
    assert "restarted 2 times in the last hour" in decisions[2].text
    watched.see(NORMAL, times=720)
    assert watched.see(SLOW, times=30)[0].action == "drain and restart"


def test_a_pause_of_the_slowness_starts_the_minute_again() -> None:
    watched = experienced()
    for _ in range(5):
        assert watched.see(SLOW, times=10) == []
        assert watched.see(NORMAL, times=10) == []


def test_an_engine_is_degraded_until_it_is_well_above_the_limit() -> None:
    between = replace(NORMAL, generated=240, prefilled=60)
    assert experienced().see(between, times=50) == [], "60 % alone is not degraded"
    watched = experienced()
    watched.see(SLOW, times=10)
    assert watched.state.degraded is not None
    assert [decision.reason for decision in watched.see(between, times=10)] == ["degraded"]


def test_an_engine_that_becomes_slower_does_not_teach_it() -> None:
    watched = experienced()
    baseline = watched.state.baseline.best
    watched.see(replace(NORMAL, generated=240, prefilled=60), times=500)
    assert watched.state.baseline.best.generated > 0.95 * baseline.generated


def test_the_baseline_survives_a_restart() -> None:
    watched = experienced()
    watched.see(replace(NORMAL, restarted=True, generated=None, prefilled=None))
    assert [decision.reason for decision in watched.see(SLOW, times=20)] == ["degraded"]


def test_a_healthy_engine_is_restarted_after_its_time_if_another_one_is_available() -> None:
    watched = Watched(WatchPolicy(restart_after=3600.0))
    watched.others_available = False
    assert watched.see(NORMAL, times=800) == []
    watched.others_available = True
    (decision,) = watched.see(NORMAL, times=100)
    assert (decision.action, decision.reason, decision.text) == (
        "drain and restart",
        "scheduled",
        "it has run for 1.1 h",
    )
    watched.see(replace(NORMAL, restarted=True))
    assert watched.see(NORMAL, times=700) == []
    assert [decision.reason for decision in watched.see(NORMAL, times=40)] == ["scheduled"]


def test_a_process_that_was_suspended_does_not_restart_an_engine_after_one_slow_reading() -> None:
    watched = experienced()
    watched.see(SLOW, times=6)
    assert watched.state.degraded is not None
    watched.state = replace(watched.state, degraded=None)
    watched.see(SLOW)
    watched.now += 3600
    assert watched.see(SLOW) == []


numbers = st.none() | st.sampled_from([0.0, 1.0, 40.0, 400.0])
observations = st.builds(
    Observation,
    healthy=st.sampled_from([True, True, True, False]), restarted=st.sampled_from([False, False, False, True]),
    hot=st.sampled_from([False, False, False, True]), running=numbers, waiting=numbers, generated=numbers,
    prefilled=numbers, error_rate=st.none() | st.sampled_from([0.0, 1.0]), kv_cache_usage=st.none() | st.just(1.0),
)  # fmt: skip
histories = st.lists(st.tuples(observations | st.just(SLOW) | st.just(NORMAL), st.integers(1, 200), st.booleans()))


@given(histories)
def test_whatever_is_seen_it_acts_only_on_waiting_work_within_its_limits_and_never_drains_the_last_engine(
    history: list[tuple[Observation, int, bool]],
) -> None:
    watched = experienced()
    for observation, times, others_available in history:
        watched.others_available = others_available
        for _ in range(times):
            for decision in watched.see(observation):
                assert observation.waiting
                assert not observation.hot
                assert observation.healthy
                assert others_available or decision.action == "page"
    acted = [at for at, _ in watched.decisions]
    assert all(later - at >= POLICY.cooldown for at, later in pairwise(acted))
    restarts = [at for at, decision in watched.decisions if decision.action == "drain and restart"]
    assert all(sum(0 <= later - at < 3600 for later in restarts) <= POLICY.max_restarts for at in restarts)
