"""What the processes that work on a batch keep in its folder: the index of its lines, and the results so far.

    {tenant}/{batch}/input-{token}            its input file, which may be deleted or expire meanwhile
    {tenant}/{batch}/index-{token}            see router.core.batches.line_index
    {tenant}/{batch}/{range}-{token}.output   results of a range, by one holder of its lease; on with {range}-{token}-1
    {tenant}/{batch}/{range}-{token}.errors   its lines without a result, or with an error
    {tenant}/{batch}/{token}.output           all of them, joined; then a file of the tenant

All functions block; they are called in threads. None of them needs more memory than a few lines, and the index.
"""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from io import BufferedReader
from typing import Final, Literal, NamedTuple

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
from router.shared.batches.storage import NewContent, ResultLog, Storage

RANGE_LINES: Final = 100

_MAX_ENVELOPE: Final = 1 << 16  # bytes of a line besides the request's body
_PART: Final = re.compile(r"([0-9]+)-([0-9a-f]+)(?:-[0-9]+)?\.(output|errors)")
_BUSY: Final = 0.001  # seconds of work after which the event loop gets the interpreter

Kind = Literal["output", "errors"]
KINDS: Final[Sequence[Kind]] = ("output", "errors")


class InvalidInputError(Exception):
    """The input file cannot be a batch's."""

    def __init__(self, code: str, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.error: Final = BatchError(code, message, line)


class JoinedResults(NamedTuple):
    """`output`, `errors`: the names of the files; None where there are no lines."""

    counts: RequestCounts
    output: str | None
    errors: str | None


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

    def __init__(self, storage: Storage, tenant: str, batch_id: str, endpoint: str, max_body: int) -> None:
        """`max_body`: bytes of a request."""
        self._storage = storage
        self._folder = f"{tenant}/{batch_id}"
        self._batch_id = batch_id
        self._endpoint = endpoint
        self._max_line = max_body + _MAX_ENVELOPE

    # -- the input ----------------------------------------------------------------------------------------------------

    def check_input(self, source: str, token: str, max_lines: int, is_stopped: Callable[[], bool]) -> int:
        """Writes the index and keeps the input; the result is the number of lines. `source`: its name in the storage.

        Raises InvalidInputError, OSError, and WorkStoppedError.
        """
        lines = OrderedLines()
        seen: set[int] = set()
        pauses = _Pauses(is_stopped)
        with self._storage.open(source) as file:
            for entry, line in self._lines(file):
                if len(lines) == max_lines:
                    raise InvalidInputError("too_many_lines", f"The file has more than {max_lines} lines.")
                lines.add(*self._indexed(entry, line, seen))
                pauses.pause_if_due()
        if not len(lines):
            raise InvalidInputError("empty_file", "The file has no lines.")
        self._storage.copy(source, self.input(token))
        with _creating(self._storage, self._index(token)) as index:
            for entry_bytes in lines.packed():
                index.write(entry_bytes)
                pauses.pause_if_due()
            index.commit()
        return len(lines)

    def input(self, index: str) -> str:
        """The name of the input, for as long as the batch lasts. `index`: the token of the check."""
        return f"{self._folder}/input-{index}"

    def _lines(self, file: BufferedReader) -> Iterator[tuple[LineEntry, bytes]]:
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
        size = RANGE_LINES * ENTRY_SIZE
        return list(unpack_entries(self._storage.read_range(self._index(index), range_ * size, size)))

    # -- the results of a range ---------------------------------------------------------------------------------------

    def take_over(self, range_: int, token: str, given_back: str) -> "TakenOver":
        """Begins the results of a range with those that others have written.

        `given_back`: the token of a holder that writes no more, whose results are removed; empty if there is none. The
        caller closes the writer.
        """
        known: set[int] = set()
        counts = RequestCounts()
        earlier = self._parts().get(range_, ())
        writer = PartWriter({kind: self._storage.log(partial(self._part, range_, token, kind)) for kind in KINDS})
        try:
            for kind, _, name in earlier:
                for line in self._whole_lines(name):
                    number = number_of(line)
                    if number is not None and number not in known:
                        known.add(number)
                        counts = count_result(counts, kind, line)
                        writer.copy(kind, line)
            writer.write(())
        except OSError:
            writer.close()
            raise
        for _, holder, name in earlier:
            if holder == given_back:
                self._storage.remove(name)
        return TakenOver(writer, known, counts)

    def _parts(self) -> "Mapping[int, Sequence[_Part]]":
        """What there is of each range; outputs come first."""
        found: dict[int, list[_Part]] = {}
        for name in self._storage.names(self._folder):
            if (match := _PART.fullmatch(name)) is not None:
                kind: Kind = "output" if match[3] == "output" else "errors"
                found.setdefault(int(match[1]), []).append(_Part(kind, match[2], f"{self._folder}/{name}"))
        for parts in found.values():
            parts.sort(key=lambda part: part.kind, reverse=True)
        return found

    def _whole_lines(self, name: str) -> Iterator[bytes]:
        try:
            file = self._storage.open(name)
        except FileNotFoundError:
            return  # another process has taken the range over, and what was in it
        with file:
            for line in file:
                if line.endswith(b"\n"):  # else its process has ended while it wrote
                    yield line

    # -- the end ------------------------------------------------------------------------------------------------------

    def join(
        self, token: str, ranges: int, done: Mapping[int, str], index: str, is_expired: bool,
        is_stopped: Callable[[], bool],
    ) -> JoinedResults:  # fmt: skip
        """All results. `done`: the tokens of the ranges that are done, by number.

        `is_expired`: each line without a result is an error. If the input is lost, these are left out. Raises OSError
        and WorkStoppedError.
        """
        counts = RequestCounts()
        pauses = _Pauses(is_stopped)
        parts = self._parts()
        output, errors = (_creating(self._storage, self._joined(token, kind)) for kind in KINDS)
        with output as output_file, errors as errors_file:
            files: dict[Kind, NewContent] = {"output": output_file, "errors": errors_file}
            for range_ in range(ranges):
                token_of_range = done.get(range_)
                known: set[int] = set()
                for kind, holder, name in parts.get(range_, ()):
                    if token_of_range not in (None, holder):
                        continue
                    for line in self._whole_lines(name):
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
            if counts.completed:
                output_file.commit()
            if counts.failed:
                errors_file.commit()
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
        except FileNotFoundError:
            return  # the folder was removed; the batch ends all the same
        for entry in entries:
            if entry.number not in known:
                line = input_line(self._storage, self.input(index), entry)
                custom_id = parse_line(line, self._endpoint).custom_id if line is not None else None
                id_ = line_id(self._batch_id, entry.number)
                yield error_line(id_, custom_id, entry.number, "batch_expired", message)

    def remove(self) -> None:
        self._storage.remove_folder(self._folder)

    # -- names --------------------------------------------------------------------------------------------------------

    def _index(self, token: str) -> str:
        return f"{self._folder}/index-{token}"

    def _part(self, range_: int, token: str, kind: Kind, segment: int) -> str:
        return f"{self._folder}/{range_}-{token}{f'-{segment}' if segment else ''}.{kind}"

    def _joined(self, token: str, kind: Kind) -> str:
        return f"{self._folder}/{token}.{kind}"


class PartWriter:
    """Appends results. Those that `write` has returned for outlast the process and the machine.

    `add` and `take` are for the event loop, the others for any thread.
    """

    def __init__(self, logs: Mapping[Kind, ResultLog]) -> None:
        self._logs = logs
        self._lines: list[tuple[Kind, bytes]] = []
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
                self._logs[kind].append(line)
            for log in self._logs.values():
                log.sync()

    def copy(self, kind: Kind, line: bytes) -> None:
        """The next `write` makes it durable."""
        self._logs[kind].append(line)

    def close(self, lines: Sequence[tuple[Kind, bytes]] = ()) -> None:
        """`lines`: see `write`. What cannot be written does not count."""
        with contextlib.suppress(OSError):
            self.write(lines)
        with self._lock:
            for log in self._logs.values():
                with contextlib.suppress(OSError):
                    log.close()


class _Part(NamedTuple):
    """`holder`: the token of the process that has written it."""

    kind: Kind
    holder: str
    name: str


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


def input_line(storage: Storage, name: str, entry: LineEntry) -> bytes | None:
    """A line of the input; None if the file is gone."""
    try:
        return storage.read_range(name, entry.offset, entry.length)
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def _creating(storage: Storage, name: str) -> Iterator[NewContent]:
    """Leaves nothing of it, unless it is committed."""
    new = storage.create(name)
    try:
        yield new
    finally:
        new.discard()
