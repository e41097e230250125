"""When the supervisor holds a worker for frozen, and what it does about one that is frozen or dead."""

import signal
import socket
import threading
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from router.process import supervisor
from router.process.reloading import Reloader
from router.process.server import Reloaded
from router.process.supervisor import Supervisor, WorkerProcess, too_long_silence
from router.settings import Settings, parse
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
        self.settings: Any = None
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


SETTINGS = [
    parse(router_config("redis://127.0.0.1:1", {name: ("llama", "any", "http://127.0.0.1:1")}), {}) for name in "abc"
]


class ReloadingWorker(WorkerProcess):
    """One whose reports are given; `sent` has the commands that it got."""

    def __init__(self, number: int, directory: Path) -> None:
        self.place = WorkerPlace(directory, number, 2)
        self.sent: list[Any] = []
        self.reports: list[str | None] = []
        self.engines = None
        self.is_dead = False
        self.started_at, self.exitcode, self.pid = 0.0, -9, number
        self.process: Any = self
        self._commands: Any = self
        self._unsent: Any = SimpleNamespace(put=self.sent.append)
        self.settings, self._unreported = SETTINGS[0], deque()
        self._has_hung_up = False

    def is_alive(self) -> bool:
        return not self.is_dead

    def poll(self) -> bool:
        return bool(self.reports)

    def recv(self) -> Reloaded:
        return Reloaded(self.reports.pop(0))

    def close(self) -> None:
        pass


class Reloads(Reloader):
    """Reads one of SETTINGS after the other; `outcomes`: what came of them."""

    def __init__(self) -> None:
        self._read = iter(SETTINGS[1:])
        self.outcomes: list[str | None] = []

    def read(self, old: Settings) -> Settings:
        return next(self._read)

    def finish(self, problem: str | None) -> None:
        self.outcomes.append(problem)


@pytest.fixture
def reloading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Supervisor, list[ReloadingWorker], Reloads]:
    unused: Any = None
    reloads = Reloads()
    supervising = Supervisor(SETTINGS[0], reloads, unused, str(tmp_path))
    workers = [ReloadingWorker(number, tmp_path) for number in range(2)]
    supervising._workers = list(workers)
    monkeypatch.setattr(supervisor, "release_worker", lambda _: None)
    return supervising, workers, reloads


def test_a_configuration_that_one_worker_cannot_apply_is_in_effect_nowhere(
    reloading: tuple[Supervisor, list[ReloadingWorker], Reloads],
) -> None:
    supervising, (able, unable), reloads = reloading
    supervising._on_signal(signal.SIGHUP)
    able.reports, unable.reports = [None], ["no space left"]
    supervising._receive_reports()
    assert reloads.outcomes == ["no space left"]
    assert (able.sent, unable.sent) == ([SETTINGS[1], SETTINGS[0]], [SETTINGS[1]])
    able.reports = [None]
    supervising._receive_reports()
    assert reloads.outcomes == ["no space left"], "that it has the previous one again is no outcome"
    assert supervising._settings is SETTINGS[0], "a worker that replaces another starts with it"


def test_a_worker_that_cannot_go_back_either_gets_the_previous_configuration_until_it_has_it(
    reloading: tuple[Supervisor, list[ReloadingWorker], Reloads], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervising, (able, unable), reloads = reloading
    supervising._on_signal(signal.SIGHUP)
    able.reports, unable.reports = [None], ["no space left"]
    supervising._receive_reports()
    for _ in range(2):
        able.reports = ["no space left"]
        supervising._receive_reports()
        sent = len(able.sent)
        supervising._check_workers()
        assert len(able.sent) == sent, "not at once"
        pass_check_interval(supervising, monkeypatch)
        assert able.sent[sent:] == [SETTINGS[0]]
        pass_check_interval(supervising, monkeypatch)
        assert len(able.sent) == sent + 1, "it has yet to answer"
    able.reports = [None]
    supervising._receive_reports()
    sent = len(able.sent)
    pass_check_interval(supervising, monkeypatch)
    assert len(able.sent) == sent
    assert unable.sent == [SETTINGS[1]]
    assert reloads.outcomes == ["no space left"]


def pass_check_interval(supervising: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    later = supervising._last_check + supervising._heartbeat_timeout / 4
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: later))
    monkeypatch.setattr(supervising, "_kill_unresponsive", lambda _: None)
    supervising._check_workers()


def test_a_signal_during_the_way_back_begins_another_reload(
    reloading: tuple[Supervisor, list[ReloadingWorker], Reloads],
) -> None:
    supervising, (able, unable), reloads = reloading
    supervising._on_signal(signal.SIGHUP)
    able.reports, unable.reports = [None], ["no space left"]
    supervising._receive_reports()
    supervising._on_signal(signal.SIGHUP)
    assert able.sent == [SETTINGS[1], SETTINGS[0], SETTINGS[2]]
    unable.reports = [None]
    supervising._receive_reports()
    able.reports = [None]  # about the previous ones
    supervising._receive_reports()
    assert reloads.outcomes == ["no space left"]
    able.reports = [None]
    supervising._receive_reports()
    assert reloads.outcomes == ["no space left", None]
    assert supervising._settings is able.settings is unable.settings is SETTINGS[2]
    assert (len(able.sent), len(unable.sent)) == (3, 2)


def test_no_worker_keeps_the_first_of_two_configurations_if_the_second_cannot_be_applied(
    reloading: tuple[Supervisor, list[ReloadingWorker], Reloads],
) -> None:
    supervising, workers, reloads = reloading
    for _ in range(2):
        supervising._on_signal(signal.SIGHUP)
    for worker in workers:
        worker.reports = [None, "no space left"]
    supervising._receive_reports()
    assert reloads.outcomes == ["no space left"]
    assert [worker.sent for worker in workers] == [[*SETTINGS[1:], SETTINGS[0]]] * 2


def test_what_came_of_a_reload_does_not_finish_the_next_one(
    reloading: tuple[Supervisor, list[ReloadingWorker], Reloads],
) -> None:
    supervising, workers, reloads = reloading
    for _ in range(2):
        supervising._on_signal(signal.SIGHUP)
    for worker in workers:
        worker.reports = [None]  # about the first
    supervising._receive_reports()
    assert reloads.outcomes == []
    for worker in workers:
        worker.reports = ["no space left"]
    supervising._receive_reports()
    assert reloads.outcomes == ["no space left"]


def test_a_worker_that_starts_during_a_reload_gets_the_new_settings_after_those_in_effect(
    reloading: tuple[Supervisor, list[ReloadingWorker], Reloads], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervising, (dying, other), reloads = reloading
    started: list[Any] = []

    def start(place: WorkerPlace) -> ReloadingWorker:
        started.append(supervising._settings)
        return ReloadingWorker(place.worker, place.directory)

    monkeypatch.setattr(supervising, "_start_worker", start)
    supervising._on_signal(signal.SIGHUP)
    dying.is_dead, other.reports = True, [None]
    supervising._receive_reports()
    supervising._check_workers()
    assert (started, reloads.outcomes) == ([SETTINGS[0]], [])
    replacement: Any = supervising._workers[-1]
    assert replacement.sent == [SETTINGS[1]]
    replacement.reports = [None]
    supervising._receive_reports()
    assert reloads.outcomes == [None]
    assert supervising._settings is SETTINGS[1]
