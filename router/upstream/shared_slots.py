"""What the worker processes of one router share of their engines' limits: the slots, and who waits for one.

    slots-<hash of an engine's name and URL>     its slots, see slot_file
    wake-<number of a worker>                    a named pipe; a byte in it wakes the worker

Theory of operation. The supervisor creates the directory with the pipes. Workers create the files of slots as engines
come, and remove them as they go. A worker in which requests wait for an engine has set its mark in that engine's file;
one that frees a slot wakes all workers with a mark. The one whose turn it is takes the slot (slot_turns). One that has
no use for it clears its mark, and wakes the others again. They do not wait for it longer than _MAX_YIELD, since a
worker may be frozen.
"""

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from router.upstream.process_slots import SlotUsers
from router.upstream.slot_file import SlotFile, clear_stale

_MAX_YIELD: Final = 0.01  # seconds for which a free slot is left to another worker


class WorkerPlace(NamedTuple):
    """A worker among those of its router. `worker`: its number, from 0, which its replacement gets, too."""

    directory: Path
    worker: int
    workers: int


def create_directory(directory: Path, workers: int) -> None:
    """For the supervisor, before it starts workers."""
    directory.mkdir()
    for worker in range(workers):
        os.mkfifo(_pipe(directory, worker), 0o600)


def release_worker(place: WorkerPlace) -> None:
    """For the supervisor, when a worker has ended and before its replacement starts: others get its slots."""
    for path in place.directory.glob("slots-*"):
        clear_stale(path, place.worker)
    for worker in range(place.workers):
        pipe = _open_pipe(place.directory, worker)
        _wake(pipe)
        os.close(pipe)


class SharedSlots:
    """A worker's slots at all engines that have a limit."""

    def __init__(self, place: WorkerPlace, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` in seconds, the same for all workers."""
        self._place = place
        self.clock = clock
        self._pipes = [_open_pipe(place.directory, worker) for worker in range(place.workers)]
        self._engines: dict[Path, EngineSlots] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def workers(self) -> int:
        return self._place.workers

    def open(self, name: str, url: str) -> "EngineSlots":
        """The slots of an engine; the same object for all configurations of this process. Raises OSError."""
        identity = hashlib.sha256(f"{name}\0{url}".encode()).hexdigest()[:32]
        path = self._place.directory / f"slots-{identity}"
        slots = self._engines.get(path)
        if slots is None:
            file = SlotFile(path, self._place.worker, self._place.workers)
            slots = self._engines[path] = EngineSlots(self, path, file)
        return slots

    def start(self) -> None:
        """Reacts to freed slots from now on; needs a running event loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pipes[self._place.worker], self._on_wake)

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._pipes[self._place.worker])
            self._loop = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Frees everything; nothing may be used afterwards."""
        for slots in list(self._engines.values()):
            slots.file.close()
        self._engines.clear()
        for pipe in self._pipes:
            os.close(pipe)
        self._pipes.clear()

    def wake(self, workers: Iterable[int]) -> None:
        for worker in workers:
            _wake(self._pipes[worker])

    def try_again_soon(self) -> None:
        """Looks for free slots again when another worker has had its time to take them."""
        if self._timer is None and self._loop is not None:
            self._timer = self._loop.call_later(_MAX_YIELD, self._on_timer)

    def forget(self, path: Path) -> None:
        self._engines.pop(path).file.close()

    def _on_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._pipes[self._place.worker], 4096)
        self._offer_slots()

    def _on_timer(self) -> None:
        self._timer = None
        self._offer_slots()

    def _offer_slots(self) -> None:
        for slots in list(self._engines.values()):
            slots.offer()


class EngineSlots:
    """A worker's slots at one engine: all of the Engine objects that stand for it, one for each configuration."""

    def __init__(self, shared: SharedSlots, path: Path, file: SlotFile) -> None:
        self._shared = shared
        self._path = path
        self.file = file
        self._users = SlotUsers()
        self._waiters: set[object] = set()
        self._yielding_since: float | None = None

    @property
    def workers(self) -> int:
        return self._shared.workers

    def add_user(self, on_slot_free: Callable[[], None], limit: int) -> None:
        """Calls `on_slot_free` when there may be a free slot for requests that wait.

        For a user that is there already, it changes the limit.
        """
        self._users.set_limit(on_slot_free, limit)
        self.file.set_limit(self._users.limit)
        self._users.notify_others(on_slot_free)

    def remove_user(self, on_slot_free: Callable[[], None]) -> None:
        """The user holds no slot any more."""
        self._users.remove(on_slot_free)
        if self._users:
            self.file.set_limit(self._users.limit)
        else:
            others = self.file.others_waiting()
            self._shared.forget(self._path)
            self._shared.wake(others)

    def count(self) -> int:
        """Slots that the workers hold together."""
        return self.file.count()

    def take(self) -> bool:
        """Takes a slot, if there is a free one and it is this worker's turn."""
        file, limit = self.file, self._users.limit
        if not file.has_free(limit):
            self._yielding_since = None
            return False
        now = self._shared.clock()
        if not file.is_next() and not self._has_yielded(now):
            return False
        taken = file.take(limit, int(now * 1e9))
        if taken:
            self._yielding_since = None
        if file.must_wake:
            file.must_wake = False
            self._shared.wake(file.others_waiting())
        return taken

    def take_or_wait(self, waiter: object) -> bool:
        """As `take`; if there is none, `on_slot_free` will be called. `waiter`: who waits, until that call."""
        self._waiters.add(waiter)
        self.file.set_waiting(True)
        return self.take()

    def return_slot(self, waiter: object) -> None:
        """The waiter has no use for the slot that it took."""
        self._waiters.discard(waiter)
        self.file.set_waiting(bool(self._waiters))
        self.free()

    def take_regardless(self) -> None:
        """For a request that runs already."""
        self.file.take_regardless()

    def free(self) -> None:
        """Frees a slot. Requests of this worker are not told, since the caller looks for them."""
        self.file.free()
        self._shared.wake(self.file.others_waiting())

    def notify_users(self) -> None:
        """Tells the users of this process that there may be a free slot, the oldest first."""
        self._users.notify()

    def offer(self) -> None:
        """To be called when there may be a free slot: another worker has freed one, or has not taken one in time."""
        if not self.file.is_waiting():
            self._yielding_since = None
            return
        self._waiters.clear()
        self.file.set_waiting(False)
        self._users.notify()  # those that still wait set the mark again
        if not self.file.is_waiting():  # what this worker does not take is for the others
            self._shared.wake(self.file.others_waiting())

    def _has_yielded(self, now: float) -> bool:
        """Whether this worker has left a free slot to the others for long enough."""
        if self._yielding_since is None:
            self._yielding_since = now
            self._shared.wake(self.file.others_waiting())  # one that has no more use for a slot clears its mark
        if now - self._yielding_since >= _MAX_YIELD:
            return True
        self._shared.try_again_soon()
        return False


def _pipe(directory: Path, worker: int) -> Path:
    return directory / f"wake-{worker}"


def _open_pipe(directory: Path, worker: int) -> int:
    # For reading and writing: so opening it never waits, and writing never fails for want of a reader.
    return os.open(_pipe(directory, worker), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def _wake(pipe: int) -> None:
    with contextlib.suppress(BlockingIOError):  # full: it will wake
        os.write(pipe, b"\0")
