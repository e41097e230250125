"""Who listens on a port, with real sockets of this process and of a child."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engines.preflight.gather.ports import read_port
from engines.preflight.gather.processes import describe, listeners
from engines.preflight.observations import Process
from tests.support.ports import free_port
from tests.support.waiting import next_line

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")

CHILD = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.create_server((sys.argv[1], 0), family=family) as listening:
    print(listening.getsockname()[1], flush=True)
    sys.stdin.read()
"""


@pytest.fixture
async def child(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[int, int]]:
    """The pid and port of a child that listens but does not answer, as a dead engine does."""
    host = getattr(request, "param", "127.0.0.1")
    script = tmp_path / "vllm.py"
    script.write_text(CHILD)
    pipe = asyncio.subprocess.PIPE
    argv = [sys.executable, str(script), host, "--api-key", "a-secret"]
    process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    try:
        yield process.pid, int(await next_line(process.stdout))
    finally:
        process.kill()
        await process.communicate()


def test_this_process_is_found_by_its_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert os.getpid() in [process.pid for process in listeners(port)]
    assert os.getpid() not in [process.pid for process in listeners(port)]


@pytest.mark.parametrize("child", ["127.0.0.1", "::1"], indirect=True)
async def test_another_process_is_found_by_its_port(child: tuple[int, int]) -> None:
    pid, port = child
    # Another test may listen on the same port of the other address.
    (found,) = (process for process in listeners(port) if process.pid == pid)
    assert "python" in found.command
    assert found.is_vllm
    assert not found.is_orphan


async def test_options_of_a_process_are_not_shown_since_they_may_contain_keys(child: tuple[int, int]) -> None:
    (found,) = listeners(child[1])
    assert "--api-key" not in found.command
    assert "a-secret" not in found.command


async def test_a_connection_to_a_port_does_not_make_its_process_a_listener(child: tuple[int, int]) -> None:
    with socket.create_connection(("127.0.0.1", child[1])) as connection:
        assert [process.pid for process in listeners(child[1])] == [child[0]]
        assert listeners(connection.getsockname()[1]) == ()


async def test_a_port_whose_process_does_not_answer_is_in_use_and_not_healthy(child: tuple[int, int]) -> None:
    port = await asyncio.to_thread(read_port, "e", "127.0.0.1", child[1])
    assert (port.failure, port.is_healthy) == ("in use", False)
    assert [owner.pid for owner in port.owners] == [child[0]]


async def test_a_server_that_answers_health_is_healthy() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        status = b"200 OK" if request.startswith(b"GET /health ") else b"404 Not Found"
        writer.write(b"HTTP/1.1 %b\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % status)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        number = server.sockets[0].getsockname()[1]
        port = await asyncio.to_thread(read_port, "e", "127.0.0.1", number)
    assert port.is_healthy is True


def test_a_free_port_is_left_free() -> None:
    number = free_port()
    assert read_port("e", "127.0.0.1", number).failure is None
    assert read_port("e", "127.0.0.1", number).failure is None


@pytest.mark.parametrize(
    ("host", "failure"), [("192.0.2.1", "no such address"), ("no-such-host.invalid", "unknown host")]
)
def test_addresses_that_are_not_of_this_machine_are_told_apart(host: str, failure: str) -> None:
    assert read_port("e", host, 8001).failure == failure


def test_a_process_that_has_exited_is_not_described() -> None:
    assert describe(2**22 + 1) is None


def test_an_orphan_and_a_name_with_parentheses_are_understood(tmp_path: Path) -> None:
    folder = tmp_path / "4980"
    folder.mkdir()
    (folder / "cmdline").write_bytes(b"")
    (folder / "stat").write_text("4980 (VLLM::Engine) Core) S 1 4711 4711 0 -1")
    assert describe(4980, tmp_path) == Process(4980, "VLLM::Engine) Core", is_orphan=True)


def test_without_proc_nothing_is_known(tmp_path: Path) -> None:
    assert listeners(8001, tmp_path) == ()
