"""The headers that tell how a response was produced."""

import pytest

from router.api.inference.response_headers import ResponseHeaders
from router.core.endpoints.chat import CHAT
from router.core.types import BypassReason, CacheStatus
from router.flow.exchange import Exchange


def exchange(number: int = 1) -> Exchange:
    facts = Exchange(endpoint=CHAT, request_id=f"r{number}", started_at=0.0)
    facts.engine, facts.task, facts.key, facts.status = "e", "chat", f"rh:1:k{number}", 200
    return facts


def hit(number: int = 1) -> Exchange:
    facts = exchange(number)
    facts.cache_status, facts.age, facts.ttl, facts.from_local_cache = CacheStatus.HIT, number, 10 - number, True
    return facts


def lines(response_headers: ResponseHeaders, facts: Exchange) -> list[bytes]:
    rendered = response_headers.render(facts)
    assert rendered.endswith(b"\r\n")
    return rendered[:-2].split(b"\r\n")


def test_each_response_of_a_kind_has_its_own_id_key_and_age() -> None:
    response_headers = ResponseHeaders()
    for number in (1, 2):
        assert lines(response_headers, hit(number)) == [
            b"x-request-id: r%d" % number,
            b"x-cache-key: rh:1:k%d" % number,
            b"cache-status: roundhouse; hit; ttl=%d; detail=local" % (10 - number),
            b"age: %d" % number,
            b"x-cache: HIT",
            b"x-task: chat",
            b"x-engine: e",
            b"content-type: application/json",
        ]


def test_kinds_of_responses_are_not_confused() -> None:
    response_headers = ResponseHeaders()
    response_headers.render(hit())
    missed = exchange()
    missed.cache_status, missed.miss_reason = CacheStatus.MISS, "new"
    assert not [line for line in lines(response_headers, missed) if line.startswith(b"age:")]
    missed.stream = True
    assert b"content-type: text/event-stream; charset=utf-8" in lines(response_headers, missed)
    missed.status = 502
    assert b"content-type: application/json" in lines(response_headers, missed)
    missed.fallback_model, missed.adjusted_fields = "m", ("seed", "logprobs")
    assert {b"x-fallback: m", b"x-adjusted: seed, logprobs"} < {*lines(response_headers, missed)}


def test_a_bypassed_response_shows_no_key() -> None:
    facts = exchange()
    facts.cache_status, facts.bypass_reason = CacheStatus.BYPASS, BypassReason.NO_STORE
    rendered = lines(ResponseHeaders(), facts)
    assert {b"x-cache-reason: no-store", b"cache-status: roundhouse; fwd=bypass; detail=no-store"} < {*rendered}
    assert not [line for line in rendered if line.startswith(b"x-cache-key:")]


def test_a_value_is_unchanged_whatever_characters_it_has() -> None:
    facts = hit()
    facts.engine = "100%b %"
    assert b"x-engine: 100%b %" in lines(ResponseHeaders(), facts)


@pytest.mark.parametrize("injected", ["a\r\nx: y", "a\nx: y", "a\rx: y", "a\0", "\r", "\n"])
def test_no_value_becomes_another_header(injected: str) -> None:
    """A stored entry names its engine, and other programs may write to Redis."""
    response_headers = ResponseHeaders()
    facts = hit()
    facts.engine = injected
    for _ in range(2):
        with pytest.raises(RuntimeError):
            response_headers.render(facts)
