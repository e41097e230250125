"""What the records of a soak show."""

from lab.soak_verdict import Death, Failure, SoakSample, as_json, classify_failures, judge_soak
from lab.trend import Verdict

BROKEN, BUSY = "error event engine_failed", "HTTP 503 queue_full"


def samples(mb_per_hour: float = 0.0, descriptors_per_hour: float = 0.0, minutes: int = 30) -> list[SoakSample]:
    return [
        SoakSample(
            at=at, rss_mb=100, pss_mb=100, uss_mb=100 + at / 3600 * mb_per_hour + (at // 10) % 2,
            descriptors=round(50 + at / 3600 * descriptors_per_hour), threads=3, in_flight=5, metric_lines=300,
            redis_keys=10, redis_mb=2, redis_clients=3,
        )
        for at in range(0, minutes * 60, 10)
    ]  # fmt: skip


def test_a_request_during_which_an_engine_died_is_explained() -> None:
    explained, unexplained = classify_failures([Failure(8, 10.5, BROKEN)], [Death(10, "an engine")])
    assert explained == {"an engine": {BROKEN: 1}}
    assert not unexplained


def test_a_request_before_or_long_after_a_death_is_not_explained() -> None:
    failures = [Failure(8, 9.9, BROKEN), Failure(10.1, 11, BUSY), Failure(9, 14, BUSY)]
    explained, unexplained = classify_failures(failures, [Death(10, "an engine")])
    assert not explained
    assert unexplained == {BROKEN: 1, BUSY: 2}


def test_the_later_of_two_deaths_explains_a_failure() -> None:
    explained, _ = classify_failures([Failure(8, 12, BROKEN)], [Death(10, "Redis"), Death(11, "an engine")])
    assert list(explained) == ["an engine"]


def test_a_soak_without_growth_passes() -> None:
    findings = judge_soak(samples(), [], [], warm_up=600, processes=1, leases_left=0, failed_reloads=0)
    assert (findings.memory_verdict, findings.descriptors_verdict) == (Verdict.FLAT, Verdict.FLAT)
    assert findings.passed
    assert as_json(findings)["passed"]


def test_growing_memory_and_descriptors_do_not_pass() -> None:
    for growing in (samples(mb_per_hour=60), samples(descriptors_per_hour=90)):
        findings = judge_soak(growing, [], [], warm_up=600, processes=1, leases_left=0, failed_reloads=0)
        assert not findings.passed


def test_growth_before_the_end_of_the_warm_up_does_not_count() -> None:
    grown = [sample._replace(uss_mb=min(sample.at, 590)) for sample in samples()]
    findings = judge_soak(grown, [], [], warm_up=600, processes=1, leases_left=0, failed_reloads=0)
    assert findings.memory_verdict is Verdict.FLAT


def test_what_is_left_or_failed_without_a_cause_does_not_pass() -> None:
    for leases_left, failed_reloads, failures in ((1, 0, []), (0, 1, []), (0, 0, [Failure(1, 2, BUSY)])):
        findings = judge_soak(
            samples(), failures, [], warm_up=600, processes=1, leases_left=leases_left, failed_reloads=failed_reloads
        )
        assert not findings.passed


def test_a_short_soak_is_unknown_and_still_valid_json() -> None:
    findings = judge_soak(samples(minutes=1), [], [], warm_up=20, processes=2, leases_left=0, failed_reloads=0)
    assert findings.memory_verdict is Verdict.UNKNOWN
    assert as_json(findings)["memory_mb_per_hour"] == {
        "verdict": "unknown", "per_hour": None, "low": None, "high": None,
    }  # fmt: skip
