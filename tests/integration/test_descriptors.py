"""File descriptors: what happens when none is left, and how many clients may connect."""

import asyncio
import json
import os
import re
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from router.process_limits import MAX_DESCRIPTORS, max_connections
from tests.support.paths import ROOT
from tests.support.raw_http import VERSION_REQUEST, RawConnection, connect
from tests.support.redis_process import RedisServer
from tests.support.router_process import ROUNDHOUSE, RouterProcess
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


def run_exhausted(redis_url: str) -> Any:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.descriptor_exhaustion", redis_url],
        capture_output=True,
        text=True,
        timeout=60,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def test_a_router_without_file_descriptors_blames_no_engine(redis_server: RedisServer, redis: Any) -> None:
    seen = await asyncio.to_thread(run_exhausted, redis_server.url)
    for failure in seen["failures"]:
        assert (failure["status"], failure["code"]) == (503, "out_of_resources")
        assert failure["retry_after"]
        assert failure["type"] == "service_unavailable_error"
    assert seen["up"] == [True]
    assert seen["breakers"] == ["CLOSED"]
    assert seen["retries"] == []
    assert seen["rejected"] == ['llm_requests_rejected_total{reason="out_of_resources",tenant="default"} 8.0']


# -- the number of clients --------------------------------------------------------------------------------------------

SOFT, HARD = 200, 240
"""The soft and the hard limit of descriptors of the router."""


@pytest.fixture
def few(tmp_path: Path, redis: Any, config: str) -> Any:
    """A router with a low limit of descriptors."""
    served = RouterProcess(tmp_path, config)
    limited = f'ulimit -S -n {SOFT} && ulimit -H -n {HARD} && exec "$@"'
    served.start(argv=["sh", "-c", limited, "sh", *ROUNDHOUSE, "serve", "-c", str(served.config)])
    yield served
    served.kill()


async def test_the_soft_limit_is_raised_to_the_hard_one(few: RouterProcess) -> None:
    await few.wait_until_ready()
    limits = Path(f"/proc/{few.process.pid}/limits").read_text()
    (found,) = re.findall(r"Max open files +(\d+) +(\d+)", limits)
    assert found == (str(HARD), str(HARD))
    assert f"allow {max_connections(HARD)} clients" in few.log.read_text()


async def test_clients_beyond_the_limit_get_503_and_those_before_it_are_served(few: RouterProcess) -> None:
    await few.wait_until_ready()

    async def answers(connection: RawConnection) -> bool:
        connection.write(VERSION_REQUEST)
        return (await connection.read_response()).status == 200

    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(connect(few.port))
        assert await answers(first)
        refused = []
        for _ in range(2 * HARD):  # more than its limit of descriptors
            connection = await stack.enter_async_context(connect(few.port))
            if not await answers(connection):
                refused.append(connection)
        assert 2 * HARD + 1 - len(refused) in range(max_connections(HARD) - 1, max_connections(HARD) + 1)
        assert await answers(first)
        async with connect(few.port) as late:
            answer = await late.read_response()  # without a request
            assert (answer.status, answer.error_code) == (503, "too_many_connections")
            assert b"\r\nretry-after: 1\r\n" in answer.head
            assert b"\r\nconnection: close\r\n" in answer.head
            assert await late.read_to_end() == b""
        first.write(VERSION_REQUEST.replace(b"/version", b"/metrics"))
        page = (await first.read_response()).body.decode()
        (count,) = re.findall(
            r'llm_requests_rejected_total\{reason="too_many_connections",tenant="none"\} ([0-9.]+)', page
        )
        assert float(count) == len(refused) + 1
        assert 'roundhouse_engine_up{engine="llama-chat"} 1.0' in page
        assert "roundhouse_redis_up 1.0" in page
    assert few.log.read_text().count("clients are connected, others get 503") == 1

    async def is_served() -> bool:
        async with connect(few.port) as connection:
            return await answers(connection)

    await eventually(is_served)


async def test_half_of_the_descriptors_is_left_for_engines() -> None:
    assert max_connections(1024) == 480
    assert max_connections(MAX_DESCRIPTORS) == 524_256
    assert max_connections(10) == 1
