"""Where files and batches are kept: a folder, or an object store. All calls block."""

from collections.abc import Callable, Iterator, Sequence
from io import BufferedReader
from typing import NamedTuple, Protocol


class StoredFile(NamedTuple):
    """`name`: without its folder. `changed_at`: seconds since the epoch."""

    name: str
    changed_at: float


class NewContent(Protocol):
    """A file that is being written. It is there once it is committed, with all of its bytes.

    `held`: bytes of it that are in memory, about.
    """

    @property
    def held(self) -> int: ...

    def write(self, data: bytes) -> None: ...

    def commit(self) -> None: ...

    def discard(self) -> None:
        """Nothing after `commit`. Can be repeated."""


class ResultLog(Protocol):
    """Lines that one process appends; others can read them meanwhile."""

    def append(self, line: bytes) -> None: ...

    def sync(self) -> None:
        """What was appended outlasts the process and the machine."""

    def close(self) -> None:
        """What was not synced may be lost. Can be repeated."""


class Storage(Protocol):
    """Files by name, such as `acme/file-1.json`; folders are there as long as they have files.

    - Several processes, of several machines, may share it. What one has written, the others find at once.
    - What was written outlasts the process and the machine.
    - All calls raise OSError if the storage cannot be used, and FileNotFoundError for a file that is not there.
    """

    def read(self, name: str) -> bytes: ...

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        """Fewer bytes at the end of the file."""

    def read_all(self, names: Sequence[str]) -> Iterator[bytes]:
        """In any order. Those that are not there are left out."""

    def open(self, name: str) -> BufferedReader: ...

    def write(self, name: str, data: bytes) -> None:
        """Replaces the file. Others find the old or the new one, whole."""

    def create(self, name: str) -> NewContent:
        """A file that can be larger than the memory; no other process creates the same."""

    def log(self, segment: Callable[[int], str]) -> ResultLog:
        """`segment`: the names of the files that the log needs, from 0 on."""

    def copy(self, source: str, name: str) -> None: ...

    def move(self, source: str, name: str) -> int:
        """Returns the bytes. Can be repeated, also by several processes at once."""

    def remove(self, name: str) -> bool:
        """Returns whether it was there; of several that remove it at once, a store may tell all of them so."""

    def names(self, folder: str) -> list[str]:
        """Of the files directly in a folder that may not be there, without it."""

    def files(self, folder: str) -> list[StoredFile]:
        """As `names`; of a folder with many files, this may take ten times as long."""

    def folders(self, folder: str) -> list[str]:
        """The names of the folders directly in a folder that may not be there."""

    def changed_at(self, folder: str) -> float:
        """When a file was added to the folder or removed from it, about; infinity if it is not there."""

    def remove_folder(self, folder: str) -> None:
        """With its files. It need not be there."""

    def remove_unfinished(self, folder: str, before: float) -> None:
        """Removes what processes left that ended while they wrote. `before`: seconds since the epoch."""
