"""Several workers behind one socket: started, replaced when they die, told when to stop.

Theory of operation. Each worker has a pipe from its supervisor, over which orders come; when it breaks, the supervisor
has died, and the worker ends. The supervisor alone reads the configuration again, so that all workers get the same, and
one that replaces another gets the last that was good.
"""

import contextlib
import logging
import multiprocessing
import signal
import socket
import time
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final

from uvicorn.config import STARTUP_FAILURE

from router.server import FORCED, Order, Terminal, read_again, work
from router.settings import Settings

log = logging.getLogger("roundhouse.server")

_SHORT: Final = 1.0  # seconds; a worker that lived no longer is not replaced at once
_SPARE: Final = 10.0  # seconds beyond what they may take after which workers are ended by force


class Worker:
    """Knows how: a process, and the pipe to it."""

    def __init__(self, settings: Settings, listening: socket.socket, shared: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._alive = context.RawValue("d", time.monotonic())
        self._orders, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(settings, listening, theirs, self._alive, shared))
        self.process.start()
        theirs.close()
        self.started = time.monotonic()

    def tell(self, order: Order) -> None:
        with contextlib.suppress(OSError):  # it has died, and will be found so
            self._orders.send(order)

    @property
    def alive(self) -> float:
        """When it last said that it is, of time.monotonic."""
        return float(self._alive.value)

    def forget(self) -> None:
        """It has ended."""
        self.process.join()
        self._orders.close()


class Workers:
    """Decides: how many there are, and what they are told.

    - SIGTERM and SIGINT end all of them, as they end one server; a second SIGINT kills them.
    - SIGHUP reads the configuration again; one that cannot be used is refused, and nobody is told of it. Where it says
      that the terminal is gone, it is a SIGINT.
    - One that dies is replaced, and so is one whose loop stands still; where one cannot even start, all end.
    """

    def __init__(
        self, settings: Settings, config: Path, listening: socket.socket, shared: str, *, silence: float = 30.0
    ) -> None:
        """`shared` is the folder of their metrics; `silence`: seconds after which one that says nothing is killed."""
        self._settings = settings
        self._config = config
        self._listening = listening
        self._shared = shared
        self._silence = silence
        self._looked = time.monotonic()
        self._workers: list[Worker] = []
        self._signals: list[int] = []
        self._over_at: float | None = None
        self._code = 0
        self._terminal = Terminal()

    def run(self) -> int:
        """Until all have ended; returns the exit code."""
        woken, waking = socket.socketpair()
        with woken, waking:
            for end in (woken, waking):
                end.setblocking(False)
            signal.set_wakeup_fd(waking.fileno())
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, lambda sig, _: self._signals.append(sig))
            self._workers = [self._start() for _ in range(self._settings.router.workers)]
            while self._workers:
                watched: list[Any] = [woken, *[worker.process.sentinel for worker in self._workers]]
                until = self._looked + self._silence / 4 if self._over_at is None else self._over_at
                wait(watched, max(0.0, until - time.monotonic()))
                with contextlib.suppress(BlockingIOError):
                    woken.recv(4096)
                while self._signals:
                    self._heed(self._signals.pop(0))
                self._look()
            signal.set_wakeup_fd(-1)
        return self._code

    def _start(self) -> Worker:
        return Worker(self._settings, self._listening, self._shared)

    def _heed(self, number: int) -> None:
        if number == signal.SIGHUP and not self._terminal.hung_up:
            settings = read_again(self._config, self._settings)
            if settings is not None and self._over_at is None:
                self._settings = settings
                self._tell(settings)
        elif number == signal.SIGTERM:
            self._end("drain")
        elif self._over_at is None or number == signal.SIGHUP:
            self._end("leave")
        else:
            self._kill(FORCED)

    def _end(self, order: Order) -> None:
        self._tell(order)
        if self._over_at is None:
            # Else those who connect would wait for somebody to take them.
            self._listening.close()
            router = self._settings.router
            self._over_at = time.monotonic() + router.drain + router.grace + _SPARE

    def _look(self) -> None:
        """Takes note of those that have ended, and ends those that do nothing."""
        now = time.monotonic()
        if self._over_at is not None and now >= self._over_at:
            self._kill(1)
        elif self._over_at is None and now >= self._looked + self._silence / 4:
            # If this process stood still as well, so did the whole machine, or a terminal's job.
            if now < self._looked + self._silence / 2:
                self._kill_silent(now)
            self._looked = now
        for worker in [worker for worker in self._workers if not worker.process.is_alive()]:
            worker.forget()
            self._workers.remove(worker)
            code = worker.process.exitcode
            if self._over_at is not None:
                continue
            if code == STARTUP_FAILURE:
                log.error("worker %s cannot start; all end", worker.process.pid)
                self._code = 1
                self._end("leave")
            else:
                log.warning("worker %s ended with %s, and is replaced", worker.process.pid, code)
                time.sleep(max(0.0, worker.started + _SHORT - time.monotonic()))
                self._workers.append(self._start())

    def _kill_silent(self, now: float) -> None:
        for worker in self._workers:
            if now - worker.alive > self._silence:
                log.error("worker %s has done nothing for %g s, and is killed", worker.process.pid, now - worker.alive)
                worker.process.kill()
                worker.process.join()

    def _tell(self, order: Order) -> None:
        for worker in self._workers:
            worker.tell(order)

    def _kill(self, code: int) -> None:
        self._code = code
        for worker in self._workers:
            worker.process.kill()
            worker.process.join()
