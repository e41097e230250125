"""Files in an object store, such as S3, by fsspec: Storage. An object is written whole, and is there at once.

Source: https://filesystem-spec.readthedocs.io/en/latest/api.html
"""

import asyncio
import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from math import inf
from typing import Any, Final, cast

import fsspec  # type: ignore[import-untyped,unused-ignore]

from router.shared.batches.storage import StoredFile

# Bytes of a part of an upload: S3 allows 10,000 of at least 5 MiB.
_PART: Final = 5 << 20

# Bytes of a request for a part of a file, which stay in memory while whoever reads them is slow.
_READ: Final = 1 << 20

_PIECE: Final = 256 << 10  # bytes

# Bytes after which a log goes on in another object: each sync writes the last ones again.
_MAX_SEGMENT: Final = 1 << 20

_CONFIG: Final[dict[str, dict[str, Any]]] = {
    # By default botocore waits a minute for each, and a thread with it. It alone repeats answers such as 500 and 503.
    "s3": {
        "config_kwargs": {
            "connect_timeout": 5, "read_timeout": 15, "retries": {"mode": "standard", "total_max_attempts": 3},
        },
        "max_concurrency": 1,  # else it asks for the size of what it is to read
    },
}  # fmt: skip

# Of s3fs, of each request with its attempts; 5 by default.
_ROUNDS: Final = 2


class ObjectStorage:
    """See Storage."""

    def __init__(self, files: Any, root: str) -> None:
        """`files`: a file system of fsspec. `root`: what all names begin with, such as `bucket/files`."""
        self._files = files
        self._root = root

    @classmethod
    def at(cls, url: str) -> "ObjectStorage":
        """Raises ImportError or ValueError if no package for the protocol is installed."""
        protocol = url.partition("://")[0]
        # No listings are kept: other processes change the store.
        options = {"use_listings_cache": False, "skip_instance_cache": True, **_CONFIG.get(protocol, {})}
        files, root = fsspec.url_to_fs(url, **options)
        if protocol == "s3":
            files.retries = _ROUNDS
            files.loop.call_soon_threadsafe(files.loop.set_exception_handler, _on_lost_exception)
        return cls(files, root.rstrip("/"))

    def read(self, name: str) -> bytes:
        with _as_os_error():
            return cast("bytes", self._files.cat_file(self._path(name)))

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        with _as_os_error():
            return cast("bytes", self._files.cat_file(self._path(name), start=offset, end=offset + length))

    def read_all(self, names: Sequence[str]) -> Iterator[bytes]:
        with _as_os_error():
            paths = [self._path(name) for name in names]
            found = self._files.cat(paths, on_error="return") if paths else {}
            for content in found.values():
                if isinstance(content, bytes):
                    yield content
                elif not isinstance(content, FileNotFoundError) or _lacks_bucket(content):
                    raise content

    def open(self, name: str) -> io.BufferedReader:
        with _as_os_error():
            return io.BufferedReader(_Reader(self._files.open(self._path(name), "rb", block_size=_READ)), _PIECE)

    def write(self, name: str, data: bytes) -> None:
        with _as_os_error():
            self._files.pipe_file(self._path(name), data)

    def create(self, name: str) -> "_NewObject":
        with _as_os_error():
            return _NewObject(self._files.open(self._path(name), "wb", block_size=_PART, autocommit=False))

    def log(self, segment: Callable[[int], str]) -> "_ObjectLog":
        return _ObjectLog(self, segment)

    def copy(self, source: str, name: str) -> None:
        with _as_os_error():
            self._files.cp_file(self._path(source), self._path(name))

    def move(self, source: str, name: str) -> int:
        with _as_os_error():
            with contextlib.suppress(FileNotFoundError):  # it may have been moved before; else it has no size
                self._files.cp_file(self._path(source), self._path(name))
                self.remove_known(source)
            return int(self._files.info(self._path(name))["size"])

    def remove(self, name: str) -> bool:
        with _as_os_error():
            if not self._files.exists(self._path(name)):
                return False
            self.remove_known(name)
            return True

    def names(self, folder: str) -> list[str]:
        return [name for name, _ in self._entries(folder, "file")]

    def files(self, folder: str) -> list[StoredFile]:
        return [StoredFile(name, _changed_at(entry)) for name, entry in self._entries(folder, "file")]

    def folders(self, folder: str) -> list[str]:
        return [name for name, _ in self._entries(folder, "directory")]

    def changed_at(self, folder: str) -> float:
        return max((file.changed_at for file in self.files(folder)), default=inf)

    def remove_folder(self, folder: str) -> None:
        with _as_os_error(), contextlib.suppress(FileNotFoundError):
            self._files.rm(self._path(folder), recursive=True)

    def remove_unfinished(self, folder: str, before: float) -> None:
        pass  # the store has no names for them; see docs/batches.md for the parts of uploads that were broken off

    def _entries(self, folder: str, kind: str) -> list[tuple[str, dict[str, Any]]]:
        with _as_os_error():
            try:
                entries = self._files.ls(self._path(folder), detail=True)
            except FileNotFoundError as error:
                if _lacks_bucket(error):
                    raise
                return []
        named = [(entry["name"].rstrip("/").rpartition("/")[2], entry) for entry in entries if entry["type"] == kind]
        return [(name, entry) for name, entry in named if name]

    def remove_known(self, name: str) -> None:
        """As `remove`, in one request."""
        with _as_os_error(), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")


class _NewObject:
    def __init__(self, file: Any) -> None:
        self._file = file
        self._is_over = False
        self._size = 0

    @property
    def held(self) -> int:
        return min(self._size, _PART)

    def write(self, data: bytes) -> None:
        self._size += len(data)
        with _as_os_error():
            self._file.write(data)

    def commit(self) -> None:
        with _as_os_error():
            self._file.close()
            self._file.commit()
            self._is_over = True

    def discard(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        with _as_os_error():
            try:
                self._file.discard()
            finally:
                self._file.closed = True  # else the garbage collector uploads what was written


class _ObjectLog:
    """Objects cannot be appended to: each sync writes the last lines again, and removes the object that had them.

    No name is written twice with different lines: a request that the client has given up may still be executed, and
    would replace later lines.
    """

    def __init__(self, storage: ObjectStorage, segment: Callable[[int], str]) -> None:
        self._storage = storage
        self._segment = segment
        self._number = 0
        self._last: str | None = None  # the object that is to be replaced
        self._lines = bytearray()
        self._is_synced = True

    def append(self, line: bytes) -> None:
        self._lines += line
        self._is_synced = False
        if len(self._lines) >= _MAX_SEGMENT:
            self.sync()

    def sync(self) -> None:
        if self._is_synced:
            return
        name = self._segment(self._number)
        self._number += 1
        self._storage.write(name, bytes(self._lines))
        self._is_synced = True
        replaced, self._last = self._last, name
        if len(self._lines) >= _MAX_SEGMENT:
            self._lines = bytearray()
            self._last = None
        if replaced is not None:
            with contextlib.suppress(OSError):  # it has no other lines
                self._storage.remove_known(replaced)

    def close(self) -> None:
        pass


class _Reader(io.RawIOBase):
    """A file whose errors are OSErrors."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _as_os_error():
            return int(self._file.readinto(buffer))

    def close(self) -> None:
        self._file.close()
        super().close()


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    """The clients of object stores have exceptions of their own for connections and responses."""
    try:
        yield
    except FileNotFoundError as error:
        if _lacks_bucket(error):
            raise OSError(f"NoSuchBucket: {error}") from error
        raise
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def _on_lost_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Of the event loop of s3fs. If a connection breaks, a task of aiohttp fails beside the request, for each."""
    if not isinstance(context.get("exception"), OSError):
        loop.default_exception_handler(context)


def _lacks_bucket(error: FileNotFoundError) -> bool:
    """Whether not the file is missing, but the bucket."""
    response = getattr(error.__cause__, "response", None)
    return response is not None and response["Error"].get("Code") == "NoSuchBucket"


def _changed_at(entry: dict[str, Any]) -> float:
    # Each file system of fsspec has another name for it.
    for field in ("LastModified", "last_modified", "updated", "mtime", "created"):
        found = entry.get(field)
        if isinstance(found, datetime):
            return found.timestamp()
        if isinstance(found, int | float):
            return float(found)
    return inf
