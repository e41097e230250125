"""Tokens of sessions: what makes one invalid."""

from hypothesis import given
from hypothesis import strategies as st

from router.api.access.auth import hash_key
from router.api.access.sessions import SESSION_SECONDS, Sessions

KEYS = [hash_key(b"one"), hash_key(b"two")]


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def sessions(*keys: str, secret: bytes = bytes(32), clock: Clock | None = None) -> Sessions:
    return Sessions(keys or KEYS, lambda: secret, clock or Clock())


def test_a_token_is_valid_for_its_time_at_every_router_with_its_key() -> None:
    clock = Clock()
    token = sessions(clock=clock).issue(KEYS[1])
    clock.now += SESSION_SECONDS - 1
    assert sessions(KEYS[1], clock=clock).is_valid(token)
    clock.now += 1
    assert not sessions(clock=clock).is_valid(token)


def test_a_token_that_was_issued_while_the_clock_was_ahead_gets_no_more_time_than_others() -> None:
    clock = Clock()
    slightly = sessions(clock=clock).issue(KEYS[0])
    clock.now += 365 * 86400
    far = sessions(clock=clock).issue(KEYS[0])
    clock.now = Clock.now - 60
    assert sessions(clock=clock).is_valid(slightly)
    assert not sessions(clock=clock).is_valid(far)


def test_a_token_of_another_secret_or_key_is_invalid() -> None:
    token = sessions().issue(KEYS[0])
    assert not sessions(secret=b"x" * 32).is_valid(token)
    assert not sessions(KEYS[1]).is_valid(token)


@given(position=st.integers(0, 63), character=st.sampled_from("ABCDabcd0123-_+/= \n"))
def test_a_token_with_a_changed_character_is_invalid(position: int, character: str) -> None:
    token = sessions().issue(KEYS[0])
    changed = token[:position] + character + token[position + 1 :]
    assert sessions().is_valid(changed) == (changed == token)


def test_a_token_in_the_other_alphabet_of_base64_is_invalid() -> None:
    tokens = [sessions(secret=bytes([number]) * 32).issue(KEYS[0]) for number in range(8)]
    changed = [token.replace("-", "+").replace("_", "/") for token in tokens]
    assert changed != tokens
    for number, token in enumerate(changed):
        assert sessions(secret=bytes([number]) * 32).is_valid(token) == (token == tokens[number])


@given(st.text(max_size=80))
def test_any_other_text_is_invalid(text: str) -> None:
    assert not sessions().is_valid(text)
