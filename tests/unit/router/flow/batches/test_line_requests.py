"""What a line of a batch counts for: a look into the cache counts only if it finds a hit."""

from collections.abc import Sequence
from functools import partial
from math import inf

import pytest

from router.core.cache.cache_control import NO_DIRECTIVES, CacheControl
from router.core.endpoints.embeddings import EMBEDDINGS
from router.core.quota.rate_limit import LimitKind, Quota, RateLimitStatus
from router.core.types import BypassReason, CacheStatus
from router.errors import ApiError, not_cached
from router.flow.batches.line_requests import KEY_ID, LineAnswer, LineRequests
from router.flow.body_budget import BodyAllocation, BodyBudget
from router.flow.caller import Caller
from router.flow.exchange import Exchange
from router.flow.lookup import FullResponse
from router.shared.quota.rate_limits import Reservation
from tests.support.virtual_time import on_virtual_time

HIT = FullResponse(b"{}", stream=False)


class Handler:
    """`found`: the result of a lookup."""

    def __init__(self, found: CacheStatus | Exception | None) -> None:
        self.found = found
        self.controls: list[CacheControl] = []

    async def handle(self, exchange: Exchange, control: CacheControl, body: bytes, caller: Caller) -> FullResponse:
        self.controls.append(control)
        if isinstance(self.found, Exception):
            raise self.found
        exchange.cache_status = self.found or CacheStatus.MISS
        if self.found is CacheStatus.BYPASS:
            exchange.bypass_reason = BypassReason.REDIS_DOWN
        if self.found in (None, CacheStatus.BYPASS) and control.only_if_cached:
            raise not_cached()
        return HIT


class Limits:
    """`left`: requests that the tenant may have."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.asked = 0

    def has_limits(self, tenant: str) -> bool:
        return True

    async def reserve(self, tenant: str) -> Reservation:
        self.asked += 1
        exceeded: LimitKind | None = "requests" if self.asked > self.left else None
        status = RateLimitStatus(exceeded=exceeded, retry_after_ms=7000)
        reservation = Reservation(None, status)
        reservation.quota = Quota(requests_per_minute=60)
        return reservation


class Lines:
    def __init__(self, found: CacheStatus | Exception | None, left: int = 10) -> None:
        self.handler, self.limits, self.budget = Handler(found), Limits(left), BodyBudget()
        self.recorded: list[Exchange] = []
        self.requests = LineRequests(
            {EMBEDDINGS.path: self.handler}, self.limits, partial(BodyAllocation, self.budget, 1000),
            lambda exchange, _: self.recorded.append(exchange), lambda _: True,
        )  # fmt: skip

    async def find_cached(self, control: CacheControl = NO_DIRECTIVES, body: bytes = b"{}") -> LineAnswer | None:
        answer = await self.requests.find_cached(EMBEDDINGS, "acme", control, body)
        assert self.budget.allocated == 0
        return answer

    def facts(self) -> Sequence[tuple[int, str, str | None, CacheStatus | None, str | None]]:
        return [
            (each.status, each.outcome, each.error_reason, each.cache_status, each.key_id) for each in self.recorded
        ]


@pytest.mark.parametrize("status", [CacheStatus.HIT, CacheStatus.STALE])
@on_virtual_time
async def test_a_hit_is_one_request(status: CacheStatus) -> None:
    lines = Lines(status)
    answer = await lines.find_cached(CacheControl(max_stale=inf))
    assert answer is not None
    assert (answer.cache, answer.answer) == (status.value, HIT)
    assert lines.facts() == [(200, "complete", None, status, KEY_ID)]
    assert answer.request_id == lines.recorded[0].request_id
    assert lines.limits.asked == 1
    assert lines.handler.controls == [CacheControl(max_stale=inf, only_if_cached=True)]


@pytest.mark.parametrize("found", [None, ApiError(400, "No."), RuntimeError("a defect")])
@on_virtual_time
async def test_without_a_hit_nothing_counts(found: Exception | None) -> None:
    lines = Lines(found)
    assert await lines.find_cached() is None
    assert lines.facts() == []
    assert lines.limits.asked == 0


@on_virtual_time
async def test_a_lookup_that_redis_did_not_answer_is_made_again() -> None:
    lines = Lines(CacheStatus.BYPASS)
    answer = await lines.find_cached()
    assert answer is not None
    assert isinstance(answer.answer, ApiError)
    assert answer.answer.status == 503, "as from busy engines"
    assert lines.facts() == []


@on_virtual_time
async def test_a_body_for_which_there_is_no_memory_is_not_looked_up() -> None:
    lines = Lines(CacheStatus.HIT)
    assert await lines.find_cached(body=b"x" * 1001) is None
    assert lines.facts() == []
    assert not lines.handler.controls


@on_virtual_time
async def test_a_hit_of_a_tenant_over_its_limit_is_refused() -> None:
    lines = Lines(CacheStatus.HIT, left=0)
    answer = await lines.find_cached()
    assert answer is not None
    assert isinstance(answer.answer, ApiError)
    assert (answer.cache, answer.answer.status, answer.answer.retry_after) == ("", 429, 7)
    assert lines.facts() == [(429, "refused", answer.answer.reason, None, KEY_ID)]


@on_virtual_time
async def test_a_line_that_is_sent_counts_whatever_it_gets() -> None:
    for found, status in ((None, 200), (ApiError(400, "No."), 400)):
        lines = Lines(found)
        answer = await lines.requests.send(EMBEDDINGS, "acme", NO_DIRECTIVES, b"{}")
        assert [each.status for each in lines.recorded] == [status]
        assert answer.request_id == lines.recorded[0].request_id
        assert lines.limits.asked == 1
