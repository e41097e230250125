"""The order of waiting requests: fair between tenants, FIFO within one, bounded, and without starvation."""

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.quota.fair_queue import MAX_ADVISED_RETRY_AFTER, FairQueue, estimate_retry_after

TENANTS = st.sampled_from("abcd")


def anything(_: object) -> bool:
    return True


def queue(*items: str, limit: int = 100) -> FairQueue[str]:
    """Waiting items, named after their tenant with a number: a1, a2, b1."""
    fair_queue: FairQueue[str] = FairQueue(limit)
    for item in items:
        assert fair_queue.push(item[0], item) is None
    return fair_queue


def order(waiting: FairQueue[str], *, keep: bool = True) -> list[str]:
    """The items in the order in which they are admitted; each keeps its slot, or releases it at once."""
    had = []
    while (item := waiting.pop(anything)) is not None:
        had.append(item)
        if not keep:
            waiting.on_released(item[0])
    return had


def test_within_a_tenant_requests_are_served_in_order_of_arrival() -> None:
    assert order(queue("a1", "a2", "a3")) == ["a1", "a2", "a3"]


@pytest.mark.parametrize("keep", [True, False])
def test_a_tenant_with_one_request_does_not_wait_behind_another_with_a_thousand(keep: bool) -> None:
    waiting = queue(*[f"a{n}" for n in range(50)], "b1", "c1", "c2")
    assert order(waiting, keep=keep)[:6] == ["a0", "b1", "c1", "a1", "c2", "a2"]


def test_the_slot_goes_to_the_tenant_that_holds_the_fewest() -> None:
    waiting = queue("a1", "a2", "b1", "b2")
    for _ in range(2):
        waiting.on_acquired("a")
    assert order(waiting) == ["b1", "b2", "a1", "a2"]


def test_a_tenant_with_long_responses_has_its_share_of_the_slots_and_not_all_of_them() -> None:
    waiting = queue(*[f"a{n}" for n in range(100)], *[f"b{n}" for n in range(100)], limit=1000)
    held = [waiting.pop(anything) for _ in range(8)]
    served = Counter[str]()
    for _ in range(90):  # a's responses never end
        short = next(item for item in held if item is not None and item[0] == "b")
        held.remove(short)
        waiting.on_released("b")
        held.append(waiting.pop(anything))
        served[str(held[-1])[0]] += 1
    assert served == {"b": 90}
    assert Counter(str(item)[0] for item in held) == {"a": 4, "b": 4}


def test_a_request_that_does_not_accept_a_slot_keeps_its_position() -> None:
    waiting = queue("a1", "a2", "b1", "c1")
    assert waiting.pop(lambda item: item in ("a2", "c1")) == "a2"
    assert waiting.pop(lambda item: item == "nobody") is None
    waiting.on_released("a")
    assert order(waiting) == ["b1", "c1", "a1"]


def test_a_request_that_has_left_gets_no_slot() -> None:
    waiting = queue("a1", "a2", "b1")
    waiting.remove("a", "a1")
    waiting.remove("b", "b1")
    waiting.remove("b", "b1")
    waiting.remove("nobody", "x")
    assert len(waiting) == 1
    assert order(waiting) == ["a2"]


def test_a_tenant_that_is_alone_may_fill_the_queue_and_is_then_evicted_itself() -> None:
    waiting = queue("a1", "a2", "a3", "a4", limit=4)
    assert waiting.push("a", "a5") == ("a", "a5")
    assert not waiting.has_fair_share("a"), "no other tenant waits"
    assert len(waiting) == 4


def test_a_full_queue_evicts_the_newest_request_of_the_tenant_with_the_most() -> None:
    waiting = queue("a1", "a2", "a3", "b1", limit=4)
    assert waiting.push("b", "b2") == ("a", "a3")
    assert waiting.has_fair_share("a")
    assert waiting.push("a", "a4") == ("a", "a4")
    assert waiting.push("c", "c1") == ("a", "a2")


def test_a_full_queue_of_equal_tenants_evicts_the_newcomer() -> None:
    waiting = queue("a1", "b1", limit=2)
    assert waiting.push("c", "c1") == ("c", "c1")
    assert not waiting.has_fair_share("c"), "it has nothing"


def test_a_long_life_leaves_nothing_behind() -> None:
    waiting: FairQueue[str] = FairQueue(10)
    for n in range(5000):
        tenant = "abc"[n % 3]
        waiting.push(tenant, f"{n}")
        assert waiting.pop(anything) == f"{n}"
        waiting.on_released(tenant)
    for n in range(5000):
        waiting.push("a", f"{n}")
        waiting.remove("a", f"{n}")
    assert len(waiting._heap) < 200


Step = tuple[str, str]
STEPS = st.lists(st.tuples(st.sampled_from(["push", "pop", "end", "leave"]), TENANTS), max_size=120)


@given(STEPS, st.integers(1, 12))
def test_in_any_sequence_requests_wait_in_order_within_the_limit_and_are_served(
    steps: Iterable[Step], limit: int
) -> None:
    waiting: FairQueue[str] = FairQueue(limit)
    lines: dict[str, list[str]] = {tenant: [] for tenant in "abcd"}
    held = Counter[str]()
    for number, (what, tenant) in enumerate(steps):
        if what == "push":
            evicted = waiting.push(tenant, f"{tenant}{number}")
            lines[tenant].append(f"{tenant}{number}")
            if evicted is not None:
                most = max(map(len, lines.values()))
                assert len(lines[evicted[0]]) == most, "the tenant with the most requests is evicted"
                assert lines[evicted[0]].pop() == evicted[1], "with its newest"
        elif what == "pop":
            item = waiting.pop(anything)
            waiting_tenants = [name for name, line in lines.items() if line]
            assert (item is None) == (not waiting_tenants)
            if item is not None:
                assert held[item[0]] == min(held[name] for name in waiting_tenants)
                assert lines[item[0]].pop(0) == item
                held[item[0]] += 1
        elif what == "end" and held[tenant]:
            waiting.on_released(tenant)
            held[tenant] -= 1
        elif what == "leave" and lines[tenant]:
            waiting.remove(tenant, lines[tenant].pop(len(lines[tenant]) // 2))
        assert len(waiting) == sum(map(len, lines.values())) <= limit
    assert sorted(order(waiting)) == sorted(item for line in lines.values() for item in line)


@given(st.lists(TENANTS, min_size=1, max_size=60), st.lists(TENANTS, max_size=200))
def test_no_request_waits_longer_than_the_earlier_ones_and_one_of_each_tenant_per_turn(
    there: list[str], later: list[str]
) -> None:
    """Later arrivals do not matter: slots that are released at once go round robin."""
    waiting: FairQueue[str] = FairQueue(1000)
    for number, tenant in enumerate(there):
        waiting.push(tenant, f"{tenant}{number}")
    last = f"{there[-1]}{len(there) - 1}"
    before = there.count(there[-1])
    for turn in range(4 * before):
        item = waiting.pop(anything)
        if item == last:
            return
        if item is not None:
            waiting.on_released(item[0])
        for tenant in later[turn::3]:
            waiting.push(tenant, f"{tenant}later{turn}-{len(waiting)}")
    raise AssertionError("it has been passed over for ever")


def test_retry_after_follows_the_rate_at_which_work_is_finished() -> None:
    every_second = [float(n) for n in range(10)]
    assert estimate_retry_after(0, every_second, 10.0, default=99) == 1
    assert estimate_retry_after(20, every_second, 10.0, default=99) == 21
    assert estimate_retry_after(20, every_second, 40.0, default=99) == MAX_ADVISED_RETRY_AFTER, (
        "nothing has been finished for long"
    )
    assert estimate_retry_after(3, [9.9], 10.0, default=99) == 1
    assert estimate_retry_after(3, [], 10.0, default=7.5) == 8
    assert estimate_retry_after(3, [], 10.0, default=600) == MAX_ADVISED_RETRY_AFTER


def test_items_that_are_removed_get_no_slot_and_the_others_keep_their_order() -> None:
    waiting = queue("a1", "b1", "a2", "b2", "c1")
    assert set(waiting.remove_if(lambda item: item in ("a1", "b2", "c1"))) == {"a1", "b2", "c1"}
    assert len(waiting) == 2
    assert waiting.waiting("c") == 0
    assert order(waiting) == ["a2", "b1"]


@given(st.integers(0, 2000), st.lists(st.floats(0, 1e6), max_size=64), st.floats(0, 1e6), st.floats(0.001, 1e6))
def test_retry_after_is_always_one_to_sixty_seconds(
    waiting: int, finished: list[float], since: float, unknown: float
) -> None:
    finished.sort()
    now = (finished[-1] if finished else 0.0) + since
    assert 1 <= estimate_retry_after(waiting, finished, now, default=unknown) <= MAX_ADVISED_RETRY_AFTER


# -- priorities -------------------------------------------------------------------------------------------------------


def with_priorities(*items: tuple[str, int], limit: int = 100) -> FairQueue[str]:
    waiting: FairQueue[str] = FairQueue(limit)
    for item, priority in items:
        assert waiting.push(item[0], item, priority) is None
    return waiting


def test_a_lower_number_is_served_first_whoever_waits_longer_or_holds_fewer_slots() -> None:
    waiting = with_priorities(("a1", 0), ("a2", -1), ("b1", 5), ("b2", 0), ("c1", -1))
    for _ in range(3):
        waiting.on_acquired("a")
    assert order(waiting) == ["c1", "a2", "b2", "a1", "b1"]


def test_items_of_one_priority_are_shared_fairly_between_tenants() -> None:
    waiting = with_priorities(*[(f"a{n}", 1) for n in range(5)], ("b1", 1), ("a9", 0))
    assert order(waiting)[:4] == ["a9", "b1", "a0", "a1"]


def test_a_full_queue_drops_the_newest_item_of_the_lowest_priority_of_the_largest_tenant() -> None:
    waiting = with_priorities(("a1", 0), ("a2", 9), ("a3", 9), ("a4", 0), limit=4)
    assert waiting.push("b", "b1", 20) == ("a", "a3"), "tenants share the queue, whatever their priorities"
    assert waiting.push("a", "a5", 9) == ("a", "a5")
    assert waiting.push("a", "a6", 1) == ("a", "a2"), "within a tenant, a higher priority goes first"
    assert order(waiting) == ["a1", "a4", "a6", "b1"]


@given(st.lists(st.tuples(TENANTS, st.integers(-2, 2), st.booleans()), max_size=80))
def test_no_item_is_served_before_one_with_a_lower_number(steps: list[tuple[str, int, bool]]) -> None:
    waiting: FairQueue[tuple[str, int]] = FairQueue(12)
    present: dict[tuple[str, int], int] = {}
    for number, (tenant, priority, pops) in enumerate(steps):
        if pops:
            item = waiting.pop(anything)
            assert (item is None) == (not present)
            if item is not None:
                assert present.pop(item) == min([*present.values(), steps[item[1]][1]])
                waiting.on_released(item[0])
            continue
        present[tenant, number] = priority
        evicted = waiting.push(tenant, (tenant, number), priority)
        if evicted is not None:
            del present[evicted[1]]
        assert len(waiting) == len(present) <= 12
        assert all(waiting.waiting(name) == sum(item[0] == name for item in present) for name in "abcd")
