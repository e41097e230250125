"""The slots that processes share: a model beside real processes, and what is left of a killed one."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.upstream.slot_file import SlotFile, clear_stale
from tests.support.slot_holders import SlotHolder

WORKERS = 3
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, WORKERS - 1)),
        st.tuples(st.just("free"), st.integers(0, WORKERS - 1)),
        st.tuples(st.just("limit"), st.integers(1, 6)),
        st.tuples(st.just("regardless"), st.integers(0, WORKERS - 1)),
    ),
    max_size=40,
)  # fmt: skip


@pytest.fixture(scope="module")
def holders() -> Iterator[list[SlotHolder]]:
    started = [SlotHolder(number, WORKERS) for number in range(WORKERS)]
    yield started
    for holder in started:
        holder.kill()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slots")


def open_all(holders: list[SlotHolder], path: Path, limit: int) -> None:
    for holder in holders:
        holder.call("open", str(path))
        holder.call("set_limit", limit)


def close_all(holders: list[SlotHolder]) -> None:
    for holder in holders:
        holder.call("close")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_processes_get_exactly_the_slots_that_a_common_counter_would_give(
    holders: list[SlotHolder], folder: Path, steps: list[tuple[str, int]]
) -> None:
    limit, held = 4, [0] * WORKERS
    path = folder / "slots"
    open_all(holders, path, limit)
    for number, (action, argument) in enumerate(steps):
        if action == "take":
            assert holders[argument].call("has_free", limit) is (sum(held) < limit)
            assert holders[argument].call("take", limit, number) is (sum(held) < limit)
            held[argument] += sum(held) < limit
        elif action == "free" and held[argument]:
            holders[argument].call("free")
            held[argument] -= 1
        elif action == "limit":
            limit = argument
            for holder in holders:
                holder.call("set_limit", limit)
        elif action == "regardless":
            holders[argument].call("take_regardless")
            held[argument] += 1
        assert [holder.call("held") for holder in holders] == held
        assert {holder.call("count") for holder in holders} == {sum(held)}
    close_all(holders)
    assert not path.exists()


def test_processes_that_contend_for_the_only_slot_never_have_it_at_the_same_time(
    holders: list[SlotHolder], tmp_path: Path
) -> None:
    open_all(holders, tmp_path / "slots", 1)
    for holder in holders:
        holder.start("contend", str(tmp_path / "occupied"))
    assert [holder.result() for holder in holders] == [300] * WORKERS
    close_all(holders)


def test_a_killed_process_holds_nothing_and_waits_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "slots"
    holders = [SlotHolder(number, 2) for number in range(2)]
    open_all(holders, path, 3)
    stays, dies = holders
    assert [stays.call("take", 3, 1), dies.call("take", 3, 2), dies.call("take", 3, 3)] == [True] * 3
    dies.call("set_waiting", True)
    dies.kill()
    assert stays.call("count") == 3  # not yet known to be free
    clear_stale(path, 1)
    assert (stays.call("count"), stays.call("others_waiting")) == (1, [])
    assert [stays.call("take", 3, 4) for _ in range(3)] == [True, True, False]
    stays.kill()


def test_the_turn_is_that_of_the_waiting_worker_with_the_fewest_slots_and_then_of_the_oldest_grant(
    holders: list[SlotHolder], tmp_path: Path
) -> None:
    open_all(holders, tmp_path / "slots", 4)
    first, second, third = holders
    for number, holder in enumerate((first, first, second, third)):
        assert holder.call("take", 4, number)
    assert [holder.call("is_next") for holder in holders] == [True] * 3, "nobody waits"
    second.call("set_waiting", True)
    third.call("set_waiting", True)
    assert [holder.call("is_next") for holder in holders] == [False, True, False]
    second.call("set_waiting", False)
    assert [holder.call("is_next") for holder in holders] == [False, True, True]
    close_all(holders)


def test_a_process_that_opens_the_file_while_the_last_user_removes_it_gets_a_file_that_is_there(
    holders: list[SlotHolder], tmp_path: Path
) -> None:
    path = tmp_path / "slots"
    for _ in range(20):
        open_all(holders, path, 1)
        close_all(holders[1:])
        assert path.exists()
        close_all(holders[:1])
        assert not path.exists()


def test_no_process_is_killed_for_writing_into_the_file_of_slots_when_the_disk_is_full(tmp_path: Path) -> None:
    path = tmp_path / "slots"
    file = SlotFile(path, 0, 1)
    try:
        status = path.stat()
        assert status.st_blocks * 512 >= status.st_size  # its blocks are allocated
    finally:
        file.close()


def test_a_file_for_which_the_disk_has_no_room_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: int, _: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("router.upstream.slot_file.allocate", fail)
    with pytest.raises(OSError, match="No space left"):
        SlotFile(tmp_path / "slots", 0, 1)
    assert list(tmp_path.iterdir()) == []


def test_the_end_of_a_worker_takes_no_room_for_a_file_that_another_one_is_creating(tmp_path: Path) -> None:
    path = tmp_path / "slots"
    path.touch()
    clear_stale(path, 1)
    assert path.stat().st_size == 0


def test_a_process_that_closes_a_removed_file_leaves_the_next_one_of_that_name_alone(tmp_path: Path) -> None:
    path = tmp_path / "slots"
    old = SlotFile(path, 0, 2)
    path.unlink()  # as the last other process does, while this one has given up its lock and is stopped
    new = SlotFile(path, 1, 2)
    old.close()
    assert path.exists()
    new.close()
    assert not path.exists()
