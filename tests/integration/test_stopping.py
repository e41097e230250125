"""How `roundhouse serve` stops: load balancers notice, open requests end, and no process is left behind."""

import asyncio
import json
import os
import pty
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess, http_client
from tests.support.router_server import EngineSet, chat_body, router_config
from tests.support.waiting import TEST_TIMEOUT, eventually, next_line

pytestmark = pytest.mark.asyncio(loop_scope="session")

WORKERS = pytest.mark.parametrize("workers", [1, 2])


@pytest.fixture
def serve(tmp_path: Path, redis: Any, redis_server: RedisServer, engines: EngineSet) -> Iterator[Any]:
    started: list[RouterProcess] = []

    async def start(router: str) -> RouterProcess:
        started.append(RouterProcess(tmp_path, router_config(redis_server.url, engines.as_config(), router=router)))
        started[-1].start()
        await started[-1].wait_until_ready()
        return started[-1]

    yield start
    for served in started:
        served.kill()


async def code(served: RouterProcess) -> int:
    return await asyncio.to_thread(served.process.wait, TEST_TIMEOUT)


def streaming(http: httpx.AsyncClient) -> Any:
    return http.stream("POST", "/v1/chat/completions", json=chat_body("The sea?", stream=True))


async def refused(served: RouterProcess) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # it was in the accept queue of the closed socket
        return False
    writer.close()
    return False


@pytest.mark.parametrize(("workers", "to_all"), [(1, False), (2, True)])
async def test_sigterm_makes_the_router_not_ready_and_further_requests_are_served(
    serve: Any, workers: int, to_all: bool
) -> None:
    # A busy machine may take seconds to answer both requests.
    served = await serve(f'drain = "6s"\nworkers = {workers}')
    served.send_signal(signal.SIGTERM) if to_all else served.process.send_signal(signal.SIGTERM)

    async def not_ready() -> bool:
        async with http_client(served.url) as http:
            answer = await http.get("/readyz")
            return answer.status_code == 503 and "shutting down" in answer.text

    await eventually(not_ready)
    async with http_client(served.url) as http:
        answer = await http.post("/v1/chat/completions", json=chat_body("The sea?"))
    assert answer.status_code == 200
    assert await code(served) == 0
    assert await refused(served)


@pytest.mark.parametrize(("workers", "number"), [(1, signal.SIGINT), (2, signal.SIGTERM)])
async def test_a_stream_in_progress_ends_normally_and_then_the_router_exits_with_0(
    serve: Any, engines: EngineSet, workers: int, number: signal.Signals
) -> None:
    served = await serve(f'drain = "0s"\nworkers = {workers}')
    await engines.chat.set_faults({"fault": "tps", "rate": 40})
    async with http_client(served.url) as http, streaming(http) as answer:
        served.process.send_signal(number)
        await eventually(lambda: refused(served))
        assert (await answer.aread()).endswith(b"data: [DONE]\n\n")
    assert await code(served) == 0


async def test_a_stream_that_does_not_end_is_cut_after_the_grace_period(serve: Any, engines: EngineSet) -> None:
    served = await serve('drain = "0s"\ngrace = "500ms"\nworkers = 2')
    await engines.chat.set_faults({"fault": "stall", "after": 2})
    async with http_client(served.url) as http, streaming(http) as answer:
        waiting = asyncio.ensure_future(http.post("/v1/chat/completions", json=chat_body("The moon?")))
        await engines.chat.stats(in_flight=2)
        served.process.send_signal(signal.SIGTERM)
        received = await answer.aread()
        assert received.endswith(b"\n\n")
        assert json.loads(received.split(b"data: ")[-1])["error"]["code"] == "stopping"
        refused = await waiting
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "stopping")
    assert await code(served) == 0
    await engines.chat.stats(in_flight=0)
    log = served.log.read_text()
    assert "outcome=failed" in log
    assert "Traceback" not in log


@WORKERS
async def test_a_second_ctrl_c_does_not_wait(serve: Any, engines: EngineSet, workers: int) -> None:
    served = await serve(f"workers = {workers}")
    await engines.chat.set_faults({"fault": "stall", "after": 2})
    async with http_client(served.url) as http, streaming(http):
        served.send_signal(signal.SIGINT)
        await eventually(lambda: refused(served))
        served.send_signal(signal.SIGINT)
        assert await code(served) == 130


async def test_a_worker_that_dies_or_is_frozen_is_replaced_and_workers_end_with_their_supervisor(
    tmp_path: Path, redis: Any, redis_server: RedisServer, engines: EngineSet
) -> None:
    served = RouterProcess(tmp_path, router_config(redis_server.url, engines.as_config(), router="workers = 2"))
    served.start(argv=[sys.executable, "-c", _IMPATIENT, str(served.config)])
    try:
        await served.wait_until_ready()
        await eventually(lambda: "ready: " in served.log.read_text())  # both, so both have sent a heartbeat
        frozen, gone = before = served.worker_pids()
        served.kill_worker(gone)
        os.kill(frozen, signal.SIGSTOP)
        await eventually(lambda: len(now := served.worker_pids()) == 2 and not now & before)
        log = served.log.read_text()
        assert f"worker {gone} exited with code -9; replacing it" in log
        assert re.search(rf"worker {frozen} has sent no heartbeat for [0-9.]+ s; killing it", log)
        await served.wait_until_ready()
        workers = served.worker_pids()
        os.kill(served.process.pid, signal.SIGKILL)
        await eventually(lambda: not any(map(_runs, workers)))
        assert await refused(served)
    finally:
        served.kill()


_IMPATIENT = """
import os, sys, tempfile
from pathlib import Path
from router.telemetry.log_output import set_up_logging
from router.process.reloading import Reloader
from router.process.serve import METRICS_DIR_VARIABLE, listen
from router.settings import load
from router.process.supervisor import Supervisor

if __name__ == "__main__":
    settings = load(Path(sys.argv[1]))
    set_up_logging("text")
    reloader = Reloader(Path(sys.argv[1]))
    with tempfile.TemporaryDirectory() as shared:
        os.environ[METRICS_DIR_VARIABLE] = shared
        raise SystemExit(Supervisor(settings, reloader, listen(settings), shared, heartbeat_timeout=3.0).run())
"""


async def test_an_idle_connection_is_closed_at_once_and_a_request_that_is_still_arriving_is_served(serve: Any) -> None:
    served = await serve("")
    idle, closing_idle = await asyncio.open_connection("127.0.0.1", served.port)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(b"GET /version HTTP/1.1\r\nhost: a\r\n")
    other, closing = await asyncio.open_connection("127.0.0.1", served.port)
    closing.write(b"GET /version HTTP/1.1\r\nhost: a\r\n\r\n")
    # This request was sent later, so the first bytes of the one above have arrived too.
    assert (await next_line(other)).startswith(b"HTTP/1.1 200 ")
    served.process.send_signal(signal.SIGTERM)
    await eventually(lambda: refused(served))
    assert await idle.read() == b""
    writer.write(b"\r\n")
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nconnection: close\r\n" in answer
    assert await code(served) == 0
    for stream in (closing_idle, writer, closing):
        stream.close()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@WORKERS
async def test_a_router_whose_terminal_is_closed_exits(
    tmp_path: Path, redis: Any, redis_server: RedisServer, engines: EngineSet, workers: int
) -> None:
    served = RouterProcess(
        tmp_path, router_config(redis_server.url, engines.as_config(), router=f"workers = {workers}")
    )
    ours, theirs = pty.openpty()
    try:
        served.start(theirs)
        os.close(theirs)
        await served.wait_until_ready()
        os.close(ours)
        served.process.send_signal(signal.SIGHUP)
        assert await code(served) == 0
    finally:
        served.kill()
