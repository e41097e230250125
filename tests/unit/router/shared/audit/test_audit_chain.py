"""The chain of the audit: whatever is changed in it is found, but for its end."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.shared.audit.audit_chain import NO_ENTRY, ChainCheck, ChainReport, Link, hash_fields, link, read_link

Fields = dict[bytes, bytes]

TEXTS = st.binary(max_size=12)
ENTRIES = st.lists(
    st.fixed_dictionaries({b"actor": TEXTS, b"action": TEXTS, b"subject": TEXTS}), min_size=2, max_size=8
)


def chain(entries: list[Fields]) -> list[Fields]:
    linked: list[Fields] = []
    before: Link | None = None
    for fields in entries:
        linked.append(link(fields, before))
        before = read_link(linked[-1])
    return linked


def check(linked: list[Fields]) -> ChainReport:
    checked = ChainCheck()
    for position, fields in enumerate(linked):
        checked.add(f"{position}-0", fields)
    return checked.report()


@given(ENTRIES)
def test_a_chain_that_nobody_touched_holds(entries: list[Fields]) -> None:
    linked = chain(entries)
    report = check(linked)
    assert (report.broken, report.entries, report.trimmed) == (None, len(entries), 0)
    assert report.newest == linked[-1][b"hash"].decode()


@given(ENTRIES, st.data())
def test_every_change_of_a_field_is_found(entries: list[Fields], data: Any) -> None:
    linked = chain(entries)
    position = data.draw(st.integers(0, len(linked) - 1))
    name = data.draw(st.sampled_from(sorted(linked[position])))
    value = data.draw(TEXTS.filter(lambda value: value != linked[position][name]))
    linked[position] = {**linked[position], name: value}
    broken = check(linked).broken
    assert broken is not None
    assert broken.id == f"{position}-0", "the entry itself is named"


@given(ENTRIES, st.data())
def test_a_changed_entry_whose_hash_was_computed_again_breaks_the_chain_after_it(
    entries: list[Fields], data: Any
) -> None:
    linked = chain(entries)
    position = data.draw(st.integers(0, len(linked) - 2))
    changed = {**linked[position], b"actor": linked[position][b"actor"] + b"!"}
    linked[position] = {**changed, b"hash": hash_fields(changed).encode()}
    broken = check(linked).broken
    assert broken is not None
    assert broken.id == f"{position + 1}-0"


@given(ENTRIES, st.data())
def test_a_missing_entry_is_found_unless_it_is_at_an_end(entries: list[Fields], data: Any) -> None:
    linked = chain([*entries, {b"actor": b"last"}])
    position = data.draw(st.integers(1, len(linked) - 2))
    del linked[position]
    broken = check(linked).broken
    assert broken is not None
    assert broken.problem == "the one before it is missing"


@given(ENTRIES, st.data())
def test_entries_that_changed_places_are_found(entries: list[Fields], data: Any) -> None:
    linked = chain(entries)
    first, second = sorted(data.draw(st.sets(st.integers(0, len(linked) - 1), min_size=2, max_size=2)))
    linked[first], linked[second] = linked[second], linked[first]
    assert check(linked).broken is not None


@given(ENTRIES, st.data())
def test_a_repeated_entry_is_found(entries: list[Fields], data: Any) -> None:
    linked = chain(entries)
    position = data.draw(st.integers(0, len(linked) - 1))
    linked.insert(position, linked[position])
    assert check(linked).broken is not None


@given(ENTRIES, st.data())
def test_what_is_trimmed_at_the_beginning_is_no_error(entries: list[Fields], data: Any) -> None:
    linked = chain(entries)
    trimmed = data.draw(st.integers(0, len(linked) - 1))
    report = check(linked[trimmed:])
    assert (report.broken, report.trimmed, report.entries) == (None, trimmed, len(linked) - trimmed)


def test_a_chain_that_was_made_anew_with_another_count_is_found() -> None:
    (first,) = chain([{b"actor": b"one"}])
    skipping = {b"actor": b"two", b"number": b"7", b"previous": first[b"hash"]}
    report = check([first, {**skipping, b"hash": hash_fields(skipping).encode()}])
    assert report.broken is not None
    assert (report.broken.number, report.broken.problem) == (7, "its number does not follow")


def test_no_two_entries_have_the_same_text_to_hash() -> None:
    assert hash_fields({b"a": b"1,1:b"}) != hash_fields({b"a": b"1", b"b": b""})
    assert hash_fields({b"ab": b"c"}) != hash_fields({b"a": b"bc"})


def test_a_field_that_a_later_version_adds_is_covered() -> None:
    linked = chain([{b"actor": b"one", b"reason": b"later"}, {b"actor": b"two"}])
    assert check(linked).broken is None
    del linked[0][b"reason"]
    assert check(linked).broken is not None


def test_the_first_entry_follows_no_other() -> None:
    (first,) = chain([{b"actor": b"one"}])
    assert (first[b"number"], first[b"previous"]) == (b"1", NO_ENTRY.encode())


@pytest.mark.parametrize(
    "fields",
    [
        {}, {b"actor": b"one"}, {b"number": b"0", b"previous": b"0" * 64, b"hash": b"0" * 64},
        {b"number": b"1", b"previous": b"0" * 64, b"hash": b"0" * 63}, {b"number": b"\xff", b"hash": b"\xff"},
        {b"number": b"1" * 40, b"previous": b"0" * 64, b"hash": b"0" * 64},
    ],
)  # fmt: skip
def test_what_is_no_entry_breaks_the_chain(fields: Fields) -> None:
    report = check([fields])
    assert report.broken is not None
    assert (report.entries, report.newest, report.broken.number) == (0, None, None)


def test_nothing_is_a_chain_that_holds() -> None:
    assert check([]) == ChainReport(entries=0, trimmed=0, newest=None, broken=None)
