"""The guarantees of LocalCache: it serves what Redis has, and stays within its size."""

from collections.abc import Callable
from itertools import permutations
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.core.types import Entry
from router.store.local_cache import LocalCache

LIMIT = 10_000
Fetched = Callable[[Entry | None], None]


def entry(text: str = "", **fields: Any) -> Entry:
    stored_entry = Entry(
        digest="d", body=text.encode(), stream=None, model="m", engine="e", task="chat",
        created=1000.0, ttl=60.0, prompt_tokens=1, completion_tokens=1, generation_ms=1,
    )  # fmt: skip
    return msgspec.structs.replace(stored_entry, **fields)


def listening(limit: int = LIMIT, now: float = 1000.0) -> LocalCache:
    """A local cache that receives every change."""
    copy = LocalCache(limit, clock=lambda: now)
    copy.enable()
    return copy


def fetch(copy: LocalCache, key: str, entry_: Entry | None) -> None:
    copy.begin_fetch(key)(entry_)


def lookup(copy: LocalCache, key: str) -> Entry | None:
    stored = copy.get(key)
    return stored.entry if stored is not None else None


# -- contents ---------------------------------------------------------------------------------------------------------


def test_a_fetched_entry_is_served_again() -> None:
    copy = listening()
    fetch(copy, "k", entry("x"))
    assert lookup(copy, "k") == entry("x")
    assert copy.get("another") is None


def test_a_missing_entry_is_not_cached() -> None:
    copy = listening()
    fetch(copy, "k", None)
    assert copy.get("k") is None
    assert (len(copy), copy.size) == (0, 0)


def test_the_least_recently_used_entry_is_evicted_first() -> None:
    copy = listening()
    third = "x" * (LIMIT // 3 - 1500)
    for key in "abc":
        fetch(copy, key, entry(third))
    assert copy.get("a") is not None, "so b is the least recently used"
    fetch(copy, "d", entry(third))
    assert [key for key in "abcd" if copy.get(key) is not None] == ["a", "c", "d"]


def test_an_entry_larger_than_the_cache_is_not_kept_and_evicts_nothing() -> None:
    copy = listening()
    fetch(copy, "small", entry("x"))
    fetch(copy, "large", entry("x" * LIMIT))
    assert copy.get("large") is None
    assert copy.get("small") is not None


@pytest.mark.parametrize(
    "large",
    [{"stream": b"x" * LIMIT}, {"documents": ("x" * LIMIT,)}, {"documents": tuple(map(str, range(200)))}],
    ids=["stream", "a-long-document", "many-documents"],
)
def test_all_parts_of_an_entry_that_can_be_large_count(large: dict[str, Any]) -> None:
    copy = listening()
    fetch(copy, "k", entry(**large))
    assert copy.get("k") is None


def test_a_repeated_entry_counts_once() -> None:
    copy = listening()
    for _ in range(3):
        fetch(copy, "k", entry("x"))
    once = copy.size
    copy.invalidate(["k"])
    assert (copy.size, len(copy)) == (0, 0)
    fetch(copy, "k", entry("x"))
    assert copy.size == once


@pytest.mark.parametrize(("now", "is_served"), [(1059, True), (1069, True), (1071, False)])
def test_an_expired_entry_is_not_served_even_before_redis_invalidates_it(now: float, is_served: bool) -> None:
    copy = listening(now=now)
    fetch(copy, "k", entry("x", ttl=60.0, stale=10.0))
    assert (copy.get("k") is not None) is is_served
    assert len(copy) == is_served


# -- changes ----------------------------------------------------------------------------------------------------------


def test_a_changed_entry_is_dropped_and_the_others_remain() -> None:
    copy = listening()
    for key in "abc":
        fetch(copy, key, entry(key))
    copy.invalidate(["a", "c", "unknown"])
    assert [key for key in "abc" if copy.get(key) is not None] == ["b"]


def test_an_entry_that_changed_while_it_was_fetched_is_not_kept() -> None:
    copy = listening()
    fetched = copy.begin_fetch("k")
    copy.invalidate(["k"])
    fetched(entry("old"))
    assert copy.get("k") is None


def test_a_fetch_that_starts_after_the_change_is_kept() -> None:
    copy = listening()
    copy.invalidate(["k"])
    fetch(copy, "k", entry("new"))
    assert lookup(copy, "k") == entry("new")


STEPS = ("first asks", "first has", "second asks", "second has", "changed")
ORDERS = [o for o in permutations(STEPS) if o.index(STEPS[0]) < o.index(STEPS[1]) and o.index(STEPS[2]) < o.index(STEPS[3])]  # fmt: skip  # noqa: E501 - one thought


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_of_two_fetches_none_that_saw_the_old_entry_is_kept(order: tuple[str, ...]) -> None:
    """Redis replies in the order of the commands, so a fetch that starts after the change reads the new value.

    A fetch that started before it may have read either.
    """
    copy = listening()
    under_way: dict[str, tuple[Fetched, Entry]] = {}
    changed = False
    for step in order:
        who, _, what = step.partition(" ")
        if what == "asks":
            under_way[who] = copy.begin_fetch("k"), entry("new" if changed else "old")
        elif what == "has":
            fetched, entry_ = under_way[who]
            fetched(entry_)
        else:
            copy.invalidate(["k"])
            changed = True
    assert lookup(copy, "k") != entry("old")
    asked_after = [who for who in ("first", "second") if order.index(f"{who} asks") > order.index("changed")]
    assert (copy.get("k") is not None) is bool(asked_after)


def test_dropping_everything_includes_fetches_in_progress() -> None:
    copy = listening()
    fetch(copy, "a", entry("a"))
    fetched = copy.begin_fetch("b")
    copy.invalidate_all()
    fetched(entry("b"))
    assert (copy.get("a"), copy.get("b"), len(copy), copy.size) == (None, None, 0, 0)
    fetch(copy, "a", entry("a"))
    assert copy.get("a") is not None, "and new entries are kept again"


# -- without a listener -----------------------------------------------------------------------------------------------


def test_nothing_is_kept_before_the_listener_is_connected() -> None:
    copy = LocalCache(LIMIT, clock=lambda: 1000.0)
    fetch(copy, "k", entry())
    assert copy.get("k") is None


def test_nothing_is_served_or_kept_after_the_listener_is_disconnected() -> None:
    copy = listening()
    fetch(copy, "k", entry())
    copy.disable()
    assert copy.get("k") is None
    fetch(copy, "k", entry())
    assert (copy.get("k"), len(copy)) == (None, 0)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_fetch_during_a_disconnection_is_not_kept(when: str) -> None:
    copy = listening()
    fetched = copy.begin_fetch("k") if when == "before" else None
    copy.disable()
    fetched = fetched or copy.begin_fetch("k")
    copy.enable()
    fetched(entry("old"))
    assert copy.get("k") is None
    fetch(copy, "k", entry("new"))
    assert lookup(copy, "k") == entry("new")


def test_without_a_limit_there_is_no_local_cache() -> None:
    copy = listening(limit=0)
    fetch(copy, "k", entry())
    assert (copy.get("k"), len(copy), copy.size) == (None, 0, 0)


# -- any sequence of events -------------------------------------------------------------------------------------------

KEYS = st.sampled_from("abcd")


class LocalCacheMachine(RuleBasedStateMachine):
    """A Redis that is changed and read, delayed invalidations, and a local cache that must never serve old data."""

    def __init__(self) -> None:
        super().__init__()
        self.copy = LocalCache(LIMIT, clock=lambda: 1000.0)
        self.redis: dict[str, Entry] = {}
        self.news: list[str] = []
        self.under_way: list[tuple[str, Fetched, Entry | None]] = []
        self.connected_ = False
        self.number = 0

    @rule(key=KEYS, size=st.integers(0, 12_000))
    def somebody_writes(self, key: str, size: int) -> None:
        self.number += 1
        self.redis[key] = entry("x" * size, prompt_tokens=self.number)
        self.news.append(key)

    @rule(key=KEYS)
    def somebody_deletes(self, key: str) -> None:
        if self.redis.pop(key, None) is not None:
            self.news.append(key)

    @rule(key=KEYS)
    def a_fetch_begins(self, key: str) -> None:
        self.under_way.append((key, self.copy.begin_fetch(key), self.redis.get(key)))

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def a_fetch_ends(self, data: st.DataObject) -> None:
        _, fetched, entry_ = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        fetched(entry_)

    @precondition(lambda self: self.connected_)
    @rule()
    def the_news_come(self) -> None:
        self.copy.invalidate(self.news)
        self.news.clear()

    @rule()
    def the_connection_is_lost(self) -> None:
        self.copy.disable()
        self.news.clear()
        self.connected_ = False

    @rule()
    def the_connection_is_there(self) -> None:
        self.copy.enable()
        self.connected_ = True

    @rule(key=KEYS)
    def it_is_asked(self, key: str) -> None:
        entry_ = lookup(self.copy, key)
        if entry_ is not None:
            assert self.connected_
            assert entry_ == self.redis.get(key) or key in self.news

    @invariant()
    def it_keeps_to_its_room(self) -> None:
        held = [stored.entry for stored in self.copy._entries.values()]
        assert sum(each.size for each in held) <= self.copy.size <= LIMIT
        assert len(self.copy._fetches) <= len(self.under_way), "finished fetches are forgotten"


TestLocalCacheMachine = LocalCacheMachine.TestCase


@given(st.lists(st.tuples(KEYS, st.integers(0, 12_000)), max_size=30), st.integers(0, 20_000))
def test_it_never_holds_more_than_its_bytes(fetches: list[tuple[str, int]], limit: int) -> None:
    copy = listening(limit)
    for key, size in fetches:
        fetch(copy, key, entry("x" * size))
        assert copy.size <= limit
