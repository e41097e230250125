"""An engine on a Ray cluster as `up` sees it, with a script in place of the driver."""

import importlib.util
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from engines.placement.ray_driver import JOB_VARIABLE, Job
from engines.placement.ray_process import FIRST_PLACEMENT_TIMEOUT, PLACEMENT_TIMEOUT, RayProcess
from engines.placement.ray_request import RayRequest
from engines.process import StartError
from tests.support.waiting import eventually

REQUEST = RayRequest(1, {"CPU": 2})
DRIVER = f"""
import json, os, pathlib, signal, time
job = json.loads(os.environ["{JOB_VARIABLE}"])
signal.signal(signal.SIGUSR1, lambda *_: print("killing the engine", flush=True))
print(json.dumps(job), flush=True)
pathlib.Path(job["url_file"]).write_text("http://10.0.0.1:" + str(os.getpid()))
time.sleep(600)
"""


@pytest_asyncio.fixture
async def process(tmp_path: Path) -> AsyncIterator[RayProcess]:
    created = RayProcess("e", ["vllm"], tmp_path / "e.log", {"SECRET": "s"}, REQUEST)
    created.argv = [sys.executable, "-c", DRIVER]
    yield created
    created.kill()
    created.kill()
    await created.stop()


async def test_its_url_is_known_between_its_placement_and_its_stop(process: RayProcess) -> None:
    assert process.url is None
    await process.start()
    await eventually(lambda: process.url == f"http://10.0.0.1:{process.pid}")
    await process.stop()
    assert process.url is None


async def test_a_start_forgets_the_url_of_the_last_run(process: RayProcess) -> None:
    process._url_file.write_text("http://10.0.0.1:1")
    process.argv = [sys.executable, "-c", "pass"]
    await process.start()
    assert process.url is None


async def test_the_driver_gets_the_request_and_waits_longer_for_a_node_after_the_first_start(
    process: RayProcess,
) -> None:
    jobs = []
    for _ in range(2):
        await process.start()
        await eventually(lambda: process.url)
        jobs.append(msgspec.json.decode(process.read_log_end(), type=Job))
        await process.stop()
    assert jobs[0].request == REQUEST
    assert jobs[0].env == {"SECRET": "s"}
    assert "SECRET" not in " ".join(process.argv)
    assert [job.connect_timeout for job in jobs] == [0, PLACEMENT_TIMEOUT], "a head node that died may come back"
    assert [job.placement_timeout for job in jobs] == [FIRST_PLACEMENT_TIMEOUT, PLACEMENT_TIMEOUT]


async def test_a_kill_is_passed_to_the_driver_and_the_next_one_kills_it(process: RayProcess) -> None:
    await process.start()
    await eventually(lambda: process.url)
    process.kill()
    await eventually(lambda: "killing the engine" in process.read_log_end())
    assert process.is_running
    process.kill()
    assert await process.wait() == -9


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
async def test_without_ray_the_start_names_the_extra(tmp_path: Path) -> None:
    process = RayProcess("e", ["vllm"], tmp_path / "e.log", {}, REQUEST)
    await process.start()
    with pytest.raises(StartError, match=r'placement = "ray" needs Ray: pip install "roundhouse-router\[ray\]"'):
        await process.wait_until_ready(is_never_ready, timeout=60)


async def is_never_ready() -> bool:
    return False
