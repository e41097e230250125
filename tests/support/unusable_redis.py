"""Asserts that a server is no Redis that a router can use."""

import asyncio
from typing import Final

import pytest

from router.net.redis.pipeline import RedisDownError
from router.net.tasks import cancel_and_wait
from router.shared.connection.redis import ask_server, open_backend, open_pipeline

STARTS: Final = ("redis+cluster://127.0.0.1:{port}", "redis+sentinel://127.0.0.1:{port}/m", "redis://127.0.0.1:{port}")
"""The URLs of a server at a port: of a cluster, of Sentinel, of Redis."""

BOUND: Final = 5.0  # seconds; the time of a busy machine, not that of Redis


async def assert_unusable(url: str) -> None:
    pipeline = open_pipeline(open_backend(url, timeout=0.1), timeout=0.1, retry=0.02)
    async with asyncio.timeout(BOUND):
        await asyncio.wait([starting := asyncio.ensure_future(pipeline.start())], timeout=0.1)
        assert not pipeline.up
        with pytest.raises(RedisDownError):
            pipeline.execute(("GET", "x"))
        await cancel_and_wait(starting)
        await pipeline.aclose()
    assert (await ask_server(url, timeout=0.1)).problem or url.startswith("redis:")
