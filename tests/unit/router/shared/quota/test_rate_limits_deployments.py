"""Quotas are counted atomically in every Redis deployment, with the rights that the router needs."""

import asyncio
import secrets

import pytest

from router.core.quota.rate_limit import Quota
from router.shared.connection.redis import open_backend, open_pipeline
from router.shared.quota.rate_limits import TenantLimits
from tests.support.redis_deployments import Deployment

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_exactly_the_limit_is_admitted(deployment: Deployment) -> None:
    line = open_pipeline(open_backend(deployment.url, timeout=2), timeout=2, retry=0.05)
    await line.start()
    try:
        tenant = secrets.token_hex(4)
        limits, alone = TenantLimits(), TenantLimits()
        limits.configure(line, {tenant: Quota(requests_per_minute=7, concurrent_requests=90)})
        permits = await asyncio.gather(*(limits.reserve(tenant) for _ in range(40)))
        assert line.up
        assert [permit.status.exceeded for permit in permits if permit is not None].count(None) == 7
        alone.configure(line, {tenant: Quota(requests_per_minute=7)})
        other = await alone.reserve(tenant)
        assert other is not None
        assert other.status.exceeded == "requests", "it was counted there and not here"
    finally:
        await line.aclose()
