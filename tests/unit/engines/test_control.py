"""Requests at the control socket of `roundhouse up`."""

import asyncio
import gc
import json
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from engines.control import MAX_REQUEST, serve_control
from engines.process import StartError
from engines.switch.request import (
    Progress,
    RollbackRequest,
    SwitchFailedError,
    SwitchRefusedError,
    SwitchRequest,
    SwitchResult,
)
from router.commands.engines.restart import is_up_running, request_restart
from router.commands.engines.switch import ControlError
from router.commands.engines.switch import exchange as switch_exchange
from router.shared.audit.actors import command_line_actor
from tests.support.waiting import TEST_TIMEOUT, eventually, next_line


class Supervisor:
    """Stands in for an EngineSupervisor; `failure` is what a restart raises."""

    def __init__(self) -> None:
        self.restarts = 0
        self.failure: Exception | None = None

    async def restart(self) -> None:
        self.restarts += 1
        if self.failure is not None:
            raise self.failure


class Switcher:
    """Stands in for the one of engines.switch; a switch ends when `done` is set."""

    def __init__(self) -> None:
        self.requests: list[SwitchRequest | RollbackRequest] = []
        self.failure: Exception | None = None
        self.is_switching = False
        self.done = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def switch(
        self, request: SwitchRequest | RollbackRequest, report: Callable[[Progress], None], actor: str
    ) -> SwitchResult:
        assert actor == command_line_actor()
        self.requests.append(request)
        report(Progress("start", "e0 at http://127.0.0.1:1"))
        try:
            await self.done.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if self.failure is not None:
            raise self.failure
        return SwitchResult(model="llama", revision="r2", after=False, engines=[])

    rollback = switch


@pytest.fixture
def supervisor() -> Supervisor:
    return Supervisor()


@pytest.fixture
def switcher() -> Switcher:
    return Switcher()


@pytest_asyncio.fixture
async def control_socket(tmp_path: Path, supervisor: Supervisor, switcher: Switcher) -> AsyncIterator[Path]:
    path = tmp_path / "up.sock"
    path.touch()  # left by a run that was killed
    fleet: Any = SimpleNamespace(
        engines={"e0": SimpleNamespace(supervisor=supervisor)}, turns=SimpleNamespace(is_resting=lambda _: False)
    )
    stand_in: Any = switcher
    server = await serve_control(path, fleet, stand_in)
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


async def test_during_a_switch_no_engine_is_restarted(
    control_socket: Path, supervisor: Supervisor, switcher: Switcher
) -> None:
    switcher.is_switching = True
    error = await asyncio.to_thread(request_restart, control_socket, "e0", 10)
    assert (error, supervisor.restarts) == ("a switch is under way", 0)


@pytest.mark.parametrize("request_", [b"", b"restart e0\n", b"{}\n", b"[1]\n", b"x" * (MAX_REQUEST + 1), b"\xff\n"])
async def test_an_invalid_request_is_refused(control_socket: Path, supervisor: Supervisor, request_: bytes) -> None:
    assert (await exchange(control_socket, request_)).startswith("invalid request: ")
    assert supervisor.restarts == 0


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"switch": {"engine": "e0", "target": "new"}}, SwitchRequest(engine="e0", target="new")),
        ({"rollback": {"engine": "e0", "after": True}}, RollbackRequest(engine="e0", after=True)),
    ],
)
async def test_a_switch_reports_its_progress_and_its_result(
    control_socket: Path, switcher: Switcher, request_: dict[str, Any], expected: object
) -> None:
    switcher.done.set()
    events: list[tuple[str, str]] = []
    result = await asyncio.to_thread(switch_exchange, control_socket, request_, lambda *event: events.append(event))
    assert switcher.requests == [expected]
    assert events == [("start", "e0 at http://127.0.0.1:1")]
    assert result == {"model": "llama", "revision": "r2", "after": False, "engines": [], "shadow": None}


@pytest.mark.parametrize("failure", [SwitchRefusedError("nothing to change"), SwitchFailedError("e0: not ready")])
async def test_a_switch_that_was_not_done_is_reported_with_its_reason(
    control_socket: Path, switcher: Switcher, failure: Exception
) -> None:
    switcher.failure = failure
    switcher.done.set()
    request = {"switch": {"engine": "e0"}}
    with pytest.raises(ControlError, match=str(failure)):
        await asyncio.to_thread(switch_exchange, control_socket, request, lambda *_: None)


async def test_a_client_that_disconnects_cancels_its_switch(control_socket: Path, switcher: Switcher) -> None:
    reader, writer = await asyncio.open_unix_connection(control_socket)
    writer.write(b'{"switch": {"engine": "e0"}}\n')
    await next_line(reader)
    writer.close()
    async with asyncio.timeout(TEST_TIMEOUT):
        await switcher.cancelled.wait()


async def test_a_client_that_resets_its_connection_cancels_its_switch_without_a_traceback(
    control_socket: Path, switcher: Switcher, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(control_socket))
        client.sendall(b'{"switch": {"engine": "e0"}}\n')
        await eventually(lambda: switcher.requests)
    # Closed with an event that it has not read: the connection is reset.
    async with asyncio.timeout(TEST_TIMEOUT):
        await switcher.cancelled.wait()
    await eventually(lambda: len(asyncio.all_tasks()) == 1)
    gc.collect()  # asyncio reports an exception that nobody retrieved when its task is freed
    assert caplog.messages == []


def test_the_end_of_up_prints_no_traceback_for_the_command_that_it_cancels(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def end_during_a_switch() -> None:
        path, stand_in = tmp_path / "up.sock", Switcher()
        fleet: Any = SimpleNamespace(engines={})
        server = await serve_control(path, fleet, stand_in)  # type: ignore[arg-type]  # has what is used
        client.connect(str(path))
        client.sendall(b'{"switch": {"engine": "e0"}}\n')
        await eventually(lambda: stand_in.requests)
        server.close()

    with socket.socket(socket.AF_UNIX) as client:
        asyncio.run(end_during_a_switch())
    assert caplog.messages == []


@pytest.mark.parametrize(
    "request_",
    [
        {"switch": {"engine": "e0", "targte": "new"}}, {"switch": {"target": "new"}}, {"switch": {"engine": ""}},
        {"switch": {"engine": "e0", "shadow": 1001}}, {"rollback": {"engine": "e0", "drain_timeout": -1}},
        {"switch": {"engine": "e0"}, "rollback": {"engine": "e0"}}, {"restart": "e0", "switch": {"engine": "e0"}},
    ],
    ids=str,
)  # fmt: skip
async def test_an_invalid_switch_is_refused(control_socket: Path, switcher: Switcher, request_: dict[str, Any]) -> None:
    assert (await exchange(control_socket, json.dumps(request_).encode() + b"\n")).startswith("invalid request: ")
    assert switcher.requests == []


async def test_only_its_user_may_connect(control_socket: Path) -> None:
    assert control_socket.stat().st_mode & 0o077 == 0


async def test_without_a_server_nothing_runs(tmp_path: Path) -> None:
    assert not is_up_running(tmp_path / "up.sock")
    assert request_restart(tmp_path / "up.sock", "e0", 1) == "`roundhouse up` was stopped"
