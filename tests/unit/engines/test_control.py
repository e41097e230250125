"""Requests at the control socket of `roundhouse up`."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from engines.control import MAX_REQUEST, serve_control
from engines.process import StartError
from router.commands.restart import is_up_running, request_restart


class Supervisor:
    """Stands in for an EngineSupervisor; `failure` is what a restart raises."""

    def __init__(self) -> None:
        self.restarts = 0
        self.failure: Exception | None = None

    async def restart(self) -> None:
        self.restarts += 1
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def supervisor() -> Supervisor:
    return Supervisor()


@pytest_asyncio.fixture
async def control_socket(tmp_path: Path, supervisor: Supervisor) -> AsyncIterator[Path]:
    path = tmp_path / "up.sock"
    path.touch()  # left by a run that was killed
    server = await serve_control(path, {"e0": supervisor})  # type: ignore[dict-item]
    yield path
    server.close()


async def exchange(path: Path, request: bytes) -> str:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(request)
    writer.write_eof()
    reply = json.loads(await reader.read())
    writer.close()
    assert isinstance(reply["error"], str)
    return reply["error"]


async def test_an_engine_is_restarted_and_the_reply_comes_when_it_is_ready(
    control_socket: Path, supervisor: Supervisor
) -> None:
    assert is_up_running(control_socket)
    assert await asyncio.to_thread(request_restart, control_socket, "e0", 10) is None
    assert supervisor.restarts == 1


async def test_a_failed_restart_is_reported_with_its_reason(control_socket: Path, supervisor: Supervisor) -> None:
    supervisor.failure = StartError("e0: ended with code 3 before it was ready")
    error = await asyncio.to_thread(request_restart, control_socket, "e0", 10)
    assert error == "e0: ended with code 3 before it was ready"


async def test_an_unknown_engine_is_reported_with_those_that_run(control_socket: Path) -> None:
    error = await asyncio.to_thread(request_restart, control_socket, "e9", 10)
    assert error == "no engine 'e9' runs here; there is e0"


@pytest.mark.parametrize("request_", [b"", b"restart e0\n", b"{}\n", b"[1]\n", b"x" * (MAX_REQUEST + 1), b"\xff\n"])
async def test_an_invalid_request_is_refused(control_socket: Path, supervisor: Supervisor, request_: bytes) -> None:
    assert (await exchange(control_socket, request_)).startswith("invalid request: ")
    assert supervisor.restarts == 0


async def test_only_its_user_may_connect(control_socket: Path) -> None:
    assert control_socket.stat().st_mode & 0o077 == 0


async def test_without_a_server_nothing_runs(tmp_path: Path) -> None:
    assert not is_up_running(tmp_path / "up.sock")
    assert request_restart(tmp_path / "up.sock", "e0", 1) == "`roundhouse up` was stopped"
