"""Each invariant reports a history that violates it, and no other."""

import json

import pytest

from tests.simulation import invariants
from tests.simulation.clock import CLOCK
from tests.simulation.history import (
    FOREVER,
    Ending,
    FaultRecord,
    History,
    RequestRecord,
    SimulatedGeneration,
    SimulatedPurge,
)
from tests.simulation.invariants import check


@pytest.fixture(autouse=True)
def _at_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CLOCK, "now", 0.0)


def generation(
    history: History, question: int = 1, *, started: float = 0.0, ended: float = 1.0, tokens: int = 3,
    tenant: str = "acme", engine: str = "e1",
) -> int:  # fmt: skip
    CLOCK.now = started
    made = SimulatedGeneration(len(history.generations) + 1, question, "r1", engine, tokens, True)
    made.tenant = tenant
    made.ended, made.outcome = ended, "whole"
    history.generations.append(made)
    return made.number


def record_request(
    history: History, of: int, ats: list[int], *, started: float = 0.0, ended: float = 1.0, done: bool = True,
    question: int = 1, tenant: str = "acme", cache: str = "MISS", stream: bool = True, ending: Ending = "complete",
) -> RequestRecord:  # fmt: skip
    CLOCK.now = started
    made = RequestRecord(len(history.requests) + 1, tenant, question, "r1", stream)
    made.status, made.cache, made.ending, made.ended = 200, cache, ending, ended
    words = [f"g{of}.{at} " for at in ats]
    if stream:
        events = [{"choices": [{"index": 0, "delta": {"content": word}}]} for word in words]
        made.body = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events] + [
            b"data: [DONE]\n\n"
        ] * done
    else:
        made.body = [json.dumps({"choices": [{"message": {"content": "".join(words)}}]}).encode()]
    history.requests.append(made)
    return made


def purged(history: History, started: float, returned: float, question: int | None = None) -> SimulatedPurge:
    CLOCK.now = started
    made = SimulatedPurge(len(history.purges) + 1, None, question)
    made.returned = returned
    history.purges.append(made)
    return made


def failed(history: History, started: float, ended: float, *, breaks: bool = True, leases: int = 1) -> None:
    CLOCK.now = started
    history.faults.append(FaultRecord("kill", "r1", ended, breaks=breaks, leases=leases))


def number_of(wrong: list[str]) -> list[str]:
    return [line[0] for line in wrong]


@pytest.fixture
def history() -> History:
    return History(2)


def test_a_generation_that_several_clients_get_in_either_form_is_correct(history: History) -> None:
    one = generation(history)
    record_request(history, one, [0, 1, 2])
    record_request(history, one, [0, 1, 2], stream=False)
    record_request(history, one, [0], done=False, ending="left")
    assert check(history) == []


@pytest.mark.parametrize("ats", [[1, 2], [0, 2], [0, 1, 1, 2], [0, 1]])
def test_a_gap_a_repetition_and_a_premature_end_are_detected(history: History, ats: list[int]) -> None:
    record_request(history, generation(history), ats)
    assert number_of(check(history)) == ["1"]


def test_two_generations_in_one_response_are_detected(history: History) -> None:
    one, two = generation(history), generation(history, started=1.2, ended=2.0)
    got = record_request(history, one, [0], ended=2.0, done=False)
    got.body += record_request(history, two, [1, 2], ended=2.0).body
    assert "1" in number_of(check(history))


def test_the_response_to_another_request_or_tenant_is_detected(history: History) -> None:
    one = generation(history)
    record_request(history, one, [0, 1, 2], question=2)
    assert number_of(check(history)) == ["1"]
    history.requests.clear()
    record_request(history, one, [0, 1, 2], tenant="acme")
    record_request(history, one, [0, 1, 2], tenant="beta")
    assert number_of(check(history)) == ["1"]


def test_bytes_that_no_engine_sent_are_detected(history: History) -> None:
    one = generation(history)
    record_request(history, one, [0, 1, 2]).body[0] = (
        b'data: {"choices": [{"delta": {"content": "g1.0 nonsense "}}]}\n\n'
    )
    assert number_of(check(history)) == ["1"]


def test_a_response_purged_before_its_request_started_is_detected(history: History) -> None:
    one = generation(history, started=0.0, ended=3.0)
    purge = purged(history, 0.5, 0.6)
    record_request(history, one, [0, 1, 2], started=0.6 + invariants.PURGE_DELAY + 0.1, ended=3.0, cache="COALESCED")
    assert number_of(check(history)) == ["2"]
    purge.recorded = False  # it was lost with the server that took it
    assert check(history) == []
    purge.recorded, purge.question = True, 2  # it was about something else
    assert check(history) == []
    purge.question, purge.of_standby = None, True  # of the key of another revision
    assert check(history) == []
    history.standby = history.generations[0].engine
    assert number_of(check(history)) == ["2"]


def test_a_request_within_a_second_of_the_purge_may_get_an_older_response(history: History) -> None:
    one = generation(history, started=0.0, ended=3.0)
    purged(history, 0.5, 0.6)
    record_request(history, one, [0, 1, 2], started=0.7, ended=3.0, cache="COALESCED")
    assert check(history) == []


def test_a_request_that_waits_for_nothing_is_detected(history: History) -> None:
    one = generation(history, ended=1.0)
    got = record_request(history, one, [0], ended=FOREVER, done=False, ending="")
    assert number_of(check(history)) == ["3"]
    got.ended = 1.0 + invariants.LEASE + invariants.ENDING_DELAY - 0.1
    assert check(history) == []


def test_a_failure_without_a_fault_is_detected_and_one_with_a_fault_is_not(history: History) -> None:
    one = generation(history)
    record_request(history, one, [0], done=False, ending="failed")
    assert number_of(check(history)) == ["3"]
    failed(history, 0.5, 0.6, breaks=False)
    assert number_of(check(history)) == ["3"]
    failed(history, 0.5, 0.6)
    assert check(history) == []


def test_two_concurrent_generations_are_detected_unless_a_lease_was_lost(history: History) -> None:
    one, two = generation(history), generation(history, started=0.2)
    record_request(history, one, [0, 1, 2])
    record_request(history, two, [0, 1, 2])
    assert number_of(check(history)) == ["4"]
    failed(history, 0.1, 0.2)
    assert check(history) == []


def test_concurrent_generations_of_two_tenants_are_correct_even_if_no_client_gets_a_token(history: History) -> None:
    generation(history, tenant="acme")
    generation(history, started=0.2, tenant="beta")
    assert check(history) == []


def test_concurrent_generations_of_two_revisions_are_correct_and_so_are_their_entries(history: History) -> None:
    history.standby = "e2"
    one, two = generation(history), generation(history, started=0.2, engine="e2")
    history.entries["acme", 1, b"key"] = [(1.0, one)]
    history.entries["acme", 1, b"key of the other revision"] = [(1.1, two)]
    for number in (one, two):
        record_request(history, number, [0, 1, 2], started=5.0, ended=5.1, cache="HIT")
    assert check(history) == []


def test_a_hit_that_has_not_been_in_redis_for_over_a_second_is_detected(history: History) -> None:
    one = generation(history, ended=0.5)
    history.entries["acme", 1, b"key"] = [(0.5, one), (1.0, 0)]
    record_request(history, one, [0, 1, 2], started=1.0 + invariants.PURGE_DELAY - 0.1, ended=2.0, cache="HIT")
    assert check(history) == []
    record_request(history, one, [0, 1, 2], started=1.0 + invariants.PURGE_DELAY + 0.1, ended=2.2, cache="HIT")
    assert number_of(check(history)) == ["5"]
