"""The requests that wait for an engine."""

import pytest

from router.core.resilience.signs_of_life import CheckResult
from router.net.client.errors import EngineError, is_refused
from router.net.client.transport import HTTPTransport
from router.upstream.engine_watch import EngineWatch
from tests.support.ports import free_port

DOWN = CheckResult.DOWN


class Exchange:
    def __init__(self, heard_at: float, *, has_response: bool, bound: bool = False) -> None:
        self.heard_at = heard_at
        self.has_response = has_response
        self.bound = bound
        self.failure: str | None = None

    def is_bound(self) -> bool:
        return self.bound

    def abort(self, failure: EngineError | None = None) -> None:
        self.failure = failure.reason if failure is not None else "none"


def watch_of(*exchanges: Exchange, now: float = 100.0) -> EngineWatch:
    watch = EngineWatch(lambda: now)
    for exchange in exchanges:
        watch.begin(exchange)
    return watch


def test_when_two_checks_have_failed_silent_requests_end_and_those_that_get_bytes_do_not() -> None:
    silent, stuck, working = (
        Exchange(10, has_response=False),
        Exchange(50, has_response=True),
        Exchange(100, has_response=True),
    )
    watch = watch_of(silent, stuck, working)
    watch.on_check(DOWN)
    assert (watch.has_lost_requests, watch.abort_lost()) == (False, 0)
    watch.on_check(DOWN)
    assert (watch.has_lost_requests, watch.abort_lost()) == (True, 2)
    assert [exchange.failure for exchange in (silent, stuck, working)] == ["lost", "lost", None]


def test_a_request_that_no_other_engine_can_take_over_stays_with_an_engine_that_fails_its_checks() -> None:
    bound, other = Exchange(10, has_response=True, bound=True), Exchange(10, has_response=True)
    watch = watch_of(bound, other)
    watch.on_check(DOWN)
    watch.on_check(DOWN)
    assert watch.abort_lost() == 1
    assert [bound.failure, other.failure] == [None, "lost"]


def test_a_request_that_has_ended_is_not_kept() -> None:
    ended = Exchange(10, has_response=False)
    watch = watch_of(ended)
    watch.end(ended)
    watch.on_check(DOWN)
    watch.on_check(DOWN)
    assert not watch.has_lost_requests


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (Exchange(20, has_response=True), "slow"),
        (Exchange(20, has_response=False), "timeout"),  # it was only sent then
        (Exchange(10.5, has_response=True), "timeout"),
    ],
)
@pytest.mark.parametrize("ended", [False, True])
def test_a_timeout_is_not_the_engines_failure_if_another_request_got_bytes_meanwhile(
    other: Exchange, reason: str, *, ended: bool
) -> None:
    late = Exchange(10, has_response=False)
    watch = watch_of(late, other)
    if ended:
        watch.end(other)
    assert watch.timed_out(late).reason == reason


async def test_a_refused_connection_is_told_from_an_engine_that_does_not_answer() -> None:
    async with HTTPTransport() as transport:
        with pytest.raises(EngineError) as caught:
            await transport.send(
                ("http", "127.0.0.1", free_port(), ""), b"", connect_timeout=5, head_timeout=5, total_timeout=5
            )
    assert is_refused(caught.value)
    assert not is_refused(EngineError("connect", "cannot connect"))
