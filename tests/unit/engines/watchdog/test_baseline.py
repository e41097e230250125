"""An engine's own throughput: when it is learnt, and what the present one is compared with."""

from engines.watchdog.baseline import MIN_OBSERVATIONS, Baseline
from engines.watchdog.observation import Observation


def seen(generated: float | None, prefilled: float = 0.0, *, running: float = 8, waiting: float = 0) -> Observation:
    return Observation(healthy=True, running=running, waiting=waiting, generated=generated, prefilled=prefilled)


def learnt(*observations: Observation) -> Baseline:
    baseline = Baseline()
    for observation in observations:
        baseline = baseline.follow(observation).learn(observation)
    return baseline


def repeated(observation: Observation, times: int = 60) -> list[Observation]:
    return [observation] * times


def after(baseline: Baseline, *observations: Observation) -> float | None:
    for observation in observations:
        baseline = baseline.follow(observation)
    return baseline.share


def test_a_baseline_counts_after_a_minute_under_load() -> None:
    few = learnt(*repeated(seen(100), MIN_OBSERVATIONS - 1))
    assert few.share is None
    assert few.learn(seen(100)).share is not None


def test_the_share_is_that_of_the_throughput_it_reached() -> None:
    baseline = learnt(*repeated(seen(400)))
    assert baseline.share is not None
    assert round(baseline.share, 2) == 1
    share = after(baseline, *repeated(seen(100, waiting=3)))
    assert share is not None
    assert round(share, 2) == 0.25


def test_one_slow_interval_is_no_low_throughput() -> None:
    share = after(learnt(*repeated(seen(400))), seen(0, waiting=3))
    assert share is not None
    assert share > 0.7


def test_longer_prompts_in_place_of_longer_answers_are_no_low_throughput() -> None:
    baseline = learnt(*repeated(seen(400, 100)))
    share = after(baseline, *repeated(seen(50, 900, waiting=3)))
    assert share is not None
    assert share > 1


def test_little_load_does_not_lower_the_baseline_and_a_queue_does_slowly() -> None:
    learnt_at_peak = learnt(*repeated(seen(400)))
    idle_later = learnt(*repeated(seen(400)), *repeated(seen(10), 1000))
    assert round(idle_later.best.generated) == round(learnt_at_peak.best.generated) == 400
    queued_later = learnt(*repeated(seen(400)), *repeated(seen(300, waiting=5), 1000))
    assert 300 < queued_later.best.generated < 330


def test_an_idle_engine_has_no_throughput_and_teaches_nothing() -> None:
    baseline = learnt(*repeated(seen(400)))
    idle = baseline.follow(seen(0, running=0)).learn(seen(0, running=0))
    assert idle.share is None
    assert (idle.best, idle.observations) == (baseline.best, baseline.observations)


def test_an_unknown_throughput_changes_nothing() -> None:
    baseline = learnt(*repeated(seen(400)))
    assert baseline.follow(seen(None)).learn(seen(None)) == baseline
