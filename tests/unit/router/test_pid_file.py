"""The pid file of a router: its lock says whether the router runs."""

import os
from pathlib import Path

import pytest

from router.pid_file import PidFile, running_pid


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
