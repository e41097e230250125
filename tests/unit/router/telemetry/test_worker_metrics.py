"""The files in which workers share their metrics."""

import errno
import os
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from router.telemetry.worker_metrics import prepare_metrics
from tests.support.processes import ended_process

GAUGES = {"gauge_livemax", "gauge_livemin", "gauge_livemostrecent", "gauge_livesum"}
KINDS = {"counter", "histogram", *GAUGES}


@pytest.fixture
def dead() -> int:
    return ended_process()


def test_the_gauges_of_a_dead_worker_are_dropped_and_its_counters_are_not(tmp_path: Path, dead: int) -> None:
    for kind in KINDS:
        (tmp_path / f"{kind}_{dead}.db").touch()
    prepare_metrics(tmp_path)
    own = {f"{kind}_{os.getpid()}.db" for kind in KINDS}
    assert {path.name for path in tmp_path.iterdir()} == own | {f"{kind}_{dead}.db" for kind in KINDS - GAUGES}


def test_the_counters_of_a_dead_worker_take_no_more_room_than_they_need(tmp_path: Path, dead: int) -> None:
    path = tmp_path / f"counter_{dead}.db"
    used = (24).to_bytes(4, sys.byteorder) + bytes(20)
    path.write_bytes(used + bytes(1 << 16))
    prepare_metrics(tmp_path)
    assert path.read_bytes() == used


@pytest.mark.parametrize("size", [0, 1 << 16])
def test_the_files_of_a_worker_that_died_in_its_start_can_be_read(tmp_path: Path, dead: int, size: int) -> None:
    (tmp_path / f"counter_{dead}.db").write_bytes(bytes(size))
    prepare_metrics(tmp_path)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(tmp_path))  # type: ignore[no-untyped-call]  # it has no types
    assert generate_latest(registry) == b""


def test_a_worker_that_starts_while_the_disk_is_full_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("router.telemetry.worker_metrics.allocate", fail)
    with pytest.raises(OSError, match="No space left"):
        prepare_metrics(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_another_process_never_finds_an_empty_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def record(file: int, size: int) -> None:
        sizes.extend(path.stat().st_size for path in tmp_path.glob("*.db"))
        os.truncate(file, size)

    monkeypatch.setattr("router.telemetry.worker_metrics.allocate", record)
    prepare_metrics(tmp_path)
    assert len(sizes) == sum(range(len(KINDS)))
    assert min(sizes) > 0
