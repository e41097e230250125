"""When the supervisor holds a worker for frozen."""

from router.supervisor import too_long_silence


def test_a_worker_that_has_stopped_sending_heartbeats_is_too_silent() -> None:
    assert too_long_silence(131.0, started_at=0.0, last_heartbeat=100.0, timeout=30.0) == 31.0
    assert too_long_silence(129.0, started_at=0.0, last_heartbeat=100.0, timeout=30.0) is None


def test_a_worker_may_start_for_longer_than_it_may_be_silent_afterwards() -> None:
    assert too_long_silence(31.0, started_at=0.0, last_heartbeat=None, timeout=30.0) is None
    assert too_long_silence(121.0, started_at=0.0, last_heartbeat=None, timeout=30.0) == 121.0
