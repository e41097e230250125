"""Which replica is preferred: the same one for equal prefixes, with a bounded share of the load for each."""

from collections import Counter
from math import ceil
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.routing.affinity import LOAD_BOUND, SESSION_ID, affinity_key, is_within_load_bound, rendezvous_weight
from router.core.routing.ranking import EngineSnapshot, rank_engines
from tests.support.factories import conversation, derive_key

NAMES = st.lists(st.text("abcdef.-0123456789", min_size=1, max_size=8), min_size=2, max_size=8, unique=True)
AFFINITIES = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=40, unique=True)


def preferred(affinity: str, names: list[str], loads: dict[str, int] | None = None) -> str:
    views = [EngineSnapshot(name, "any", True, (loads or {}).get(name, 0)) for name in names]
    return rank_engines("chat", views, affinity=affinity)[0].name


@given(NAMES, AFFINITIES)
def test_a_removed_engine_moves_only_its_own_share(names: list[str], affinities: list[str]) -> None:
    gone, *left = names
    for affinity in affinities:
        before = preferred(affinity, names)
        assert preferred(affinity, left) == before or before == gone


@given(NAMES, AFFINITIES)
def test_an_added_engine_takes_only_its_own_share(names: list[str], affinities: list[str]) -> None:
    new, *there = names
    for affinity in affinities:
        after = preferred(affinity, names)
        assert after in (new, preferred(affinity, there))


@given(NAMES, st.randoms(), st.text(max_size=8))
def test_the_order_of_the_configuration_does_not_matter(names: list[str], random: Random, affinity: str) -> None:
    other = list(names)
    random.shuffle(other)
    assert preferred(affinity, names) == preferred(affinity, other)


def test_affinities_spread_evenly() -> None:
    names = [f"llama.{number}" for number in range(1, 5)]
    shares = Counter(preferred(f"prefix:{number}", names) for number in range(4000))
    assert all(900 < count < 1100 for count in shares.values())


def test_weights_are_the_same_in_every_process() -> None:
    assert rendezvous_weight("prefix:acme:llama:1:2", "llama.1") == 1853363830267907420


@given(NAMES, st.lists(st.sampled_from(["hot", "warm", "cold"]), max_size=60))
def test_no_engine_gets_more_than_its_limit_in_any_sequence(names: list[str], chosen_names: list[str]) -> None:
    loads = dict.fromkeys(names, 0)
    for affinity in chosen_names:
        chosen = preferred(affinity, names, loads)
        mean = sum(load + 1 for load in loads.values()) / len(loads)
        assert loads[chosen] + 1 <= ceil(LOAD_BOUND * mean)
        loads[chosen] += 1


def test_one_affinity_fills_its_replica_first_and_then_the_next_heaviest() -> None:
    names = ["a", "b", "c"]
    ranked = sorted(names, key=lambda name: -rendezvous_weight("hot", name))
    loads = dict.fromkeys(names, 0)
    chosen = []
    for _ in range(30):
        chosen.append(preferred("hot", names, loads))
        loads[chosen[-1]] += 1
    assert chosen[0] == chosen[1] == ranked[0]
    assert loads[ranked[0]] > loads[ranked[1]] > loads[ranked[2]] > 0


@given(st.lists(st.floats(1, 1000), min_size=1, max_size=9))
def test_some_engine_always_has_room(loads: list[float]) -> None:
    assert any(is_within_load_bound(load, loads) for load in loads)


def test_the_system_prompt_and_the_documents_make_the_affinity_and_the_question_does_not() -> None:
    def affinity(system: str, question: str, document: str) -> str | None:
        request = conversation(("system", system), ("user", question), documents=[{"text": document}])
        return affinity_key(derive_key(request).parts, None)

    one = affinity("Be brief.", "Why?", "The sea.")
    assert one is not None
    assert one == affinity("Be brief.", "How?", "The sea.")
    assert len({one, affinity("Be kind.", "Why?", "The sea."), affinity("Be brief.", "Why?", "The sky.")}) == 3


def test_without_any_of_them_there_is_no_affinity() -> None:
    assert affinity_key(derive_key(conversation(("user", "Why?"))).parts, None) is None


def test_a_session_takes_precedence_over_the_prompt_and_belongs_to_its_tenant() -> None:
    key = derive_key(conversation(("system", "Be brief."), ("user", "Why?"))).parts
    other = derive_key(conversation(("user", "Something else"))).parts
    assert affinity_key(key, "s1") == affinity_key(other, "s1") != affinity_key(key, "s2")
    assert affinity_key(key, "s1") != affinity_key(msgspec.structs.replace(key, tenant="other"), "s1")


@pytest.mark.parametrize("text", [b"", b"a" * 129, b"a b", b"a\tb", b"caf\xe9", b"a\n"])
def test_a_session_is_short_and_plain(text: bytes) -> None:
    assert SESSION_ID.fullmatch(text) is None
    assert SESSION_ID.fullmatch(b"user-17:chat/42.a_b+c=@d") is not None
