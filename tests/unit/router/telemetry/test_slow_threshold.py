"""Which requests of a model count as slow."""

from math import inf

from router.telemetry.slow_threshold import SlowThreshold


def test_no_request_is_slow_until_enough_are_known() -> None:
    slow = SlowThreshold()
    slow.add([1.0] * 99)
    assert slow.seconds == inf
    slow.add([1.0])
    assert slow.seconds == 1.0


def test_one_in_a_hundred_requests_is_slow() -> None:
    slow = SlowThreshold()
    slow.add([number / 100 for number in range(1, 101)])
    assert slow.seconds == 1.0
    slow.add([number / 100 for number in range(1, 101)])
    assert sum(number / 100 > slow.seconds for number in range(1, 101)) <= 1


def test_the_threshold_follows_the_last_thousand_requests() -> None:
    slow = SlowThreshold()
    slow.add([60.0] * 500)
    for _ in range(10):
        slow.add([0.5] * 100)
    assert slow.seconds == 0.5
