"""What each tenant and each of its keys used, put together from the usage, the savings, the budgets and the keys."""

from typing import Any

from router.core.quota.budget import BudgetStatus
from router.store.admin.keys import KeyRow
from router.store.admin.tenants import TenantRow, merge_tenants
from router.store.admin.usage import Usage, UsageRow, UsageSums

BUDGET = BudgetStatus(
    budget="tokens_per_day", limit=100, used=40, remaining=60, resets_at="2026-11-30T00:00:00Z"
)  # fmt: skip


def used(*rows: UsageRow) -> Usage:
    return Usage(first="2026-11-28", last="2026-11-29", rows=list(rows), total=UsageSums())


def usage_row(day: int, tenant: str, key: str, **sums: Any) -> UsageRow:
    return UsageRow(day=f"2026-11-{day}", tenant=tenant, key=key, **sums)


def key_row(key_id: str, tenant: str | None = "acme", **fields: Any) -> KeyRow:
    return KeyRow(key_id=key_id, role="tenant" if tenant else "admin", tenant=tenant, **fields)


def merge(
    *rows: UsageRow, saved: dict[str, float] | None = None, keys: tuple[KeyRow, ...] = (), budgets: Any = None
) -> list[TenantRow]:
    return merge_tenants(used(*rows), saved or {}, keys, {"acme": []} if budgets is None else budgets).tenants


def test_a_tenant_has_the_sums_of_its_keys_over_the_days() -> None:
    (acme,) = merge(
        usage_row(29, "acme", "k1", requests=4, hits=1, gpu_seconds=1.5, refused=2, refused_by={"requests_limit": 2}),
        usage_row(28, "acme", "k1", requests=1, refused=3, refused_by={"requests_limit": 1, "queue_full": 2}),
        usage_row(28, "acme", "k2", requests=20, completion_tokens=7),
        saved={"acme": 2.5},
        keys=(key_row("k1", name="ci", source="redis", last_used=50), key_row("k2", last_used=40)),
        budgets={"acme": [BUDGET]},
    )
    assert (acme.requests, acme.hits, acme.gpu_seconds, acme.completion_tokens) == (25, 1, 1.5, 7)
    assert (acme.refused, acme.refused_by) == (5, {"requests_limit": 3, "queue_full": 2})
    assert (acme.gpu_seconds_saved, acme.budgets, acme.last_used, acme.last_day) == (2.5, [BUDGET], 50, "2026-11-29")
    assert [(key.key, key.name, key.requests, key.last_used, key.last_day) for key in acme.keys] == [
        ("k2", None, 20, 40, "2026-11-28"), ("k1", "ci", 5, 50, "2026-11-29"),
    ]  # fmt: skip


def test_a_tenant_without_requests_is_there_with_its_valid_keys_and_one_that_is_gone_with_its_requests() -> None:
    acme, old = sorted(
        merge(
            usage_row(29, "old", "k9", requests=3),
            keys=(key_row("k1"), key_row("k2", status="revoked"), key_row("k3", tenant=None)),
        ),
        key=lambda row: row.tenant,
    )
    assert (acme.configured, acme.requests, [key.key for key in acme.keys]) == (True, 0, ["k1"])
    assert (old.configured, old.requests, [(key.key, key.status) for key in old.keys]) == (
        False,
        3,
        [("k9", "unknown")],
    )


def test_requests_without_a_key_are_of_the_key_that_is_none() -> None:
    (acme,) = merge(usage_row(29, "acme", "-", requests=1))
    assert [(key.key, key.status, key.last_used) for key in acme.keys] == [("-", "no key", None)]


def test_the_tenant_with_most_requests_comes_first_refused_ones_too() -> None:
    found = merge(
        usage_row(29, "b", "-", requests=2), usage_row(29, "acme", "-", refused=9), usage_row(29, "a", "-", requests=2)
    )
    assert [row.tenant for row in found] == ["acme", "a", "b"]
