"""The temporary directory that workers share."""

import fcntl
import os
import tempfile
from pathlib import Path

import pytest

from router.process.serve import _workers_dir
from tests.support.processes import ended_process


def test_while_it_is_used_it_has_a_lock_that_keeps_systemd_from_deleting_it() -> None:
    with _workers_dir() as directory:
        file = os.open(directory, os.O_RDONLY)
        try:
            with pytest.raises(BlockingIOError):  # as systemd-tmpfiles asks
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(file)
    assert not Path(directory).exists()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def leave_directory(temporary: Path, worker: int, *, age: float = 3600.0) -> Path:
    """What a router leaves that is killed; `age` in seconds."""
    directory = temporary / "roundhouse-metrics-left"
    (directory / "slots").mkdir(parents=True)
    (directory / f"counter_{worker}.db").touch()
    changed_at = directory.stat().st_mtime - age
    os.utime(directory, (changed_at, changed_at))
    return directory


def test_the_directory_of_a_router_that_was_killed_is_removed_by_the_next_one(temporary: Path) -> None:
    left = leave_directory(temporary, ended_process())
    with _workers_dir():
        assert not left.exists()


@pytest.mark.parametrize("why", ["its supervisor runs", "a worker runs", "it has just been created"])
def test_the_directory_of_a_router_that_runs_stays(temporary: Path, why: str) -> None:
    left = leave_directory(
        temporary,
        os.getpid() if why == "a worker runs" else ended_process(),
        age=0.0 if why == "it has just been created" else 3600.0,
    )
    file = os.open(left, os.O_RDONLY)
    try:
        if why == "its supervisor runs":
            fcntl.flock(file, fcntl.LOCK_SH)
        with _workers_dir():
            assert left.exists()
    finally:
        os.close(file)
