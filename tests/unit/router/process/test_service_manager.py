"""What a service manager is told."""

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.process.service_manager import notify_ready


@pytest.fixture
def manager() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(10)
        yield manager


def test_it_is_told_that_the_router_is_ready(manager: socket.socket, tmp_path: Path) -> None:
    manager.bind(str(tmp_path / "notify"))
    notify_ready({"NOTIFY_SOCKET": str(tmp_path / "notify")})
    assert manager.recv(100) == b"READY=1"


def test_its_socket_may_be_abstract(manager: socket.socket) -> None:
    manager.bind(b"")  # Linux chooses an abstract address
    address = manager.getsockname()
    assert address.startswith(b"\0")
    notify_ready({"NOTIFY_SOCKET": f"@{address[1:].decode()}"})
    assert manager.recv(100) == b"READY=1"


def test_without_one_nothing_happens() -> None:
    notify_ready({})
    notify_ready({"NOTIFY_SOCKET": ""})


def test_a_manager_that_is_gone_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        notify_ready({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    assert "No such file" in caplog.text
