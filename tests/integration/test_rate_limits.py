"""A tenant's rate limits, as openai-python meets them. The scenarios are in tests/world."""

import asyncio
import time
from typing import Any

import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, RateLimitError

from tests.support.limited_tenants import ACME, tenant_tables
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, router_config
from tests.support.streaming_client import open_stream
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_openai_python_waits_for_retry_after_and_then_succeeds(
    make_router: MakeRouter, redis_server: RedisServer, engines: EngineSet
) -> None:
    text = router_config(redis_server.url, engines.as_config(), rest=tenant_tables("concurrent_requests = 1"))
    router = await make_router(text)
    for engine in (engines.chat, engines.code):
        await engine.set_faults({"fault": "stall", "after": 3, "match": "another"})
    http = DefaultAsyncHttpxClient(verify=False, trust_env=False)
    options: Any = {"base_url": f"{router.url}/v1", "api_key": "none", "http_client": http, "default_headers": ACME}
    body: Any = {"model": "llama", "messages": [{"role": "user", "content": "The sea?"}]}
    async with AsyncOpenAI(max_retries=0, **options) as client:
        async with open_stream(router, "another", headers=ACME):
            with pytest.raises(RateLimitError) as raised:
                await client.chat.completions.create(**body)
            assert raised.value.code == "rate_limit_exceeded"
            started = time.monotonic()
            patient = asyncio.ensure_future(client.with_options(max_retries=3).chat.completions.create(**body))

            async def refused_again() -> bool:
                name = 'llm_requests_rejected_total{reason="concurrent_requests_limit",tenant="acme"}'
                return (await router.metrics()).get(name, 0) >= 2

            await eventually(refused_again)
        assert (await patient).choices[0].message.content
        assert time.monotonic() - started >= 0.9, "Retry-After is a second"
