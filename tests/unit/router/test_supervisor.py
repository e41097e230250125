"""When the supervisor holds a worker for frozen, and what it does about one that is frozen or dead."""

import signal
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from router.process import supervisor
from router.process.supervisor import Supervisor, WorkerProcess, too_long_silence
from router.settings import parse
from router.upstream.shared_slots import WorkerPlace
from tests.support.router_server import router_config


def test_a_worker_that_has_stopped_sending_heartbeats_is_too_silent() -> None:
    assert too_long_silence(131.0, started_at=0.0, last_heartbeat=100.0, timeout=30.0) == 31.0
    assert too_long_silence(129.0, started_at=0.0, last_heartbeat=100.0, timeout=30.0) is None


def test_a_worker_may_start_for_longer_than_it_may_be_silent_afterwards() -> None:
    assert too_long_silence(31.0, started_at=0.0, last_heartbeat=None, timeout=30.0) is None
    assert too_long_silence(121.0, started_at=0.0, last_heartbeat=None, timeout=30.0) == 121.0


class DeadWorker(WorkerProcess):
    """One that has been killed, in place of a process."""

    def __init__(self, place: WorkerPlace) -> None:
        self.place = place
        self.started_at = 0.0
        self.process: Any = self
        self.exitcode, self.pid = -9, place.worker

    def is_alive(self) -> bool:
        return False

    def close(self) -> None:
        pass


def test_the_slots_of_all_dead_workers_are_free_before_the_first_replacement_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    unused: Any = None
    supervising = Supervisor(unused, unused, unused, str(tmp_path))

    def start(place: WorkerPlace) -> Any:
        events.append(f"starts {place.worker}")
        return DeadWorker(place)

    monkeypatch.setattr(supervisor, "release_worker", lambda place: events.append(f"releases {place.worker}"))
    monkeypatch.setattr(supervising, "_start_worker", start)
    supervising._workers = [DeadWorker(WorkerPlace(tmp_path, number, 3)) for number in range(3)]
    supervising._check_workers()
    assert events == [f"{action} {number}" for action in ("releases", "starts") for number in range(3)]


class SilentWorker(WorkerProcess):
    """One whose last heartbeat was at this instant; `killed` says whether it was killed."""

    last_heartbeat: Any = 0.0

    def __init__(self, last_heartbeat: float) -> None:
        self.last_heartbeat = last_heartbeat
        self.started_at = 0.0
        self.process: Any = self
        self.pid, self.killed = 1, False

    def is_alive(self) -> bool:
        return True

    def kill(self) -> None:
        self.killed = True

    def join(self) -> None:
        pass


def test_no_worker_is_held_for_frozen_if_the_supervisor_was_frozen_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unused: Any = None
    now = 100.0
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: now))
    supervising = Supervisor(unused, unused, unused, str(tmp_path), heartbeat_timeout=30.0)
    frozen, alive = SilentWorker(100.0), SilentWorker(100.0)
    supervising._workers = [frozen, alive]
    now = 200.0  # all processes were stopped until now
    supervising._check_workers()
    assert not frozen.killed
    alive.last_heartbeat = 207.0
    now = 208.0
    supervising._check_workers()
    assert (frozen.killed, alive.killed) == (True, False)


def reads_nothing(*_: Any) -> None:
    """In place of `worker_main`: a worker that is frozen from its start."""
    signal.pause()


def test_commands_to_a_worker_that_reads_none_do_not_hold_up_the_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "worker_main", reads_nothing)
    settings = parse(router_config("redis://127.0.0.1:1", {"a": ("llama", "any", "http://127.0.0.1:1")}), {})
    with socket.socket() as listening:
        worker = WorkerProcess(settings, listening, str(tmp_path), WorkerPlace(tmp_path, 0, 1))

        def send() -> None:
            for _ in range(1000):  # a megabyte, which no pipe takes
                worker.send_command(settings)

        sending = threading.Thread(target=send, daemon=True)
        sending.start()
        sending.join(10)
        try:
            assert not sending.is_alive()
        finally:
            worker.process.kill()
            worker.close()
