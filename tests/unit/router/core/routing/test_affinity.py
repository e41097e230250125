"""Which replica is preferred: the same one for equal prefixes, with a bounded share of the load for each."""

from collections import Counter
from math import ceil
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.routing.affinity import LOAD_BOUND, SESSION_ID, is_within_load_bound, rendezvous_weight, session_home
from router.core.routing.ranking import EngineSnapshot, rank_engines

NAMES = st.lists(st.text("abcdef.-0123456789", min_size=1, max_size=8), min_size=2, max_size=8, unique=True)
HOME = st.integers(1, 2**64 - 1)
HOMES = st.lists(HOME, min_size=1, max_size=40, unique=True)


def preferred(home: int, names: list[str], loads: dict[str, int] | None = None) -> str:
    views = [EngineSnapshot(name, "any", True, (loads or {}).get(name, 0)) for name in names]
    return rank_engines("chat", views, home=home)[0].name


@given(NAMES, HOMES)
def test_a_removed_engine_moves_only_its_own_share(names: list[str], homes: list[int]) -> None:
    gone, *left = names
    for home in homes:
        before = preferred(home, names)
        assert preferred(home, left) == before or before == gone


@given(NAMES, HOMES)
def test_an_added_engine_takes_only_its_own_share(names: list[str], homes: list[int]) -> None:
    new, *there = names
    for home in homes:
        after = preferred(home, names)
        assert after in (new, preferred(home, there))


@given(NAMES, st.randoms(), HOME)
def test_the_order_of_the_configuration_does_not_matter(names: list[str], random: Random, home: int) -> None:
    other = list(names)
    random.shuffle(other)
    assert preferred(home, names) == preferred(home, other)


def test_homes_spread_evenly() -> None:
    names = [f"llama.{number}" for number in range(1, 5)]
    shares = Counter(preferred(session_home("acme", str(number)), names) for number in range(4000))
    assert all(900 < count < 1100 for count in shares.values())


def test_weights_are_the_same_in_every_process() -> None:
    assert rendezvous_weight(7, "http://127.0.0.1:8001") == 9631611168830625381


@given(NAMES, st.lists(st.sampled_from([1, 2, 3]), max_size=60))
def test_no_engine_gets_more_than_its_limit_in_any_sequence(names: list[str], homes: list[int]) -> None:
    loads = dict.fromkeys(names, 0)
    for home in homes:
        chosen = preferred(home, names, loads)
        mean = sum(load + 1 for load in loads.values()) / len(loads)
        assert loads[chosen] + 1 <= ceil(LOAD_BOUND * mean)
        loads[chosen] += 1


def test_one_home_fills_its_replica_first_and_then_the_next_heaviest() -> None:
    names = ["a", "b", "c"]
    ranked = sorted(names, key=lambda name: -rendezvous_weight(1, name))
    loads = dict.fromkeys(names, 0)
    chosen = []
    for _ in range(30):
        chosen.append(preferred(1, names, loads))
        loads[chosen[-1]] += 1
    assert chosen[0] == chosen[1] == ranked[0]
    assert loads[ranked[0]] > loads[ranked[1]] > loads[ranked[2]]


@given(st.lists(st.floats(1, 1000), min_size=1, max_size=9))
def test_some_engine_always_has_room(loads: list[float]) -> None:
    assert any(is_within_load_bound(load, loads) for load in loads)


def test_the_url_identifies_an_engine_and_its_name_does_not() -> None:
    def first(*names: str) -> str:
        views = [EngineSnapshot(name, "any", True, 0, url=f"http://10.0.0.{at}:8000") for at, name in enumerate(names)]
        return rank_engines("chat", views, home=5)[0].url

    assert first("llama.1", "llama.2", "llama.3") == first("llama.3", "llama.1", "llama.2")


def test_a_session_belongs_to_its_tenant() -> None:
    assert len({session_home("acme", "s1"), session_home("acme", "s2"), session_home("beta", "s1")}) == 3


@pytest.mark.parametrize("text", [b"", b"a" * 129, b"a b", b"a\tb", b"caf\xe9", b"a\n"])
def test_a_session_is_short_and_plain(text: bytes) -> None:
    assert SESSION_ID.fullmatch(text) is None
    assert SESSION_ID.fullmatch(b"user-17:chat/42.a_b+c=@d") is not None
