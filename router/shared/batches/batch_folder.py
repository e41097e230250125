"""What the processes that work on a batch keep in its folder: the index of its lines, and the results so far.

    {folder}/{tenant}/{batch}/input-{token}            its input file, which may be deleted or expire meanwhile
    {folder}/{tenant}/{batch}/index-{token}            see router.core.batches.line_index
    {folder}/{tenant}/{batch}/{range}-{token}.output   results of a range, by one holder of its lease
    {folder}/{tenant}/{batch}/{range}-{token}.errors   its lines without a result, or with an error
    {folder}/{tenant}/{batch}/{token}.output           all of them, joined; then a file of the tenant

All functions block; they are called in threads. None of them needs more memory than a few lines, and the index.
"""

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final, Literal, NamedTuple

import msgspec
import xxhash

from router.core.batches.batch_object import BatchError, RequestCounts
from router.core.batches.line_index import (
    DUPLICATE,
    ENTRY_SIZE,
    LineEntry,
    OrderedLines,
    order_key,
    unpack_entries,
)
from router.core.batches.request_line import BadLine, is_object, parse_line
from router.core.batches.result_line import error_line, is_cached, line_id, number_of

RANGE_LINES: Final = 100

_MAX_ENVELOPE: Final = 1 << 16  # bytes of a line besides the request's body
_COPY_SIZE: Final = 1 << 20
_BUSY: Final = 0.001  # seconds of work after which the event loop gets the interpreter

Kind = Literal["output", "errors"]
KINDS: Final[Sequence[Kind]] = ("output", "errors")


class InvalidInputError(Exception):
    """The input file cannot be a batch's."""

    def __init__(self, code: str, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.error: Final = BatchError(code, message, line)


class JoinedResults(NamedTuple):
    """`output`, `errors`: None where there are no lines."""

    counts: RequestCounts
    output: Path | None
    errors: Path | None


class WorkStoppedError(Exception):
    """Nobody wants the result any more."""


class _Pauses:
    """Lets the event loop run during long work in a thread, which else holds the interpreter for 5 ms each time."""

    def __init__(self, is_stopped: Callable[[], bool]) -> None:
        self._is_stopped = is_stopped
        self._began = time.monotonic()

    def pause_if_due(self) -> None:
        """Raises WorkStoppedError."""
        if self._is_stopped():
            raise WorkStoppedError
        if time.monotonic() - self._began > _BUSY:
            time.sleep(_BUSY)
            self._began = time.monotonic()


class BatchFolder:
    """Of one batch."""

    def __init__(self, folder: Path, batch_id: str, endpoint: str, max_body: int) -> None:
        """`folder`: need not exist. `max_body`: bytes of a request."""
        self._folder = folder
        self._batch_id = batch_id
        self._endpoint = endpoint
        self._max_line = max_body + _MAX_ENVELOPE

    # -- the input ----------------------------------------------------------------------------------------------------

    def check_input(self, source: Path, token: str, max_lines: int, is_stopped: Callable[[], bool]) -> int:
        """Writes the index and keeps the input; the result is the number of lines.

        Raises InvalidInputError, OSError, and WorkStoppedError.
        """
        lines = OrderedLines()
        seen: set[int] = set()
        pauses = _Pauses(is_stopped)
        with source.open("rb") as file:
            for entry, line in self._lines(file):
                if len(lines) == max_lines:
                    raise InvalidInputError("too_many_lines", f"The file has more than {max_lines} lines.")
                lines.add(*self._indexed(entry, line, seen))
                pauses.pause_if_due()
        if not len(lines):
            raise InvalidInputError("empty_file", "The file has no lines.")
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _keep(source, self.input(token))
        with _create(self._index(token)) as index:
            for entry_bytes in lines.packed():
                index.write(entry_bytes)
                pauses.pause_if_due()
            _sync(index)
        return len(lines)

    def input(self, index: str) -> Path:
        """The input, for as long as the batch lasts. `index`: the token of the check."""
        return self._folder / f"input-{index}"

    def _lines(self, file: BinaryIO) -> Iterator[tuple[LineEntry, bytes]]:
        """The lines of a file, but for empty ones at its end. Raises InvalidInputError."""
        offset = number = 0
        is_over = False
        while line := file.readline(self._max_line + 1):
            number += 1
            if len(line) > self._max_line:
                raise InvalidInputError("line_too_long", f"The line has more than {self._max_line} bytes.", number)
            if not line.strip():
                is_over = True
            elif is_over:
                raise InvalidInputError("invalid_json_line", "The line before is empty.", number)
            else:
                yield LineEntry(offset, len(line), number, 0), line
            offset += len(line)

    def _indexed(self, entry: LineEntry, line: bytes, seen: set[int]) -> tuple[bytes, LineEntry]:
        parsed = parse_line(line, self._endpoint)
        if isinstance(parsed, BadLine):
            if not is_object(line):
                raise InvalidInputError("invalid_json_line", parsed.message, entry.number)
            return b"", entry  # it needs no engine, so its place has no meaning
        id_hash = xxhash.xxh3_64_intdigest(parsed.custom_id.encode())
        if id_hash in seen:
            return b"", entry._replace(flags=DUPLICATE)
        seen.add(id_hash)
        return order_key(parsed.body), entry

    def entries(self, index: str, range_: int) -> list[LineEntry]:
        """Those of a range. `index`: the token of the check."""
        with self._index(index).open("rb") as file:
            file.seek(range_ * RANGE_LINES * ENTRY_SIZE)
            return list(unpack_entries(file.read(RANGE_LINES * ENTRY_SIZE)))

    # -- the results of a range ---------------------------------------------------------------------------------------

    def take_over(self, range_: int, token: str, given_back: str) -> "TakenOver":
        """Begins the results of a range with those that others have written.

        `given_back`: the token of a holder that writes no more, whose results are removed; empty if there is none. The
        caller closes the writer.
        """
        known: set[int] = set()
        counts = RequestCounts()
        earlier = self._parts().get(range_, ())
        writer = PartWriter(self._part(range_, token, "output"), self._part(range_, token, "errors"))
        try:
            for kind, path in earlier:
                for line in _whole_lines(path):
                    number = number_of(line)
                    if number is not None and number not in known:
                        known.add(number)
                        counts = count_result(counts, kind, line)
                        writer.copy(kind, line)
            writer.write(())
        except OSError:
            writer.close()
            raise
        if given_back:
            for kind in KINDS:
                self._part(range_, given_back, kind).unlink(missing_ok=True)
        return TakenOver(writer, known, counts)

    def _parts(self) -> Mapping[int, Sequence[tuple[Kind, Path]]]:
        """What there is of each range; outputs come first."""
        found: dict[int, list[tuple[Kind, Path]]] = {}
        for path in sorted(self._folder.iterdir()):
            range_, dash, _ = path.stem.partition("-")
            kind = path.suffix[1:]
            if dash and range_.isdecimal() and kind in KINDS:
                found.setdefault(int(range_), []).append(("output" if kind == "output" else "errors", path))
        for parts in found.values():
            parts.sort(key=lambda part: part[0], reverse=True)
        return found

    # -- the end ------------------------------------------------------------------------------------------------------

    def join(
        self, token: str, ranges: int, done: Mapping[int, str], index: str, is_expired: bool,
        is_stopped: Callable[[], bool],
    ) -> JoinedResults:  # fmt: skip
        """All results. `done`: the tokens of the ranges that are done, by number.

        `is_expired`: each line without a result is an error. If the input is lost, these are left out. Raises OSError
        and WorkStoppedError.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        counts = RequestCounts()
        pauses = _Pauses(is_stopped)
        parts = self._parts()
        with _create(self._joined(token, "output")) as output, _create(self._joined(token, "errors")) as errors:
            files: dict[Kind, BinaryIO] = {"output": output, "errors": errors}
            for range_ in range(ranges):
                token_of_range = done.get(range_)
                known: set[int] = set()
                for kind, path in parts.get(range_, ()):
                    if token_of_range is not None and path.stem != f"{range_}-{token_of_range}":
                        continue
                    for line in _whole_lines(path):
                        number = number_of(line)
                        if number is not None and number not in known:
                            known.add(number)
                            files[kind].write(line)
                            counts = count_result(counts, kind, line)
                        pauses.pause_if_due()
                if is_expired:
                    for line in self._expired(index, range_, known):
                        files["errors"].write(line)
                        counts = count_result(counts, "errors", line)
            for file in files.values():
                _sync(file)
        return JoinedResults(
            counts,
            self._joined(token, "output") if counts.completed else None,
            self._joined(token, "errors") if counts.failed else None,
        )

    def _expired(self, index: str, range_: int, known: set[int]) -> Iterator[bytes]:
        """The results of a range's lines that have none, at the end of the window."""
        message = "This request could not be executed before the completion window expired."
        try:
            entries = self.entries(index, range_)
            file = self.input(index).open("rb")
        except FileNotFoundError:
            return  # somebody has removed the folder: the batch has to end in spite of that
        with file:
            for entry in entries:
                if entry.number not in known:
                    parsed = parse_line(read_line(file, entry), self._endpoint)
                    id_ = line_id(self._batch_id, entry.number)
                    yield error_line(id_, parsed.custom_id, entry.number, "batch_expired", message)

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- paths --------------------------------------------------------------------------------------------------------

    def _index(self, token: str) -> Path:
        return self._folder / f"index-{token}"

    def _part(self, range_: int, token: str, kind: Kind) -> Path:
        return self._folder / f"{range_}-{token}.{kind}"

    def _joined(self, token: str, kind: Kind) -> Path:
        return self._folder / f"{token}.{kind}"


class PartWriter:
    """Appends results. Those that `write` has returned for outlast the process and the machine.

    `add` and `take` are for the event loop, the others for any thread.
    """

    def __init__(self, output: Path, errors: Path) -> None:
        self._files: dict[Kind, BinaryIO] = {"output": _create(output), "errors": _create(errors)}
        self._lines: list[tuple[Kind, bytes]] = []
        self._unsynced: set[Kind] = set()
        self._lock = threading.Lock()

    def add(self, kind: Kind, line: bytes) -> None:
        self._lines.append((kind, line))

    def take(self) -> list[tuple[Kind, bytes]]:
        """What was added since the last call, for `write`."""
        lines, self._lines = self._lines, []
        return lines

    def write(self, lines: Sequence[tuple[Kind, bytes]]) -> None:
        with self._lock:
            for kind, line in lines:
                self.copy(kind, line)
            for kind in self._unsynced:
                _sync(self._files[kind])
            self._unsynced.clear()

    def copy(self, kind: Kind, line: bytes) -> None:
        """The next `write` makes it durable."""
        self._unsynced.add(kind)
        self._files[kind].write(line)

    def close(self, lines: Sequence[tuple[Kind, bytes]] = ()) -> None:
        """`lines`: see `write`. What cannot be written does not count."""
        with contextlib.suppress(OSError):
            self.write(lines)
        with self._lock:
            for file in self._files.values():
                with contextlib.suppress(OSError):
                    file.close()


class TakenOver(NamedTuple):
    """The results of a range so far. `known`: the numbers of their lines."""

    writer: PartWriter
    known: set[int]
    counts: RequestCounts


def count_result(counts: RequestCounts, kind: Kind, line: bytes) -> RequestCounts:
    """The counts with one more result."""
    if kind == "errors":
        return msgspec.structs.replace(counts, total=counts.total + 1, failed=counts.failed + 1)
    cached = counts.cached + is_cached(line)
    return msgspec.structs.replace(counts, total=counts.total + 1, completed=counts.completed + 1, cached=cached)


def read_line(file: BinaryIO, entry: LineEntry) -> bytes:
    file.seek(entry.offset)
    return file.read(entry.length)


def _whole_lines(path: Path) -> Iterator[bytes]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return  # another process has taken the range over, and what was in it
    with file:
        for line in file:
            if line.endswith(b"\n"):  # else its process has ended while it wrote
                yield line


def _keep(source: Path, path: Path) -> None:
    try:
        path.hardlink_to(source)
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError:  # a file system without links
        with source.open("rb") as file, _create(path) as copy:
            shutil.copyfileobj(file, copy, _COPY_SIZE)


def _create(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
