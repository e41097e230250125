"""The folder of one tenant's files, with blocking calls; BatchFiles has the same for coroutines.

    {id}.jsonl     the content
    {id}.json      its FileRecord, written last: a file exists if its record does
    {id}.upload    content that is being written
    {id}.record    a record that is being written

Several processes, of several machines, may share the folder (NFS): each name is written once, under another name, and
renamed. What a process leaves behind that ends in between has no record, and `remove_leftovers` removes it.
"""

import os
import re
import secrets
from collections.abc import Iterator
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import Final

import msgspec

from router.shared.batches.file_record import FileRecord, TooManyFilesError, UnknownFileError, is_file_id

LEFTOVER_AGE: Final = 86400.0
"""Seconds after which what has no record is not being written any more."""

_CONTENT: Final = ".jsonl"
_RECORD: Final = ".json"
_UPLOAD: Final = ".upload"
_NEW_RECORD: Final = ".record"
_NAME: Final = re.compile(r"(file-[0-9a-f]{32})(\.jsonl|\.json|\.upload|\.record)")
_decode: Final = msgspec.json.Decoder(FileRecord).decode
_encode: Final = msgspec.json.Encoder().encode


def new_file_id() -> str:
    return f"file-{secrets.token_hex(16)}"


class FileFolder:
    """Raises OSError if the folder cannot be used."""

    def __init__(self, folder: Path, max_files: int) -> None:
        self.path = folder
        self._max_files = max_files

    def content(self, id_: str) -> Path:
        """Raises UnknownFileError for what is no id."""
        return self._path(id_, _CONTENT)

    def find(self, id_: str, now: float) -> FileRecord:
        """Raises UnknownFileError, also for a file that has expired."""
        try:
            record = _decode(self._path(id_, _RECORD).read_bytes())
        except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError, UnicodeDecodeError):
            raise UnknownFileError from None
        if record.has_expired(now) or record.id != id_:
            raise UnknownFileError
        return record

    def open(self, id_: str, now: float) -> tuple[FileRecord, BufferedReader]:
        """Raises UnknownFileError."""
        record = self.find(id_, now)
        try:
            return record, self.content(id_).open("rb")
        except FileNotFoundError:
            raise UnknownFileError from None

    def records(self, now: float) -> Iterator[FileRecord]:
        """In no order; those that have expired are left out."""
        for id_, suffix in self._names():
            if suffix == _RECORD:
                try:
                    yield self.find(id_, now)
                except UnknownFileError:
                    continue  # it has expired, or another process has deleted it meanwhile

    def check_room(self, now: float) -> None:
        """Raises TooManyFilesError if the tenant may have no further file."""
        if self._count() >= self._max_files:
            self.remove_expired(now)
            if self._count() >= self._max_files:
                raise TooManyFilesError(self._max_files)

    def new_file(self) -> "NewFile":
        self._make()
        return NewFile(self, new_file_id())

    def publish(self, record: FileRecord) -> None:
        """Writes the record of a file whose content is on disk. Can be repeated."""
        new = self._path(record.id, _NEW_RECORD)
        new.unlink(missing_ok=True)  # of a process that has ended meanwhile
        with _create(new) as file:
            file.write(_encode(record))
            _sync(file)
        new.rename(self._path(record.id, _RECORD))
        self.sync()

    def adopt(self, path: Path, id_: str) -> int:
        """Moves a file of the same file system here, as the content of `id_`; returns its bytes. Can be repeated."""
        content = self.content(id_)
        self._make()
        try:
            path.chmod(0o600)
            # So that it is no leftover before it has its record, however long ago it was written.
            os.utime(path)
            with path.open("rb") as file:
                os.fsync(file.fileno())
            path.rename(content)
        except FileNotFoundError:
            if not content.exists():
                raise
        self.sync()
        return content.stat().st_size

    def delete(self, id_: str) -> None:
        """Raises UnknownFileError if there is none; of several that delete it at once, all but one get that."""
        try:
            # First: content without a record is a leftover, a record without content would be a broken file.
            self._path(id_, _RECORD).unlink()
        except (FileNotFoundError, NotADirectoryError):
            raise UnknownFileError from None
        self._path(id_, _CONTENT).unlink(missing_ok=True)

    def discard(self, id_: str) -> None:
        """Removes what there is of a file that has no record."""
        for suffix in (_UPLOAD, _NEW_RECORD, _CONTENT):
            self._path(id_, suffix).unlink(missing_ok=True)

    def remove_expired(self, now: float) -> int:
        """Returns the number of files."""
        removed = 0
        for id_, suffix in self._names():
            if suffix == _RECORD and self._has_expired(id_, now):
                try:
                    self.delete(id_)
                except UnknownFileError:
                    continue
                removed += 1
        return removed

    def remove_leftovers(self, now: float) -> None:
        for id_, suffix in self._names():
            path = self._path(id_, suffix)
            if suffix == _RECORD or (suffix == _CONTENT and self._path(id_, _RECORD).exists()):
                continue
            try:
                if path.stat().st_mtime < now - LEFTOVER_AGE:
                    path.unlink()
            except FileNotFoundError:
                continue

    def sync(self) -> None:
        """Makes the names of the folder durable."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _make(self) -> None:
        # One after the other: the mode is that of the last folder alone.
        for path in (self.path.parent, self.path):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _has_expired(self, id_: str, now: float) -> bool:
        try:
            return _decode(self._path(id_, _RECORD).read_bytes()).has_expired(now)
        except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
            return False

    def _count(self) -> int:
        return sum(suffix == _RECORD for _, suffix in self._names())

    def _names(self) -> list[tuple[str, str]]:
        """The ids and suffixes of what is here; other names are none of ours."""
        try:
            with os.scandir(self.path) as entries:
                found = [_NAME.fullmatch(entry.name) for entry in entries]
        except FileNotFoundError:
            # The tenant has had no file yet.
            return []
        return [(match[1], match[2]) for match in found if match is not None]

    def _path(self, id_: str, suffix: str) -> Path:
        if not is_file_id(id_):
            raise UnknownFileError
        return self.path / f"{id_}{suffix}"


class NewFile:
    """A file that is being written. Without `commit`, `discard` leaves nothing of it."""

    def __init__(self, folder: FileFolder, id_: str) -> None:
        self.id = id_
        self.size = 0
        self._folder = folder
        self._path = folder.path / f"{id_}{_UPLOAD}"
        self._file = _create(self._path)
        self._is_committed = False

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.size += len(data)

    def commit(self, record: FileRecord) -> None:
        """`record`: with this file's id and size."""
        _sync(self._file)
        self._file.close()
        self._path.rename(self._folder.content(self.id))
        # Before the record, which says that the content is there.
        self._folder.sync()
        self._folder.publish(record)
        self._is_committed = True

    def discard(self) -> None:
        """Nothing after `commit`."""
        if self._is_committed:
            return
        try:
            self._file.close()
        finally:
            self._folder.discard(self.id)


def _create(path: Path) -> BufferedWriter:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def _sync(file: BufferedWriter) -> None:
    file.flush()
    os.fsync(file.fileno())
