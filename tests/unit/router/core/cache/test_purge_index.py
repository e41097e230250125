"""An index of purges gives the same results as a scan of all of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.cache.entry_filter import EntryFilter, text_document_name
from router.core.cache.purge_index import BEGINNING, PurgeIndex, PurgePosition

TENANTS, MODELS, HASHES = ["acme", "beta"], ["llama", "phi"], ["0" * 16, "a" * 16]
DOCUMENTS = ["handbook", "faq", "x" * 200]
KEYS = [f"rh:1:{t}:{m}:{s}:{r}:{'7' * 32}" for t in TENANTS for m in MODELS for s in HASHES for r in HASHES]
NAMES = ["handbook", "faq", text_document_name("x" * 200), text_document_name("handbook")]

SCOPES = st.builds(
    EntryFilter,
    key=st.sampled_from([None, *KEYS[:3]]),
    tenant=st.sampled_from([None, *TENANTS]),
    model=st.sampled_from([None, *MODELS]),
    system=st.sampled_from([None, *HASHES]),
    rag=st.sampled_from([None, *HASHES]),
    document=st.sampled_from([None, *DOCUMENTS]),
    all=st.booleans(),
)
ENTRIES = st.tuples(st.sampled_from(KEYS), st.lists(st.sampled_from(NAMES), max_size=3).map(tuple))


def index_of(scopes: list[EntryFilter], limit: int = 1000) -> PurgeIndex:
    """Purges at the positions (1, 0), (2, 0) and so on."""
    index = PurgeIndex(limit)
    for number, scope in enumerate(scopes, 1):
        index.add((number, 0), scope)
    return index


@given(scopes=st.lists(SCOPES, max_size=12), entry=ENTRIES)
def test_the_last_purge_that_covers_an_entry_is_that_of_a_linear_search(
    scopes: list[EntryFilter], entry: tuple[str, tuple[str, ...]]
) -> None:
    key, documents = entry
    covering = [(number, 0) for number, scope in enumerate(scopes, 1) if scope.matches(key, documents)]
    assert index_of(scopes).last_covering(*entry) == max(covering, default=(0, 0))


def is_covered_linearly(scopes: list[EntryFilter], key: str, documents: tuple[str, ...], since: PurgePosition) -> bool:
    return any((number, 0) > since and scope.matches(key, documents) for number, scope in enumerate(scopes, 1))


@given(scopes=st.lists(SCOPES, max_size=12), entry=ENTRIES, since=st.integers(0, 12))
def test_the_index_covers_exactly_what_a_linear_search_finds(
    scopes: list[EntryFilter], entry: tuple[str, tuple[str, ...]], since: int
) -> None:
    assert index_of(scopes).covers(*entry, (since, 0)) is is_covered_linearly(scopes, *entry, (since, 0))


@given(scopes=st.lists(SCOPES, max_size=12), entry=ENTRIES, since=st.integers(0, 12), limit=st.integers(1, 6))
def test_an_index_that_drops_purges_covers_too_much_rather_than_too_little(
    scopes: list[EntryFilter], entry: tuple[str, tuple[str, ...]], since: int, limit: int
) -> None:
    index = index_of(scopes, limit)
    assert len(index) <= limit
    assert index.covers(*entry, (since, 0)) >= is_covered_linearly(scopes, *entry, (since, 0))


def test_a_filter_that_is_purged_repeatedly_takes_one_place_and_evicts_no_other() -> None:
    index = index_of([EntryFilter(tenant="beta"), *[EntryFilter(tenant="acme")] * 50], limit=2)
    assert len(index) == 2
    acme, beta = KEYS[0], KEYS[-1]
    assert [index.covers(acme, (), (mark, 0)) for mark in (0, 50, 51)] == [True, True, False]
    assert [index.covers(beta, (), (mark, 0)) for mark in (0, 1)] == [True, False]


@pytest.mark.parametrize("key", ["", "rh:1:purge:log", "foreign", KEYS[0] + ":more"])
def test_a_key_that_is_not_an_entrys_is_not_covered(key: str) -> None:
    assert not index_of([EntryFilter(all=True)]).covers(key, (), BEGINNING)


def test_an_empty_filter_covers_nothing() -> None:
    index = index_of([EntryFilter()])
    assert (len(index), index.covers(KEYS[0], (), BEGINNING)) == (0, False)
