"""How often an address may fail to log in."""

from router.api.access.login_limiter import MAX_FAILURES, WINDOW, LoginLimiter


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_address_waits_until_its_oldest_failure_is_a_window_ago() -> None:
    clock = Clock()
    limiter = LoginLimiter(clock)
    for _ in range(MAX_FAILURES):
        assert limiter.retry_after("a") == 0
        limiter.record_failure("a")
        clock.now += 1
    assert limiter.retry_after("a") == WINDOW - MAX_FAILURES
    assert limiter.retry_after("b") == 0
    clock.now = WINDOW
    assert limiter.retry_after("a") == 0
    limiter.record_failure("a")
    assert limiter.retry_after("a") == 1


def test_addresses_are_bounded_and_the_oldest_is_forgotten_first() -> None:
    limiter = LoginLimiter(Clock())
    for _ in range(MAX_FAILURES):
        for address in ("first", "second"):
            limiter.record_failure(address)
    for number in range(1023):
        limiter.record_failure(f"{number}")
    assert limiter.retry_after("first") == 0
    assert limiter.retry_after("second") > 0
