"""The invariants of a request that ends its engines report what violates them, and nothing else."""

import pytest

from tests.simulation.clock import CLOCK
from tests.simulation.engine_losses import engines_survive, may_have_ended_engines
from tests.simulation.history import FaultRecord, History, Poison, RequestRecord, SimulatedGeneration

QUESTION = 4


@pytest.fixture(autouse=True)
def _at_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CLOCK, "now", 0.0)


@pytest.fixture
def history() -> History:
    made = History(2)
    made.poison = Poison("acme", QUESTION, stream=True)
    return made


def killed(
    history: History, engine: str, started: float, ended: float, router: str = "r1", *, question: int = QUESTION
) -> None:
    CLOCK.now = started
    made = SimulatedGeneration(len(history.generations) + 1, question, router, engine, 3, True)
    made.ended, made.outcome = ended, "killed"
    history.generations.append(made)


def asked(
    history: History, started: float, ended: float, code: str = "engine_lost", *, question: int = QUESTION,
    status: int = 200, cache: str = "MISS",
) -> RequestRecord:  # fmt: skip
    CLOCK.now = started
    made = RequestRecord(len(history.requests) + 1, "acme", question, "r1", stream=True)
    made.status, made.cache, made.ending, made.ended = status, cache, "failed", ended
    made.body = [b'{"error":{"code":"%b"}}' % code.encode()]
    history.requests.append(made)
    return made


def exited(history: History, at: float, *, breaks: bool = False) -> None:
    CLOCK.now = at
    history.faults.append(FaultRecord("exit", "e1", at, breaks=breaks, leases=1))


def test_a_third_engine_is_detected_at_once_and_later(history: History) -> None:
    asked(history, 0.0, 3.0)
    killed(history, "e1", 0.0, 1.0)
    killed(history, "e2", 1.001, 2.0)
    assert engines_survive(history) == []
    killed(history, "e3", 2.001, 3.0)
    assert len(engines_survive(history)) == 1
    killed(history, "e4", 9.0, 10.0)
    assert len(engines_survive(history)) == 2


def test_each_router_counts_for_itself(history: History) -> None:
    asked(history, 0.0, 3.0)
    killed(history, "e1", 0.0, 1.0)
    killed(history, "e2", 1.001, 2.0)
    killed(history, "e3", 2.001, 3.0, router="r2")
    assert engines_survive(history) == []


def test_two_requests_at_one_process_lose_one_engine(history: History) -> None:
    asked(history, 0.0, 3.0)
    for _ in range(2):
        killed(history, "e1", 0.0, 1.0)
    killed(history, "e2", 1.001, 2.0)
    assert engines_survive(history) == []


def test_requests_at_the_same_time_may_lose_engines_before_the_router_knows(history: History) -> None:
    for _ in range(2):
        asked(history, 0.0, 3.0)
    killed(history, "e1", 0.0, 1.0)
    killed(history, "e2", 0.0, 1.0)
    killed(history, "e3", 1.001, 2.0)
    assert engines_survive(history) == []
    killed(history, "e4", 2.5, 2.6)
    assert len(engines_survive(history)) == 1


def test_a_router_may_miss_an_engine_that_ends_when_its_only_client_leaves(history: History) -> None:
    killed(history, "e1", 0.0, 1.0)
    killed(history, "e2", 1.001, 2.0)
    client = asked(history, 0.0, 2.02)
    killed(history, "e3", 8.0, 9.0)
    assert len(engines_survive(history)) == 1
    client.ending = "left"
    assert engines_survive(history) == []
    client.ended = 3.0  # long after the router has seen that the engine ended
    assert len(engines_survive(history)) == 1


def test_a_router_misses_no_engine_while_another_client_waits(history: History) -> None:
    killed(history, "e1", 0.0, 1.0)
    killed(history, "e2", 1.001, 2.0)
    asked(history, 0.0, 2.02).ending = "left"
    asked(history, 0.5, 2.5)
    killed(history, "e3", 8.0, 9.0)
    assert len(engines_survive(history)) == 1


def test_an_error_need_not_count_an_engine_that_the_router_may_have_missed(history: History) -> None:
    killed(history, "e1", 0.0, 1.0)
    killed(history, "e2", 3.0, 4.0)
    client = asked(history, 0.0, 1.02)
    asked(history, 3.0, 5.0, "engine_failed")
    assert len(engines_survive(history)) == 1
    client.ending = "left"
    assert engines_survive(history) == []


def test_an_error_that_does_not_say_why_is_detected(history: History) -> None:
    killed(history, "e1", 0.0, 1.0)
    killed(history, "e2", 1.001, 2.0)
    asked(history, 3.0, 3.1)
    asked(history, 0.0, 1.9, "engine_failed")  # it ended before the second engine
    asked(history, 3.0, 3.1, "engine_failed", cache="COALESCED")  # the error of its leader
    assert engines_survive(history) == []
    asked(history, 3.0, 3.1, "engine_failed")
    assert len(engines_survive(history)) == 1


def test_a_client_that_reads_slowly_gets_the_error_later_than_its_router_decided_it(history: History) -> None:
    killed(history, "e1", 0.0, 1.0)
    killed(history, "e2", 1.1, 1.5)
    client = asked(history, 0.0, 2.0, "engine_failed")
    assert len(engines_survive(history)) == 1
    client.pause = 0.2
    assert engines_survive(history) == []


def test_where_no_engine_is_left_that_is_the_error(history: History) -> None:
    killed(history, "e1", 0.0, 1.0)
    killed(history, "e2", 1.001, 2.0)
    asked(history, 3.0, 3.1, "no_engine", status=503)
    assert len(engines_survive(history)) == 1
    exited(history, 2.0, breaks=True)
    assert engines_survive(history) == []


def test_another_request_may_be_stopped_only_if_it_was_asked_when_two_engines_ended(history: History) -> None:
    exited(history, 1.0)
    exited(history, 2.0)
    asked(history, 0.5, 1.5, question=1)
    assert not may_have_ended_engines(history, asked(history, 2.1, 3.0, question=1))
    assert may_have_ended_engines(history, asked(history, 1.5, 3.0, question=1))
    assert not may_have_ended_engines(history, asked(history, 1.5, 3.0, "engine_failed", question=1))


def test_it_may_be_stopped_too_if_a_router_went_on_with_it_after_its_client_had_left(history: History) -> None:
    asked(history, 0.4, 0.5, question=1).ending = "left"
    for engine, ended in (("e1", 1.0), ("e2", 1.5)):
        exited(history, ended)
        killed(history, engine, ended - 0.4, ended, question=2)
    again = asked(history, 2.0, 2.1, question=1)
    assert not may_have_ended_engines(history, again)  # what ended were generations of another question
    killed(history, "e1", 0.4, 1.0, question=1)
    assert not may_have_ended_engines(history, again)
    killed(history, "e2", 1.1, 1.5, question=1)
    assert may_have_ended_engines(history, again)


def test_it_may_be_lost_on_its_way_to_an_engine_when_its_client_has_left(history: History) -> None:
    asked(history, 0.4, 0.5, question=1).ending = "left"
    exited(history, 0.501)
    exited(history, 2.0)
    again = asked(history, 2.0, 2.1, question=1)
    assert may_have_ended_engines(history, again)
    history.requests[0].ending = "failed"
    assert not may_have_ended_engines(history, again)


def test_a_follower_gets_the_error_of_its_leader_whose_router_knew_of_fewer_losses(history: History) -> None:
    asked(history, 0.0, 2.0)
    killed(history, "e1", 0.0, 1.0)
    killed(history, "e2", 1.001, 2.0)
    asked(history, 3.0, 5.0, "engine_failed", status=502)
    (wrong,) = engines_survive(history)
    assert "engine_failed" in wrong
    killed(history, "e3", 3.1, 4.9, router="r2")
    assert engines_survive(history) == []
