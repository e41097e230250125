"""The pid file of a router: its lock says whether the router runs."""

import os
from pathlib import Path

import pytest

from router.process.pid_file import PidFile, running_pid
from router.process.serve import _pid_file


def test_a_file_that_another_holds_is_refused(tmp_path: Path) -> None:
    first = PidFile(tmp_path / "router-1.pid")
    try:
        with pytest.raises(BlockingIOError):
            PidFile(tmp_path / "router-1.pid")
        other = PidFile(tmp_path / "router-2.pid")
        assert running_pid(first.path) == os.getpid()
        other.close()
    finally:
        first.close()
    assert list(tmp_path.iterdir()) == []
    assert running_pid(first.path) is None


def test_a_router_that_can_write_no_pid_file_serves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    with _pid_file(tmp_path / "file" / "router.pid") as outcome_file:
        assert outcome_file is None
    assert "there is no pid file, so `roundhouse reload`" in caplog.text
