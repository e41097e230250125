"""A tenant that is refused without cause is noticed."""

from tests.chaos.rate_limit_model import RateLimitModel

REQUESTS, CONCURRENT = "429 rate_limit_exceeded requests", "429 rate_limit_exceeded rate_limit_error"


def test_a_refusal_below_the_request_limit_is_reported_and_one_above_it_is_not() -> None:
    usage = RateLimitModel()
    for at in range(60):
        usage.start_request("hooli", at / 10)
    assert len(usage.check_rejection("hooli", REQUESTS, 7.0)) == 1
    usage.start_request("hooli", 7.0)
    assert usage.check_rejection("hooli", REQUESTS, 7.0) == []
    assert len(usage.check_rejection("hooli", REQUESTS, 80.0)) == 1  # all of them are over a minute old


def test_a_refusal_below_the_concurrency_limit_is_reported_and_one_above_it_is_not() -> None:
    usage = RateLimitModel()
    first, *_ = [usage.start_request("umbrella", 1.0) for _ in range(2)]
    assert len(usage.check_rejection("umbrella", CONCURRENT, 1.0)) == 1
    usage.start_request("umbrella", 1.5)
    assert usage.check_rejection("umbrella", CONCURRENT, 1.5) == []
    RateLimitModel.end_request(first, 2.0)
    assert usage.check_rejection("umbrella", CONCURRENT, 3.0) == []  # that of a router that died counts for a while
    assert len(usage.check_rejection("umbrella", CONCURRENT, 9.0)) == 1


def test_a_refusal_for_a_limit_that_a_tenant_does_not_have_is_reported() -> None:
    assert len(RateLimitModel().check_rejection("hooli", "429 rate_limit_exceeded tokens", 1.0)) == 1
    assert RateLimitModel().check_rejection("umbrella", "429 rate_limit_exceeded tokens", 1.0) == []
    assert RateLimitModel().check_rejection("umbrella", "complete", 1.0) == []
