"""The names of the settings that a reload changes."""

from msgspec.structs import replace

from router.process.changed_settings import changed_settings
from tests.support.configurations import HASH, MINIMAL, OTHER_HASH, parse_config

TENANT = f'[[tenant]]\nname = "acme"\nkeys = ["{HASH}"]\n'
KEYS = f'[auth]\nadmin_keys = ["{OTHER_HASH}"]\n'


def test_nothing_has_changed() -> None:
    assert changed_settings(parse_config(MINIMAL), parse_config(MINIMAL)) == []


def test_values_are_named_and_not_told() -> None:
    before, after = (
        parse_config(f"{KEYS}{TENANT}{MINIMAL}"),
        parse_config(
            '[router]\nmax_body = "2MiB"\n[cache]\nurl = "redis://:secret@other:6379"\nttl = "1h"\n'
            f'[auth]\nadmin_keys = ["{HASH}"]\n{TENANT.replace(HASH, OTHER_HASH)}tokens_per_day = 5\n{MINIMAL}'
        ),
    )
    assert changed_settings(before, after) == [
        "router.max_body", "cache.url", "cache.ttl", "auth.admin_keys", "tenant.acme.keys",
        "tenant.acme.tokens_per_day",
    ]  # fmt: skip


def test_tables_that_come_and_go_are_named() -> None:
    alone, with_tenant = parse_config(MINIMAL), parse_config(TENANT + MINIMAL)
    assert changed_settings(alone, with_tenant) == ["tenant.acme (added)"]
    assert changed_settings(with_tenant, alone) == ["tenant.acme (removed)"]


def test_another_order_is_a_change() -> None:
    other = TENANT.replace("acme", "beta").replace(HASH, OTHER_HASH)
    settings = parse_config(TENANT + other + MINIMAL)
    assert changed_settings(settings, replace(settings, tenant=settings.tenant[::-1])) == ["tenant (order)"]
