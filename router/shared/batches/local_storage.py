"""Files in a folder of this machine, or in one that machines share (NFS): Storage."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from io import BufferedReader, BufferedWriter
from math import inf
from pathlib import Path
from typing import Final

from router.shared.batches.storage import StoredFile

# The names of files that are being written begin so: each is renamed when it is complete.
_UNFINISHED: Final = ".new-"

_COPY_SIZE: Final = 1 << 20


class LocalStorage:
    """See Storage. Only the user of the process can read the files."""

    def __init__(self, folder: Path) -> None:
        """`folder`: need not exist."""
        self._folder = folder

    def read(self, name: str) -> bytes:
        with self.open(name) as file:
            return file.read()

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        with self.open(name) as file:
            file.seek(offset)
            return file.read(length)

    def read_all(self, names: Sequence[str]) -> Iterator[bytes]:
        for name in names:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                yield self.read(name)

    def open(self, name: str) -> BufferedReader:
        try:
            return self._path(name).open("rb")
        except NotADirectoryError as error:
            raise FileNotFoundError(error.errno, error.strerror) from None

    def write(self, name: str, data: bytes) -> None:
        new = self.create(name)
        try:
            new.write(data)
            new.commit()
        finally:
            new.discard()

    def create(self, name: str) -> "_NewFile":
        path = self._path(name)
        self._make(path.parent)
        return _NewFile(path)

    def log(self, segment: Callable[[int], str]) -> "_LogFile":
        path = self._path(segment(0))
        self._make(path.parent)
        return _LogFile(path)

    def copy(self, source: str, name: str) -> None:
        path = self._path(name)
        self._make(path.parent)
        try:
            path.hardlink_to(self._path(source))
        except (FileNotFoundError, FileExistsError):
            raise
        except OSError:  # a file system without links
            with self.open(source) as file, _create(path) as copy:
                shutil.copyfileobj(file, copy, _COPY_SIZE)
                _sync(copy)
        _sync_folder(path.parent)

    def move(self, source: str, name: str) -> int:
        path, target = self._path(source), self._path(name)
        self._make(target.parent)
        try:
            # It must not look like an old leftover before it has its record, however long ago it was written.
            os.utime(path)
            path.rename(target)
        except FileNotFoundError:
            if not target.exists():
                raise
        _sync_folder(target.parent)
        return target.stat().st_size

    def remove(self, name: str) -> bool:
        try:
            self._path(name).unlink()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def names(self, folder: str) -> list[str]:
        return [
            entry.name for entry in self._entries(folder) if not entry.name.startswith(_UNFINISHED) and entry.is_file()
        ]

    def files(self, folder: str) -> list[StoredFile]:
        found = []
        for name in self.names(folder):
            with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                found.append(StoredFile(name, self._path(f"{folder}/{name}").stat().st_mtime))
        return found

    def folders(self, folder: str) -> list[str]:
        return [entry.name for entry in self._entries(folder) if entry.is_dir()]

    def changed_at(self, folder: str) -> float:
        try:
            return self._path(folder).stat().st_mtime
        except FileNotFoundError:
            return inf

    def remove_folder(self, folder: str) -> None:
        shutil.rmtree(self._path(folder), ignore_errors=True)

    def remove_unfinished(self, folder: str, before: float) -> None:
        for entry in self._entries(folder):
            with contextlib.suppress(FileNotFoundError):
                if entry.name.startswith(_UNFINISHED) and entry.stat().st_mtime < before:
                    Path(entry.path).unlink()

    def _entries(self, folder: str) -> Iterator["os.DirEntry[str]"]:
        try:
            entries = os.scandir(self._path(folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        with entries:
            yield from entries

    def _make(self, folder: Path) -> None:
        # One after the other: the mode is that of the last folder alone.
        for each in (*reversed(folder.relative_to(self._folder).parents), folder.relative_to(self._folder)):
            (self._folder / each).mkdir(mode=0o700, parents=True, exist_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / name


class _NewFile:
    held: Final = 0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unfinished = path.with_name(f"{_UNFINISHED}{secrets.token_hex(8)}")
        self._file = _create(self._unfinished)
        self._is_committed = False

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def commit(self) -> None:
        _sync(self._file)
        self._file.close()
        self._unfinished.rename(self._path)
        self._is_committed = True
        _sync_folder(self._path.parent)

    def discard(self) -> None:
        if self._is_committed:
            return
        try:
            self._file.close()
        finally:
            self._unfinished.unlink(missing_ok=True)


class _LogFile:
    def __init__(self, path: Path) -> None:
        self._file = _create(path)
        self._is_synced = True
        _sync_folder(path.parent)

    def append(self, line: bytes) -> None:
        self._file.write(line)
        self._is_synced = False

    def sync(self) -> None:
        if not self._is_synced:
            _sync(self._file)
            self._is_synced = True

    def close(self) -> None:
        self._file.close()


def _create(path: Path) -> BufferedWriter:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def _sync(file: BufferedWriter) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Makes the names of a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
