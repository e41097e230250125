"""The home of a request: the same engine in all processes, and for each engine an equal share."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from router.core.routing.prefix_cache.affinity import conversation_home, rendezvous_weight, session_home

URLS = st.lists(st.text("abcdef.-0123456789", min_size=1, max_size=8), min_size=2, max_size=8, unique=True)
HOMES = st.lists(st.integers(1, 2**64 - 1), min_size=1, max_size=40, unique=True)


def home_of(home: int, urls: list[str]) -> str:
    return max(urls, key=lambda url: rendezvous_weight(home, url))


@given(URLS, HOMES)
def test_a_removed_engine_moves_only_its_own_share(urls: list[str], homes: list[int]) -> None:
    gone, *left = urls
    for home in homes:
        before = home_of(home, urls)
        assert home_of(home, left) == before or before == gone


def test_homes_spread_evenly() -> None:
    urls = [f"http://10.0.0.{number}:8000" for number in range(1, 5)]
    shares = Counter(home_of(session_home("acme", str(number)), urls) for number in range(4000))
    assert all(900 < count < 1100 for count in shares.values())


def test_weights_are_the_same_in_every_process() -> None:
    assert rendezvous_weight(7, "http://127.0.0.1:8001") == 9631611168830625381


def test_a_session_belongs_to_its_tenant() -> None:
    assert len({session_home("acme", "s1"), session_home("acme", "s2"), session_home("beta", "s1")}) == 3


def test_conversations_of_a_session_that_begin_alike_have_one_home() -> None:
    home = session_home("acme", "s1")
    assert conversation_home(home, 7) == conversation_home(home, 7)
    assert len({home, conversation_home(home, 0), conversation_home(home, 7), conversation_home(home + 1, 7)}) == 4
