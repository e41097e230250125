"""Which engine a request is sent to next."""

from collections.abc import Sequence

from router.core.resilience.failover import Failover
from router.core.resilience.retry import MAX_ATTEMPTS


class Trial:
    """Engines are words; those of the model m begin with an m. `down` are blocked."""

    def __init__(self, *models: str) -> None:
        self.down: set[str] = set()
        self.checks = 0
        self.failover = Failover([model.split() for model in models], sorted, self.down.__contains__, self._check)

    def _check(self) -> None:
        self.checks += 1

    def next(self, now: float = 0.0) -> Sequence[str] | None:
        upcoming = self.failover.next(now, 0.0)
        return None if upcoming is None else upcoming.engines

    def fail(self, engine: str, reason: str = "reset", retry_after: float | None = None) -> None:
        self.failover.tried(engine)
        self.failover.failed(engine, reason, retry_after, 0.0)


def test_the_engines_of_a_model_are_ranked_when_its_turn_comes_and_left_out_once_tried() -> None:
    trial = Trial("m2 m1", "n1")
    assert trial.next() == ("m1", "m2")
    trial.fail("m1", "timeout")
    assert trial.next() == ("m2",)


def test_the_next_model_comes_after_the_last_attempt_at_one() -> None:
    trial = Trial("m1", "n1")
    trial.next()
    for _ in range(MAX_ATTEMPTS):
        assert trial.next() == ("m1",)
        trial.fail("m1")
    assert trial.next() == ("n1",)
    trial.fail("n1", "timeout")
    assert trial.next() is None


def test_the_other_engines_of_a_model_can_be_left_out() -> None:
    trial = Trial("m1 m2 m3 m4", "n1")
    trial.next()
    trial.fail("m1")
    trial.fail("m2")
    trial.failover.leave_only("m1".__eq__)
    assert trial.next() == ("m1",)
    trial.fail("m1", "timeout")
    assert trial.next() == ("n1",)


def test_a_model_is_left_if_its_engines_have_no_room() -> None:
    trial = Trial("m1 m2", "n1")
    trial.next()
    trial.failover.leave_model()
    assert trial.next() == ("n1",)
    trial.failover.leave_model()
    assert trial.next() is None


def test_engines_that_are_blocked_get_no_attempt_and_none_later_either() -> None:
    trial = Trial("m1 m2", "n1 n2")
    trial.down |= {"m1", "m2", "n2"}
    assert trial.next() == ("n1",)
    trial.down.clear()
    trial.fail("n1", "timeout")
    assert trial.next() is None


def test_an_engine_that_gets_blocked_while_it_is_to_be_retried_is_left_out() -> None:
    trial = Trial("m1", "n1")
    trial.next()
    trial.fail("m1")
    trial.down.add("m1")
    assert trial.next() == ("n1",)


def test_an_engine_that_was_tried_without_a_failure_is_not_tried_again() -> None:
    trial = Trial("m1")
    trial.next()
    trial.failover.tried("m1")  # another request was its probe
    assert trial.next() is None


def test_a_retry_waits_for_the_retry_after_of_its_engine() -> None:
    trial = Trial("m1")
    trial.next()
    trial.fail("m1", "status-429", 1.5)
    upcoming = trial.failover.next(0.5, 0.0)
    assert upcoming is not None
    assert (upcoming.engines, upcoming.wait) == (("m1",), 1.0)


def test_without_engines_there_is_no_attempt() -> None:
    assert Trial().next() is None
    assert Trial("").next() is None


def test_whether_the_request_is_allowed_is_asked_for_each_model_also_after_its_last_attempt() -> None:
    trial = Trial("m1", "n1")
    trial.next()
    trial.fail("m1", "timeout")
    trial.next()
    assert trial.checks == 3  # m1, m1 again, n1
    trial.failover.leave_model()
    assert trial.next() is None
    assert trial.checks == 3
