"""The settings of what a tenant may do: its models and its priorities."""

from typing import Any

import pytest

from router.settings import ConfigurationError, parse
from tests.support.router_server import router_config


def parse_tenant(lines: str) -> Any:
    rest = f'[auth]\nmode = "header"\n[[tenant]]\nname = "acme"\n{lines}'
    return parse(router_config("unix:///x", {"one": ("llama", "any", "http://127.0.0.1:1")}, rest=rest), {}).tenant[0]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("models = []", "tenant[0].models: is empty, so the tenant could use no model; leave it out to allow all"),
        ('models = [""]', "tenant[0].models[0]"),
        ("priority = -1", "is a higher priority than highest_priority allows, which is 0; lower numbers come first"),
        ("highest_priority = 5\npriority = 4", "which is 5"),
        ("tokens_per_day = 0", "tenant[0].tokens_per_day"),
        ('max_ttft = "0s"', "tenant[0].max_ttft: '0s' must be greater than 0"),
        ("gpu_seconds_per_month = 1.5", "tenant[0].gpu_seconds_per_month"),
    ],
)
def test_a_mistake_is_named_with_its_place(lines: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_tenant(lines)
    assert message in str(refused.value)


def test_priorities_may_be_any_that_the_bound_allows() -> None:
    tenant = parse_tenant("highest_priority = -10\npriority = -10\ntokens_per_month = 30_000_000")
    assert (tenant.highest_priority, tenant.priority, tenant.tokens_per_month) == (-10, -10, 30_000_000)
