"""One tenant's files in a Storage, with blocking calls; BatchFiles has the same for coroutines.

    {tenant}/{id}.jsonl     the content
    {tenant}/{id}.json      its FileRecord, written last: a file exists if its record does

What a process leaves behind that ends in between has no record, and `remove_leftovers` removes it.
"""

import re
import secrets
from collections.abc import Iterator
from io import BufferedReader
from typing import Final

import msgspec

from router.shared.batches.file_record import FileRecord, TooManyFilesError, UnknownFileError, is_file_id
from router.shared.batches.storage import NewContent, Storage

# Seconds after which what has no record is not being written any more.
LEFTOVER_AGE: Final = 86400.0

_CONTENT: Final = ".jsonl"
_RECORD: Final = ".json"
_NAME: Final = re.compile(r"(file-[0-9a-f]{32})(\.jsonl|\.json)")
_decode: Final = msgspec.json.Decoder(FileRecord).decode
_encode: Final = msgspec.json.Encoder().encode


def new_file_id() -> str:
    return f"file-{secrets.token_hex(16)}"


class FileFolder:
    """Raises OSError if the storage cannot be used."""

    def __init__(self, storage: Storage, tenant: str, max_files: int) -> None:
        self._storage = storage
        self._tenant = tenant
        self._max_files = max_files

    def content(self, id_: str) -> str:
        """The name of the content. Raises UnknownFileError for what is no id."""
        return self._name(id_, _CONTENT)

    def find(self, id_: str, now: float) -> FileRecord:
        """Raises UnknownFileError, also for a file that has expired."""
        try:
            record = _decode(self._storage.read(self._name(id_, _RECORD)))
        except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
            raise UnknownFileError from None
        if record.has_expired(now) or record.id != id_:
            raise UnknownFileError
        return record

    def open(self, id_: str, now: float) -> tuple[FileRecord, BufferedReader]:
        """Raises UnknownFileError."""
        record = self.find(id_, now)
        try:
            return record, self._storage.open(self.content(id_))
        except FileNotFoundError:
            raise UnknownFileError from None

    def records(self, now: float) -> Iterator[FileRecord]:
        """In no order; those that have expired are left out."""
        return (record for record in self._all_records() if not record.has_expired(now))

    def check_room(self, now: float) -> None:
        """Raises TooManyFilesError if the tenant may have no further file."""
        if self._count() >= self._max_files:
            self.remove_expired(now)
            if self._count() >= self._max_files:
                raise TooManyFilesError(self._max_files)

    def new_file(self) -> "NewFile":
        id_ = new_file_id()
        return NewFile(self, id_, self._storage.create(self.content(id_)))

    def publish(self, record: FileRecord) -> None:
        """Writes the record of a file whose content is there. Can be repeated."""
        self._storage.write(self._name(record.id, _RECORD), _encode(record))

    def adopt(self, name: str, id_: str) -> int:
        """Moves a file of the storage here, as the content of `id_`; returns its bytes. Can be repeated."""
        return self._storage.move(name, self.content(id_))

    def delete(self, id_: str) -> None:
        """Raises UnknownFileError if there is none."""
        # First: content without a record is a leftover, a record without content would be a broken file.
        if not self._storage.remove(self._name(id_, _RECORD)):
            raise UnknownFileError
        self._storage.remove(self.content(id_))

    def discard(self, id_: str) -> None:
        """Removes what there is of a file that has no record."""
        self._storage.remove(self.content(id_))

    def remove_expired(self, now: float) -> int:
        """Returns the number of files."""
        removed = 0
        for record in self._all_records():
            if record.has_expired(now):
                try:
                    self.delete(record.id)
                except UnknownFileError:
                    continue  # another process has deleted it meanwhile
                removed += 1
        return removed

    def remove_leftovers(self, now: float) -> None:
        before = now - LEFTOVER_AGE
        self._storage.remove_unfinished(self._tenant, before)
        files = self._storage.files(self._tenant)
        published = {id_ for id_, suffix in _parse([file.name for file in files]) if suffix == _RECORD}
        for file in files:
            for id_, suffix in _parse([file.name]):
                if suffix == _CONTENT and id_ not in published and file.changed_at < before:
                    self._storage.remove(self.content(id_))

    def _all_records(self) -> Iterator[FileRecord]:
        names = [self._name(id_, _RECORD) for id_, suffix in self._names() if suffix == _RECORD]
        for content in self._storage.read_all(names):
            try:
                record = _decode(content)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            if is_file_id(record.id):
                yield record

    def _count(self) -> int:
        return sum(suffix == _RECORD for _, suffix in self._names())

    def _names(self) -> list[tuple[str, str]]:
        """The ids and suffixes of what is here."""
        return _parse(self._storage.names(self._tenant))

    def _name(self, id_: str, suffix: str) -> str:
        if not is_file_id(id_):
            raise UnknownFileError
        return f"{self._tenant}/{id_}{suffix}"


class NewFile:
    """A file that is being written. Without `commit`, `discard` leaves nothing of it."""

    def __init__(self, folder: FileFolder, id_: str, content: NewContent) -> None:
        self.id = id_
        self.size = 0
        self._folder = folder
        self._content = content
        self._is_published = False

    @property
    def held(self) -> int:
        """Bytes of it that are in memory, about."""
        return self._content.held

    def write(self, data: bytes) -> None:
        self._content.write(data)
        self.size += len(data)

    def commit(self, record: FileRecord) -> None:
        """`record`: with this file's id and size."""
        self._content.commit()
        # Last: it says that the content is there.
        self._folder.publish(record)
        self._is_published = True

    def discard(self) -> None:
        """Nothing after `commit`."""
        if self._is_published:
            return
        try:
            self._content.discard()
        finally:
            self._folder.discard(self.id)


def _parse(names: list[str]) -> list[tuple[str, str]]:
    """Ids and suffixes; other names are none of ours."""
    return [(match[1], match[2]) for match in map(_NAME.fullmatch, names) if match is not None]
