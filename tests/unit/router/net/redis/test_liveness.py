"""The time until which a process may rely on receiving changes."""

from router.net.redis.liveness import PING_TIMEOUT, Liveness


def liveness_at(*instants: float) -> Liveness:
    """A Liveness whose clock returns these times, one per reading."""
    readings = iter(instants)
    return Liveness(lambda: next(readings))


def test_nothing_is_confirmed_before_a_ping_was_answered() -> None:
    liveness = liveness_at(10.0, 10.0)
    assert not liveness.alive()
    liveness.set_server_count(1)
    assert not liveness.alive()


def test_an_answered_ping_counts_from_when_it_was_sent() -> None:
    liveness = liveness_at(10.0 + PING_TIMEOUT - 0.01, 10.0 + PING_TIMEOUT)
    liveness.set_server_count(1)
    liveness.on_ping_reply(10.0, 0)
    assert liveness.alive()
    assert not liveness.alive()


def test_every_server_must_have_answered() -> None:
    liveness = liveness_at(10.1, 10.5, 10.5 + PING_TIMEOUT)
    liveness.set_server_count(2)
    liveness.on_ping_reply(10.0, 0)
    assert not liveness.alive()
    liveness.on_ping_reply(10.1, 1)
    liveness.on_ping_reply(10.4, 0)
    assert liveness.alive()
    assert not liveness.alive()


def test_a_pong_after_the_listener_has_ended_does_not_count() -> None:
    liveness = liveness_at(10.1)
    liveness.set_server_count(1)
    liveness.set_server_count(0)
    liveness.on_ping_reply(10.0, 0)
    assert not liveness.alive()
