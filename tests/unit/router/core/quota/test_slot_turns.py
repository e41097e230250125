"""Which worker takes a slot that became free."""

from hypothesis import given
from hypothesis import strategies as st

from router.core.quota.slot_turns import Standing, is_next


def test_the_worker_with_the_fewest_slots_is_next_and_among_equals_the_one_with_the_oldest_grant() -> None:
    assert is_next(Standing(1, 9, 0), [Standing(2, 1, 1), Standing(1, 10, 2)])
    assert not is_next(Standing(1, 9, 0), [Standing(1, 8, 1)])
    assert not is_next(Standing(1, 9, 0), [Standing(0, 10, 1)])
    assert is_next(Standing(5, 9, 0), [])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=8))
def test_of_the_workers_that_wait_exactly_one_is_next(facts: list[tuple[int, int]]) -> None:
    waiting = [Standing(held, grant, worker) for worker, (held, grant) in enumerate(facts)]
    assert sum(is_next(each, waiting) for each in waiting) == 1


@given(st.integers(1, 6), st.integers(2, 5))
def test_workers_that_always_wait_get_equal_shares(slots: int, workers: int) -> None:
    held, grants, won = [0] * workers, [0] * workers, [0] * workers
    order: list[int] = []
    for now in range(1, 20 * workers + 1):
        if sum(held) == slots:
            held[order.pop(0)] -= 1
        standings = [Standing(held[each], grants[each], each) for each in range(workers)]
        winner = next(each for each in range(workers) if is_next(standings[each], standings))
        held[winner] += 1
        won[winner] += 1
        grants[winner] = now
        order.append(winner)
    assert max(won) - min(won) <= slots
