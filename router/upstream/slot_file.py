"""The slots of one engine, shared by the worker processes of a router.

Theory of operation. A slot is a lock on one byte of a file (POSIX record locks, fcntl F_SETLK). The kernel grants a
byte to one process at a time, and takes back the locks of a process that has ended, however it ended. So there is no
critical section that a killed or frozen process could leave locked, and nothing that a crash could leave miscounted.

The mapped content of the file only says where to look: the byte of a slot that is held is not 0. A holder writes it
after it has the lock, and clears it before it unlocks. So content may be outdated for an instant, or after a crash
until `clear_stale`; the lock decides.

A worker that waits sets its mark, and looks once more. One that frees a slot unlocks, and then reads the marks. Each
makes a lock operation in between, for which the kernel takes its own lock of the file. This orders memory: one of the
two sees what the other one wrote, so no wake-up is lost.

Slots are interchangeable: a process knows how many it holds, and frees the last one first. If a limit is lowered, slots
beyond it may still be held (overflow). Until they are free, the slots are counted, by one worker at a time: see
`_take_despite_overflow`.
"""

import bisect
import contextlib
import errno
import fcntl
import mmap
import os
from pathlib import Path
from typing import Final

from router.core.quota.slot_turns import Standing, is_next
from router.disk_blocks import allocate

MAX_WORKERS: Final = 256
"""As the setting `router.workers` allows."""

MAX_SLOTS: Final = 1 << 16
"""Slots of one engine. A higher limit counts as this one."""

# The file: a mark, the last grant (8 bytes) and the limit (4 bytes) of each worker; then a byte for each slot.
_GRANTS: Final = MAX_WORKERS
_LIMITS: Final = _GRANTS + 8 * MAX_WORKERS
_CONTENDED: Final = _LIMITS + 4 * MAX_WORKERS  # one byte: a worker could not count, since another one did
_SLOTS: Final = 4096
_SIZE: Final = _SLOTS + MAX_SLOTS

# What locks on the first bytes mean; the bytes themselves are marks.
_IN_USE: Final = 0  # shared: a process has opened the file; exclusive: it is being removed
_COUNTING: Final = 1

_MAX_ATTEMPTS: Final = 1000  # to open a file that another process is removing, which takes it microseconds


class SlotFile:
    """One engine's slots, as one worker sees them. A process opens a file once, and never forks while it is open.

    - Workers together never hold more slots than the limit, if they agree on it.
    - A worker that ends, or is killed, holds none.
    - No method blocks.
    - `must_wake`: another worker could not take a slot because this one was counting. The caller wakes it.
    """

    def __init__(self, path: Path, worker: int, workers: int) -> None:
        """Opens or creates the file; raises OSError. `worker`: its number, from 0; no live process has the same."""
        self._path = path
        self._worker = worker
        self._file = _open(path)
        try:
            self._memory = mmap.mmap(self._file, _SIZE)
        except OSError:
            _close(self._file, path)
            raise
        self._view = memoryview(self._memory)
        self._grants = self._view[_GRANTS:_LIMITS].cast("Q")
        self._limits = self._view[_LIMITS : _LIMITS + 4 * workers].cast("I")
        self._workers = workers
        self._held: list[int] = []  # ascending
        self.must_wake = False
        self._memory[worker] = self._grants[worker] = self._limits[worker] = 0

    def set_limit(self, limit: int) -> None:
        """To be called before the first slot is taken, and when the limit changes."""
        self._limits[self._worker] = max(min(limit, MAX_SLOTS), self._held[-1] + 1 if self._held else 0)

    # -- slots --------------------------------------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """Slots of this worker."""
        return len(self._held)

    def count(self) -> int:
        """Slots of all workers; an instant later it may be another number."""
        top = max(self._limits)
        return top - self._memory[_SLOTS : _SLOTS + top].count(0)

    def has_free(self, limit: int) -> bool:
        return self._next_free(0, limit) >= 0 and not (self._overflow(limit) and self.count() >= limit)

    def is_next(self) -> bool:
        """Whether no worker that waits comes before this one; see slot_turns."""
        waiting = [self._standing(worker) for worker in self._waiting_workers()]
        return not waiting or is_next(self._standing(self._worker), waiting)

    def take(self, limit: int, now: int) -> bool:
        """Takes a slot if the workers have fewer than `limit`. `now`: for the order of grants, in any unit."""
        taken = self._take_despite_overflow(limit) if self._overflow(limit) else self._lock_any(limit)
        if taken:
            self._grants[self._worker] = now
        return taken

    def take_regardless(self) -> None:
        """Takes a slot for a request that runs already; it may be one beyond the limit."""
        self._lock_any(MAX_SLOTS)
        self._limits[self._worker] = max(self._limits[self._worker], self._held[-1] + 1)

    def free(self) -> None:
        """Frees one of this worker's slots. The caller wakes the workers that wait."""
        slot = self._held.pop()  # the last, so that an overflow ends first
        self._memory[_SLOTS + slot] = 0
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _SLOTS + slot)

    def _next_free(self, start: int, end: int) -> int:
        found = self._memory[_SLOTS + start : _SLOTS + end].find(0)
        return found if found < 0 else found + start

    def _lock_any(self, end: int) -> bool:
        slot = self._next_free(0, end)
        while slot >= 0:
            if _try_lock(self._file, _SLOTS + slot):
                self._memory[_SLOTS + slot] = 1 + self._worker % 255
                bisect.insort(self._held, slot)
                return True
            slot = self._next_free(slot + 1, end)
        return False

    def _overflow(self, limit: int) -> bool:
        top = max(self._limits)
        return top > limit and any(self._memory[_SLOTS + limit : _SLOTS + top])

    def _take_despite_overflow(self, limit: int) -> bool:
        # Counting and taking are two steps, so one worker at a time does it.
        if not _try_lock(self._file, _COUNTING):
            self._memory[_CONTENDED] = 1
            if not _try_lock(self._file, _COUNTING):
                return False  # the other one sees what was just written
        try:
            return self.count() < limit and self._lock_any(limit)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _COUNTING)
            if self._memory[_CONTENDED]:
                self._memory[_CONTENDED] = 0
                self.must_wake = True

    # -- who waits ----------------------------------------------------------------------------------------------------

    def is_waiting(self) -> bool:
        return self._memory[self._worker] != 0

    def set_waiting(self, waiting: bool) -> None:
        """Whether this worker is to be woken when a slot becomes free. After setting it, the caller tries once more."""
        if waiting != self.is_waiting():
            self._memory[self._worker] = waiting
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _COUNTING)  # unlocks nothing: it orders memory, as above

    def others_waiting(self) -> list[int]:
        return [worker for worker in self._waiting_workers() if worker != self._worker]

    def _waiting_workers(self) -> list[int]:
        marks = self._memory[: self._workers]
        return [worker for worker, mark in enumerate(marks) if mark] if any(marks) else []

    def _standing(self, worker: int) -> Standing:
        held = len(self._held)
        if worker != self._worker:
            held = self._memory[_SLOTS : _SLOTS + max(self._limits)].count(1 + worker % 255)
        return Standing(held, self._grants[worker], worker)

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Frees all slots of this worker. The file is removed if no other process has opened it."""
        while self._held:
            self.free()
        self._memory[self._worker] = self._limits[self._worker] = 0
        for view in (self._grants, self._limits, self._view):
            view.release()
        self._memory.close()
        _close(self._file, self._path)


def clear_stale(path: Path, worker: int) -> None:
    """Corrects the content of a file after the end of a worker, whose slots the kernel has taken back.

    Called in a process that has no SlotFile of it.
    """
    with contextlib.suppress(FileNotFoundError):
        file = os.open(path, os.O_RDWR)
        try:
            if os.fstat(file).st_size < _SIZE:  # another worker is creating it, or there is no room for it
                return
            os.pwrite(file, bytes(1), worker)
            os.pwrite(file, bytes(4), _LIMITS + 4 * worker)
            for slot, content in enumerate(os.pread(file, MAX_SLOTS, _SLOTS)):
                if content and _try_lock(file, _SLOTS + slot):
                    os.pwrite(file, bytes(1), _SLOTS + slot)
                    fcntl.lockf(file, fcntl.LOCK_UN, 1, _SLOTS + slot)
        finally:
            os.close(file)


def _open(path: Path) -> int:
    for _ in range(_MAX_ATTEMPTS):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # Each fails if the last user is just removing the file.
        if _try_lock(file, _IN_USE, fcntl.LOCK_SH) and os.fstat(file).st_nlink:
            try:
                allocate(file, _SIZE)
            except OSError:
                _close(file, path)
                raise
            return file
        os.close(file)
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path))


def _close(file: int, path: Path) -> None:
    """Also removes the file, if no other process has opened it."""
    # Who opens it now will see that it is removed: _open. Another process may have removed it, and a third one may have
    # created another file at its path since.
    if _try_lock(file, _IN_USE) and os.fstat(file).st_nlink:
        path.unlink(missing_ok=True)
    os.close(file)


def _try_lock(file: int, byte: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.lockf(file, kind | fcntl.LOCK_NB, 1, byte)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True
