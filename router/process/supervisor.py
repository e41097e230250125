"""Several worker processes that share one listening socket: starts, replaces and stops them.

Theory of operation. Each worker has a pipe from its supervisor, which carries commands. When the pipe breaks, the
supervisor has died, and the worker ends. Only the supervisor reloads the configuration: so all workers get the same
one, and a worker that replaces another gets the one that is in effect. A configuration can be larger than a pipe, and a
frozen worker reads none; so a thread for each worker writes, and the supervisor never waits for it.
"""

import contextlib
import logging
import multiprocessing
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import wait
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from uvicorn.config import STARTUP_FAILURE

from router.process.reloading import Reloader
from router.process.server import FORCED_EXIT_CODE, Reloaded, ServerCommand, Terminal, worker_main
from router.process.service_manager import notify_ready
from router.process.start_report import EngineCount, log_ready
from router.settings import Settings
from router.upstream.shared_slots import WorkerPlace, create_directory, release_worker

log = logging.getLogger("roundhouse.server")

_MIN_LIFETIME: Final = 1.0  # seconds; a worker that dies sooner is replaced only after this
_START_TIMEOUT: Final = 120.0  # seconds until the first heartbeat; a busy or slow machine needs many to start a worker
_KILL_MARGIN: Final = 10.0  # seconds after the drain and grace periods, when workers are killed


def too_long_silence(now: float, started_at: float, last_heartbeat: float | None, timeout: float) -> float | None:
    """The seconds that a worker has been silent, if they are too many; it may take longer for its first heartbeat.

    Instants are of time.monotonic; `timeout` in seconds.
    """
    if last_heartbeat is None:
        silence, timeout = now - started_at, max(timeout, _START_TIMEOUT)
    else:
        silence = now - last_heartbeat
    return silence if silence > timeout else None


class WorkerProcess:
    """The mechanism: a process, its pipe and its heartbeat. Supervisor decides.

    `engines`: as it found them when it became ready; None before. `settings`: those that are in effect there.
    """

    def __init__(self, settings: Settings, listen_socket: socket.socket, metrics_dir: str, place: WorkerPlace) -> None:
        context = multiprocessing.get_context("spawn")
        self._heartbeat = context.RawValue("d", 0.0)  # none yet
        self._commands, worker_end = context.Pipe()
        self.process = context.Process(
            target=worker_main, args=(settings, listen_socket, worker_end, self._heartbeat, metrics_dir, place)
        )
        self.process.start()
        self.place = place
        worker_end.close()  # otherwise a command to a dead worker would not fail
        self._unsent: SimpleQueue[ServerCommand | None] = SimpleQueue()  # None: there are no more
        self._sender = threading.Thread(target=self._send_commands, daemon=True)
        self._sender.start()
        self.started_at = time.monotonic()
        self.engines: EngineCount | None = None
        self.settings = settings
        self._unreported: deque[Settings] = deque()  # those of which it has not said what came of them
        self._has_hung_up = False

    def send_command(self, command: ServerCommand) -> None:
        """Returns at once; the worker gets its commands in their order."""
        if isinstance(command, Settings):
            self._unreported.append(command)
        self._unsent.put(command)

    def _send_commands(self) -> None:
        with contextlib.suppress(OSError):  # it has died, which _check_workers notices
            while (command := self._unsent.get()) is not None:
                self._commands.send(command)

    @property
    def readable(self) -> list[Any]:
        """What to wait for: its end, and its reports."""
        return [self.process.sentinel, *([] if self._has_hung_up else [self._commands])]

    def receive_reports(self) -> Reloaded | None:
        """Its report about the last settings that it got, if it is new; that it is ready goes into `engines`."""
        last: Reloaded | None = None
        try:
            while not self._has_hung_up and self._commands.poll():
                match self._commands.recv():
                    case Reloaded() as report:
                        last, sent = report, self._unreported.popleft()  # the reports come in the order of the settings
                        self.settings = sent if report.problem is None else self.settings
                    case EngineCount() as engines:
                        self.engines = engines
        except (EOFError, OSError):  # it has died, which _check_workers notices
            self._has_hung_up = True
        return last if not self._unreported else None  # those about earlier settings say nothing about the last

    def align(self, settings: Settings) -> None:
        """Sends them unless they are in effect there, or it has yet to say what came of others."""
        if self.settings is not settings and not self._unreported:
            self.send_command(settings)

    @property
    def last_heartbeat(self) -> float | None:
        """An instant of time.monotonic; None before the first one."""
        return float(self._heartbeat.value) or None

    def close(self) -> None:
        """To be called when it has ended."""
        self.process.join()
        self._unsent.put(None)
        self._sender.join()
        self._commands.close()


class _Reload:
    """One in progress. `waiting`: the workers that have not said what came of it."""

    def __init__(self, settings: Settings, workers: Sequence[WorkerProcess]) -> None:
        self.settings = settings
        self.waiting = set(workers)
        self.problem: str | None = None

    def on_report(self, worker: WorkerProcess, problem: str | None) -> None:
        if worker in self.waiting:
            self.waiting.remove(worker)
            self.problem = self.problem or problem


class Supervisor:
    """Decides how many workers run, and sends them commands.

    - SIGTERM and SIGINT stop all workers, as they stop a single server; a second SIGINT kills them.
    - SIGHUP reloads the configuration; an invalid one is refused and not sent to the workers. A SIGHUP because the
      terminal has closed is handled as a SIGINT.
    - It logs that the router is ready when all workers are, once.
    - A reload is finished when each worker has said what came of it. One that replaces a worker gets the new settings
      when it has started. If a worker cannot apply them, the others get the previous ones back, again and again if one
      of them cannot apply these either.
    - A worker that dies is replaced, and so is one whose event loop is blocked. If one cannot start, all stop.
    - The slots of a worker that dies are free for the others before its replacement starts.
    """

    def __init__(
        self,
        settings: Settings,
        reloader: Reloader,
        listen_socket: socket.socket,
        metrics_dir: str,
        *,
        heartbeat_timeout: float = 30.0,
    ) -> None:
        """`heartbeat_timeout`: seconds without a heartbeat after which a worker is killed, once it has sent one."""
        self._settings = settings
        self._reloader = reloader
        self._reload: _Reload | None = None
        self._listen_socket = listen_socket
        self._metrics_dir = metrics_dir
        self._slots_dir = Path(metrics_dir, "slots")
        self._heartbeat_timeout = heartbeat_timeout
        self._last_check = time.monotonic()
        self._workers: list[WorkerProcess] = []
        self._pending_signals: list[int] = []
        self._kill_at: float | None = None
        self._exit_code = 0
        self._was_ready = False
        self._terminal = Terminal()

    def run(self) -> int:
        # Python resumes a blocking wait after a signal (PEP 475); a byte on this socket ends it.
        wakeup_reader, wakeup_writer = socket.socketpair()
        with wakeup_reader, wakeup_writer:
            for end in (wakeup_reader, wakeup_writer):
                end.setblocking(False)
            signal.set_wakeup_fd(wakeup_writer.fileno())
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, lambda sig, _: self._pending_signals.append(sig))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])  # see router.process.serve
            workers = self._settings.router.workers
            create_directory(self._slots_dir, workers)
            self._workers = [
                self._start_worker(WorkerPlace(self._slots_dir, number, workers)) for number in range(workers)
            ]
            while self._workers:
                watched: list[Any] = [wakeup_reader, *[end for worker in self._workers for end in worker.readable]]
                deadline = self._last_check + self._heartbeat_timeout / 4 if self._kill_at is None else self._kill_at
                wait(watched, max(0.0, deadline - time.monotonic()))
                with contextlib.suppress(BlockingIOError):
                    wakeup_reader.recv(4096)
                while self._pending_signals:
                    self._on_signal(self._pending_signals.pop(0))
                self._receive_reports()
                self._check_workers()
            signal.set_wakeup_fd(-1)
        return self._exit_code

    def _start_worker(self, place: WorkerPlace) -> WorkerProcess:
        return WorkerProcess(self._settings, self._listen_socket, self._metrics_dir, place)

    def _receive_reports(self) -> None:
        for worker in self._workers:
            report = worker.receive_reports()
            if report is not None and self._reload is not None:
                self._reload.on_report(worker, report.problem)
                self._finish_reload()
        reports = [worker.engines for worker in self._workers if worker.engines is not None]
        if not self._was_ready and self._kill_at is None and len(reports) == self._settings.router.workers:
            self._was_ready = True
            log_ready(self._settings, min(reports))
            notify_ready()

    def _on_signal(self, signal_number: int) -> None:
        if signal_number == signal.SIGHUP and not self._terminal.hung_up:
            settings = self._reloader.read(self._settings)
            if settings is not None and self._kill_at is None:
                self._reload = _Reload(settings, self._workers)
                self._broadcast(settings)
        elif signal_number == signal.SIGTERM:
            self._stop("drain")
        elif self._kill_at is None or signal_number == signal.SIGHUP:
            self._stop("leave")
        else:
            self._kill_all(FORCED_EXIT_CODE)

    def _finish_reload(self) -> None:
        reload = self._reload
        if reload is None or reload.waiting:
            return
        self._reload = None
        is_applied = any(worker.settings is reload.settings for worker in self._workers)
        problem = reload.problem or (None if is_applied else "the router is stopping")
        if problem is None:
            self._settings = reload.settings
        self._align_workers()
        self._reloader.finish(problem)

    def _align_workers(self) -> None:
        if self._reload is None and self._kill_at is None:
            for worker in self._workers:
                worker.align(self._settings)

    def _stop(self, command: ServerCommand) -> None:
        self._broadcast(command)
        if self._kill_at is None:
            # Otherwise the kernel would go on accepting connections that no worker takes.
            self._listen_socket.close()
            router = self._settings.router
            self._kill_at = time.monotonic() + router.drain + router.grace + _KILL_MARGIN

    def _check_workers(self) -> None:
        now = time.monotonic()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_all(1)
        elif self._kill_at is None and now >= self._last_check + self._heartbeat_timeout / 4:
            # A late check means that this process did not run either: the machine was suspended, or the terminal's
            # job was stopped. Then the heartbeats say nothing about the workers.
            if now < self._last_check + self._heartbeat_timeout / 2:
                self._kill_unresponsive(now)
            self._last_check = now
            self._align_workers()
        dead = [worker for worker in self._workers if not worker.process.is_alive()]
        for worker in dead:
            worker.close()
            self._workers.remove(worker)
            release_worker(worker.place)
            if self._reload is not None:
                self._reload.waiting.discard(worker)
        for worker in dead:
            code = worker.process.exitcode
            if self._kill_at is not None:
                continue
            if code == STARTUP_FAILURE:
                log.error("worker %s cannot start; stopping all workers", worker.process.pid)
                self._exit_code = 1
                self._stop("leave")
            else:
                log.warning("worker %s exited with code %s; replacing it", worker.process.pid, code)
                time.sleep(max(0.0, worker.started_at + _MIN_LIFETIME - time.monotonic()))
                replacement = self._start_worker(worker.place)
                self._workers.append(replacement)
                # It starts with settings that are known to work: if the new ones are not, it does not end at once.
                if self._reload is not None:
                    self._reload.waiting.add(replacement)
                    replacement.send_command(self._reload.settings)
        self._finish_reload()

    def _kill_unresponsive(self, now: float) -> None:
        for worker in self._workers:
            silence = too_long_silence(now, worker.started_at, worker.last_heartbeat, self._heartbeat_timeout)
            if silence is not None:
                log.error("worker %s has sent no heartbeat for %g s; killing it", worker.process.pid, silence)
                worker.process.kill()
                worker.process.join()

    def _broadcast(self, command: ServerCommand) -> None:
        for worker in self._workers:
            worker.send_command(command)

    def _kill_all(self, exit_code: int) -> None:
        self._exit_code = exit_code
        for worker in self._workers:
            worker.process.kill()
            worker.process.join()
