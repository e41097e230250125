"""Whose turn it is at a GPU that has no room for all engines of its group."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.resilience.gpu_turns import GroupMember, Turn, TurnRules, excess, next_turn, reconcile

RULES = TurnRules(capacity=1.0, min_awake=30.0, max_wait=120.0)
NOW = 1000.0


def awake(name: str = "a", since: float = 500.0, **fields: object) -> GroupMember:
    return GroupMember(name, 1.0, since, **fields)  # type: ignore[arg-type]  # the test's


def asleep(name: str = "b", **fields: object) -> GroupMember:
    return GroupMember(name, 1.0, None, **fields)  # type: ignore[arg-type]  # the test's


def turn(*members: GroupMember, rules: TurnRules = RULES) -> Turn | None:
    return next_turn(members, rules, NOW)


def test_nobody_changes_places_for_an_engine_that_nobody_wants() -> None:
    assert turn(awake(), asleep()) is None


def test_an_engine_wakes_at_once_where_there_is_room() -> None:
    assert turn(asleep("a"), asleep("b", asked_at=NOW)) == Turn("b", ())


def test_an_idle_engine_gives_up_its_turn_at_once() -> None:
    assert turn(awake(since=NOW - 1, used_at=NOW), asleep(asked_at=NOW)) == Turn("b", ("a",))


@pytest.mark.parametrize(
    ("awake_for", "waited", "is_due"), [(500, 119, False), (500, 120, True), (29, 500, False), (30, 500, True)]
)
def test_one_with_requests_keeps_it_until_another_has_waited_for_long(
    awake_for: float, waited: float, is_due: bool
) -> None:
    found = turn(awake(since=NOW - awake_for, people=1), asleep(asked_at=NOW - waited))
    assert found == (Turn("b", ("a",)) if is_due else None)


def test_one_whose_requests_are_about_to_be_sent_keeps_it() -> None:
    assert turn(awake(since=NOW - 1, asked_at=NOW - 5), asleep(asked_at=NOW - 9)) is None


def test_the_request_that_has_waited_longest_decides_who_is_next() -> None:
    members = awake(), asleep("b", asked_at=NOW - 5), asleep("c", asked_at=NOW - 6), asleep("d", line_at=NOW - 900)
    assert turn(*members) == Turn("c", ("a",))


def test_lines_decide_only_if_no_person_waits() -> None:
    assert turn(awake(), asleep("b", line_at=NOW - 900), asleep("c", asked_at=NOW)) == Turn("c", ("a",))
    assert turn(awake(), asleep("b", line_at=NOW - 900)) == Turn("b", ("a",))


@pytest.mark.parametrize(("idle", "is_due"), [(29, False), (30, True)])
def test_lines_wait_until_people_have_left_an_engine_for_a_while(idle: float, is_due: bool) -> None:
    found = turn(awake(used_at=NOW - idle), asleep(line_at=NOW - 900))
    assert found == (Turn("b", ("a",)) if is_due else None)


def test_lines_never_take_the_turn_of_people() -> None:
    assert turn(awake(people=1), asleep(line_at=NOW - 9000)) is None


def test_people_need_not_wait_for_lines() -> None:
    assert turn(awake(since=NOW - 1, lines=5), asleep(asked_at=NOW)) == Turn("b", ("a",))


@pytest.mark.parametrize(("waited", "is_due"), [(119, False), (120, True)])
def test_batches_take_turns(waited: float, is_due: bool) -> None:
    found = turn(awake(lines=5), asleep(line_at=NOW - waited))
    assert found == (Turn("b", ("a",)) if is_due else None)


def test_of_several_that_are_awake_the_one_that_was_used_last_stays() -> None:
    rules = RULES._replace(capacity=2.0)
    members = awake("a", used_at=900), awake("b", used_at=800), asleep("c", asked_at=NOW)
    assert turn(*members, rules=rules) == Turn("c", ("b",))


def test_as_many_sleep_as_the_engine_needs_room_and_none_if_that_is_not_enough() -> None:
    rules = RULES._replace(capacity=4.0)
    large = GroupMember("large", 3.0, None, asked_at=NOW)
    members = awake("a", used_at=900), awake("b", used_at=800), awake("c", used_at=700), awake("d", used_at=600)
    assert turn(*members, large, rules=rules) == Turn("large", ("d", "c", "b"))
    busy = [member._replace(people=1) for member in members[:2]]
    assert turn(*busy, *members[2:], large, rules=rules) is None


def test_an_engine_that_an_operator_calls_is_next_and_waits_for_nobody() -> None:
    busy = awake(since=NOW - 1, people=3, kept_until=NOW + 9)
    members = busy, asleep("b", asked_at=NOW - 900), asleep("c", is_called=True)
    assert turn(*members) == Turn("c", ("a",))


def test_one_that_an_operator_has_woken_up_keeps_its_turn_for_a_while() -> None:
    wanted = asleep(asked_at=NOW - 900)
    assert turn(awake(kept_until=NOW + 1), wanted) is None
    assert turn(awake(kept_until=NOW), wanted) == Turn("b", ("a",))


def test_if_there_is_less_room_those_that_were_used_last_stay_awake() -> None:
    members = awake("a", used_at=5), awake("b", used_at=9), awake("c", used_at=1, people=1), asleep("d")
    assert [excess(members, room) for room in (3.0, 2.0, 1.0)] == [(), ("a",), ("a", "b")]


NEEDS = {"a": 1.0, "b": 1.0, "c": 2.0}


@pytest.mark.parametrize(
    ("awake_before", "sleeping", "awake_then", "strays"),
    [
        ({"a": 5.0}, {"a": False, "b": True, "c": True}, {"a": 5.0}, ()),
        ({"a": 5.0}, {}, {"a": 5.0}, ()),
        ({"a": 5.0}, {"a": True}, {}, ()),
        ({}, {"b": False}, {"b": NOW}, ()),
        ({"a": 5.0}, {"a": False, "b": False, "c": False}, {"a": 5.0, "b": NOW}, ("c",)),
        ({"a": 5.0}, {"a": True, "c": False}, {"c": NOW}, ()),
    ],
)  # fmt: skip
def test_what_engines_say_counts_more_than_what_was_decided(
    awake_before: dict[str, float], sleeping: dict[str, bool], awake_then: dict[str, float], strays: tuple[str, ...]
) -> None:
    assert reconcile(NEEDS, awake_before, sleeping, 2.0, NOW) == (awake_then, strays)


instants = st.none() | st.floats(0, NOW)
members_of_a_group = st.lists(
    st.builds(
        GroupMember, name=st.uuids().map(str), need=st.just(1.0), awake_since=instants, people=st.integers(0, 2),
        lines=st.integers(0, 2), used_at=st.floats(0, NOW), asked_at=instants, line_at=instants,
        is_called=st.booleans(), kept_until=st.floats(0, NOW + RULES.min_awake),
    ),
    max_size=6,
)  # fmt: skip


@given(members_of_a_group, st.integers(1, 3))
def test_a_turn_never_needs_more_than_there_is_and_takes_no_engine_too_many(
    members: list[GroupMember], capacity: int
) -> None:
    rules = RULES._replace(capacity=float(capacity))
    by_name = {member.name: member for member in members}
    found = next_turn(members, rules, NOW)
    if found is None:
        return
    assert by_name[found.wakes].awake_since is None
    assert by_name[found.wakes].is_wanted
    assert all(by_name[name].awake_since is not None for name in found.sleeps)
    before = sum(member.need for member in members if member.awake_since is not None)
    assert before - len(found.sleeps) + 1 <= max(capacity, before)
    assert not found.sleeps or before - len(found.sleeps) + 1 == capacity or before > capacity


@given(members_of_a_group)
def test_who_has_waited_long_enough_gets_a_turn(members: list[GroupMember]) -> None:
    had_their_time = [
        member._replace(awake_since=0.0 if member.awake_since is not None else None, kept_until=0.0)
        for member in members
    ]
    awake_now = [member for member in had_their_time if member.awake_since is not None][:1]
    sleeping = [member for member in had_their_time if member.awake_since is None]
    wanted = GroupMember("wanted", 1.0, None, asked_at=0.0)
    found = next_turn([*awake_now, *sleeping, wanted], RULES, NOW)
    assert found is not None
