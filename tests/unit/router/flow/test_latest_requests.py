"""The last requests of a process, and the last of those that failed or were slow."""

from router.core.endpoints.chat import CHAT
from router.core.types import CacheStatus
from router.flow.exchange import AttemptFacts, Exchange
from router.flow.replicas.latest_requests import MAX_KEPT, LatestRequests
from router.net.client.errors import EngineError
from router.shared.status.status_documents import AttemptRow
from tests.support.inflight_factory import generation_record

NOW = 1_000_000.0


def requests() -> LatestRequests:
    return LatestRequests("router-1", lambda: 50.0)


def exchange(request_id: str) -> Exchange:
    return Exchange(endpoint=CHAT, request_id=request_id, started_at=10.0)


def test_each_request_is_taken_once() -> None:
    latest = requests()
    latest.record(exchange("a"), 11.0, False)
    latest.record(exchange("b"), 12.0, True)
    recent, notable = latest.take(NOW)
    assert [row.request_id for row in recent] == ["a", "b"]
    assert [row.request_id for row in notable] == ["b"]
    assert (recent[0].at, recent[0].ms) == (NOW - 39, 1000.0)
    assert latest.take(NOW) == ([], [])
    latest.record(exchange("c"), 13.0, False)
    assert [row.request_id for row in latest.take(NOW)[0]] == ["c"]
    everything = latest.take(NOW + 0.2, everything=True)
    assert [[row.request_id for row in rows] for rows in everything] == [["a", "b", "c"], ["b"]]
    assert everything[0][:2] == recent, "a row that is taken again is the same"


def test_of_many_requests_the_last_are_kept_and_one_that_failed_before_them() -> None:
    latest = requests()
    latest.record(exchange("failed"), 11.0, True)
    for number in range(MAX_KEPT + 10):
        latest.record(exchange(str(number)), 11.0, False)
    recent, notable = latest.take(NOW)
    assert [row.request_id for row in recent] == [str(number) for number in range(10, MAX_KEPT + 10)]
    assert [row.request_id for row in notable] == ["failed"]


def test_slow_requests_leave_failed_ones_in_their_place() -> None:
    latest, failed = requests(), exchange("failed")
    failed.status = 503
    latest.record(failed, 11.0, True)
    for number in range(MAX_KEPT + 10):
        latest.record(exchange(str(number)), 11.0, True)
    _, notable = latest.take(NOW)
    assert [row.request_id for row in notable] == ["failed", *map(str, range(10, MAX_KEPT + 10))]


def test_a_client_that_reads_slowly_or_leaves_the_queue_does_not_change_what_the_times_say() -> None:
    latest, slow, left = requests(), exchange("slow"), exchange("left")
    slow.generation = generation_record("acme")
    slow.generation.attempts = [AttemptFacts(engine="e1", sent_at=12.0)]
    slow.generation.ended_at = 14.0
    latest.record(slow, 60.0, False)
    left.generation = generation_record("acme")
    left.generation.queued_since, left.generation.waiting_since = 11.0, 10.5
    latest.record(left, 12.0, False)
    ((of_slow, of_left), _) = latest.take(NOW)
    assert of_slow.times == {"engine_ms": 2000.0}
    assert of_left.times == {"wait_ms": 1500.0, "queue_ms": 1000.0}


def test_a_row_has_the_times_the_attempts_and_whose_generation_it_shared() -> None:
    latest, shared = requests(), exchange("follower")
    shared.cache_status, shared.lookup_seconds = CacheStatus.COALESCED, 0.001
    shared.generation = generation = generation_record("acme", request_id="leader")
    generation.queue_seconds = 1.5
    generation.attempts = [AttemptFacts(engine="e1", sent_at=12.0), AttemptFacts(engine="e2", sent_at=13.0)]
    generation.attempts[0].failed_before_token(EngineError("timeout", "no first token", detail="x" * 500), 12.5)
    latest.record(shared, 15.0, False)
    ((row,), _) = latest.take(NOW)
    assert row.times == {"lookup_ms": 1.0, "queue_ms": 1500.0, "engine_ms": 2000.0}
    failed, answered = row.attempts
    assert (failed.engine, failed.result, failed.ms) == ("e1", "timeout", 500.0)
    assert failed.message.startswith("no first token: xxx")
    assert len(failed.message) == 160
    assert answered == AttemptRow(engine="e2", result="ok")
    assert row.shared_with == "leader"


def test_a_row_stays_the_same_when_the_clock_is_set() -> None:
    latest = requests()
    latest.record(exchange("before"), 11.0, True)
    (before,), _ = latest.take(NOW)
    latest.record(exchange("after"), 12.0, False)
    (after,), _ = latest.take(NOW + 3600)
    assert (before.at, after.at) == (NOW - 39, NOW + 3600 - 38)
    assert latest.take(NOW + 3600, everything=True)[0] == [before, after]
    assert latest.kept(NOW + 3600) == [after, before]
