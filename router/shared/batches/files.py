"""The files of tenants, for requests: in threads, so that a slow disk holds up nothing else."""

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from io import BufferedReader
from typing import Final, Literal, NamedTuple, ParamSpec, TypeVar

from router.net.repeated_warning import RepeatedWarning
from router.shared.batches.file_folder import FileFolder, NewFile, new_file_id
from router.shared.batches.file_record import FileRecord, FolderUnusableError, UnknownFileError
from router.shared.batches.file_threads import FileThreads
from router.shared.batches.storage import Storage

log = logging.getLogger("roundhouse.batches")

_P = ParamSpec("_P")
_T = TypeVar("_T")

# Threads of their own: those of the event loop also resolve the names of engines, and a hung NFS would take them all.
_THREADS: Final = 4
_STUCK: Final = 5.0  # seconds
_PIECE: Final = 256 * 1024  # bytes
_TENANT: Final = re.compile(r"[a-z0-9._-]{1,64}")


class FilePage(NamedTuple):
    """Files, and whether there are more after them."""

    records: list[FileRecord]
    has_more: bool


class BatchFiles:
    """The files of tenants, `{tenant}/{id}.jsonl`; see router.shared.batches.file_folder.

    - Several routers may share the storage. What a tenant has is there alone: Redis may lose its data.
    - A tenant finds only its own files. Neither its name nor an id leads out of its folder.
    - A file is there with all of its bytes and its record, or not at all, whenever a process or machine ends.
    - A file that has expired is gone; `remove_expired` frees its space.
    - No more than a piece of a file is in memory.
    - All coroutines raise FolderUnusableError if the storage cannot be used.
    """

    def __init__(self, storage: Storage, *, max_files: int, ttl: float, clock: Callable[[], float]) -> None:
        """`max_files`: those that a tenant may upload, if it has no more; a few at once may exceed it. Results of
        batches count, and are always kept. `ttl`: seconds until a file expires; 0: never. `clock`: seconds since the
        epoch.
        """
        self.storage: Final = storage
        self._max_files = max_files
        self._ttl = ttl
        self._clock = clock
        self._warning = RepeatedWarning(log)
        self._threads = FileThreads(_THREADS)
        self._calls = 0
        self._last_return = 0.0

    async def run(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Calls a function that reads or writes files in a thread."""
        if not self._calls:
            self._last_return = time.monotonic()
        self._calls += 1
        try:
            result = await self.run_long(function, *args, **kwargs)
            self._last_return = time.monotonic()
        finally:
            self._calls -= 1
        return result

    @property
    def is_stuck(self) -> bool:
        """Whether calls of `run` wait for the storage, and none has returned for a while."""
        return self._calls > 0 and time.monotonic() >= self._last_return + _STUCK

    async def run_long(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """As `run`, for what takes its time with large files."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *args, **kwargs))
        except OSError as error:
            self._warning.log("batch.folder cannot be used: %s", error)
            raise FolderUnusableError(error.strerror or type(error).__name__) from error

    @contextlib.asynccontextmanager
    async def new_file(self, tenant: str) -> AsyncIterator[NewFile]:
        """A file to be written in `run`; `commit` makes it one of the tenant. Else nothing of it is left.

        Raises TooManyFilesError.
        """
        folder = self._of(tenant)
        await self.run(folder.check_room, self._clock())
        file = await self.run(folder.new_file)
        try:
            yield file
        finally:
            # Also if the client has left and the task is cancelled once more.
            await asyncio.shield(self.run(file.discard))

    async def commit(self, file: NewFile, filename: str, purpose: str, ttl: float | None = None) -> FileRecord:
        """`ttl`: less than that of all files, if it is not None."""
        record = self._record(file.id, file.size, filename, purpose, ttl)
        await self.run(file.commit, record)
        return record

    async def create(self, tenant: str, filename: str, purpose: str, chunks: AsyncIterator[bytes]) -> FileRecord:
        """Raises TooManyFilesError, and what `chunks` raises."""
        async with self.new_file(tenant) as file:
            async for chunk in chunks:
                await self.run(file.write, chunk)
            return await self.commit(file, filename, purpose)

    async def adopt(
        self, tenant: str, name: str, filename: str, purpose: str, *, id_: str | None = None, ttl: float | None = None
    ) -> FileRecord:
        """Moves a complete file of the storage to the tenant's. `ttl`: see `commit`.

        `id_`: what it is called; a new id if it is None. With the same one, it can be repeated after the process has
        ended in between, also if the file was moved already.
        """
        id_ = id_ or new_file_id()
        folder = self._of(tenant)
        record = self._record(id_, await self.run(folder.adopt, name, id_), filename, purpose, ttl)
        await self.run(folder.publish, record)
        return record

    async def find(self, tenant: str, id_: str) -> FileRecord:
        """Raises UnknownFileError."""
        return await self.run(self._of(tenant).find, id_, self._clock())

    async def list_files(
        self, tenant: str, *, purpose: str | None = None, after: str | None = None, limit: int = 10_000,
        order: Literal["asc", "desc"] = "desc",
    ) -> FilePage:  # fmt: skip
        """By the time of their creation. `after`: the id of the file before the page.

        Raises UnknownFileError if `after` is none of the listed files.
        """
        return await self.run(_list, self._of(tenant), self._clock(), purpose, after, limit, order)

    async def open(self, tenant: str, id_: str) -> "StoredContent":
        """Raises UnknownFileError."""
        record, file = await self.run(self._of(tenant).open, id_, self._clock())
        return StoredContent(self, record, file)

    def name(self, tenant: str, id_: str) -> str:
        """Of a file's content, in the storage. Raises UnknownFileError for what is no id."""
        return self._of(tenant).content(id_)

    async def delete(self, tenant: str, id_: str) -> None:
        """Raises UnknownFileError."""
        folder = self._of(tenant)
        await self.run(folder.find, id_, self._clock())
        await self.run(folder.delete, id_)

    async def remove_expired(self) -> int:
        """Removes files that have expired, of all tenants, and what interrupted uploads have left. Returns how many."""
        return await self.run(self._remove_expired)

    def _remove_expired(self) -> int:
        removed = 0
        for name in self.storage.folders(""):
            if _TENANT.fullmatch(name):
                folder = self._of(name)
                removed += folder.remove_expired(self._clock())
                folder.remove_leftovers(self._clock())
        return removed

    def _record(self, id_: str, size: int, filename: str, purpose: str, ttl: float | None) -> FileRecord:
        now = self._clock()
        ttls = [each for each in (ttl, self._ttl or None) if each is not None]
        return FileRecord(
            id=id_, size=size, created_at=int(now), expires_at=int(now + min(ttls)) if ttls else None,
            filename=filename, purpose=purpose,
        )  # fmt: skip

    def _of(self, tenant: str) -> FileFolder:
        # The configuration has no such names; this is what keeps them from being a path.
        if not _TENANT.fullmatch(tenant) or tenant in (".", ".."):
            raise ValueError("not the name of a tenant")
        return FileFolder(self.storage, tenant, self._max_files)


class StoredContent:
    """The bytes of a file, one piece after the other. In a folder, they can be read to the end after it is deleted."""

    def __init__(self, files: BatchFiles, record: FileRecord, file: BufferedReader) -> None:
        self.record = record
        self._files = files
        self._file = file
        self._left = record.size

    async def read(self) -> bytes:
        """The next bytes; empty at the end. Raises FolderUnusableError, also for a file that has lost its end."""
        data = await self._files.run(self._file.read, min(_PIECE, self._left))
        if self._left and not data:
            raise FolderUnusableError("a file is shorter than its record says")
        self._left -= len(data)
        return data

    async def aclose(self) -> None:
        # In a thread, after a read that is not over: its caller may have been cancelled.
        await asyncio.shield(self._files.run(self._file.close))


def _list(
    folder: FileFolder, now: float, purpose: str | None, after: str | None, limit: int, order: Literal["asc", "desc"]
) -> FilePage:
    found = [record for record in folder.records(now) if purpose in (None, record.purpose)]
    found.sort(key=lambda record: (record.created_at, record.id), reverse=order == "desc")
    start = 0
    if after is not None:
        start = next((number for number, record in enumerate(found, 1) if record.id == after), 0)
        if not start:
            raise UnknownFileError
    return FilePage(found[start : start + limit], len(found) > start + limit)
