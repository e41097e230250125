"""File descriptors: what happens when there are none left, and how many clients may have."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from redis_process import RedisServer

pytestmark = pytest.mark.asyncio(loop_scope="session")
pytest_plugins = ["router_fixtures"]

ROOT = Path(__file__).parents[2]
EXHAUSTED = ROOT / "tests" / "engines" / "exhausted.py"


def run_exhausted(redis_url: str) -> Any:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(EXHAUSTED.parent)])}
    done = subprocess.run(
        [sys.executable, str(EXHAUSTED), redis_url], capture_output=True, text=True, timeout=60, env=env
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def test_a_router_without_descriptors_blames_no_engine(redis_server: RedisServer, redis: Any) -> None:
    seen = await asyncio.to_thread(run_exhausted, redis_server.url)
    for failure in seen["failures"]:
        assert (failure["status"], failure["code"]) == (503, "out_of_resources")
        assert failure["retry_after"]
        assert failure["type"] == "service_unavailable_error"
    assert seen["up"] == [True]
    assert seen["breakers"] == ["CLOSED"]
    assert seen["retries"] == []
    assert seen["rejected"] == ['llm_requests_rejected_total{reason="out_of_resources"} 8.0']
