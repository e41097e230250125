"""The priority of a tenant's requests is what the client asks for, within the bound of its settings."""

from hypothesis import given
from hypothesis import strategies as st

from router.core.quota.priority import MAX_PRIORITY, MIN_PRIORITY, PriorityRule, priority_rule

numbers = st.one_of(st.integers(-5, 5), st.integers(MIN_PRIORITY, MAX_PRIORITY))


@given(st.none() | numbers, st.none() | numbers, st.none() | numbers)
def test_no_request_has_a_higher_priority_than_its_tenant_allows(
    highest: int | None, default: int | None, requested: int | None
) -> None:
    applied = priority_rule(highest, default).apply(requested)
    assert applied >= (highest or 0)
    assert applied in (highest or 0, default or 0, requested), "it is one of the numbers that somebody has chosen"
    if requested is not None and requested >= (highest or 0):
        assert applied == requested, "a lower priority is never refused"


def test_without_settings_a_client_can_only_ask_for_a_lower_priority() -> None:
    rule = PriorityRule()
    assert [rule.apply(requested) for requested in (None, 0, -10, 7)] == [0, 0, 0, 7]


def test_a_batch_tenant_is_always_behind_and_an_important_one_may_go_first() -> None:
    assert [priority_rule(10, None).apply(requested) for requested in (None, 0, 20)] == [10, 10, 20]
    assert [priority_rule(-10, -5).apply(requested) for requested in (None, 0, -10, -11)] == [-5, 0, -10, -10]
