"""One range of a batch's lines: they run in this process, and their results go to files."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from router.core.batches.batch_object import RequestCounts
from router.core.batches.line_index import DUPLICATE, LineEntry
from router.core.batches.request_line import BadLine, RequestLine, parse_line
from router.core.batches.result_line import error_line, line_id, response_line
from router.core.cache.cache_control import CacheControl
from router.core.endpoints.endpoint import Endpoint
from router.errors import ENGINE_LOST, NOT_CACHED
from router.flow.batches.line_requests import LineAnswer, LineRequests
from router.flow.batches.spare_capacity import SpareCapacity
from router.flow.lookup import FullResponse
from router.shared.batches.batch_folder import Kind, PartWriter, count_result, input_line
from router.shared.batches.file_record import FolderUnusableError
from router.shared.batches.files import BatchFiles
from router.shared.batches.storage import Storage

_MAX_FAILURES: Final = 3
"""Attempts of the router after which a failure of the engines is the line's result."""

_FIRST_DELAY: Final = 1.0
_MAX_DELAY: Final = 30.0
_LONG_DELAY: Final = 5
"""Seconds: a refusal for so long, as by a budget or a rate limit, holds for all lines; others run meanwhile."""

_MAX_HELD: Final = 4 << 10
"""Bytes of a line that stays in memory while it waits."""

_STALL: Final = 5.0
"""Seconds without a line in flight after which a range leaves its place to others."""

_BUSY: Final = (408, 409, 425, 429, 503)
_FAILED: Final = (500, 502, 504)
_FINAL: Final = (ENGINE_LOST, NOT_CACHED)


class TenantRefusal(NamedTuple):
    """`retry_after`: in seconds."""

    message: str
    retry_after: float


class BatchRange:
    """- A line counts once its result is on the disk.
    - A line that finds the engines busy or down is sent again, until the range is stopped.
    - A hit does not wait for an engine.

    `refused`: why the tenant gets nothing for a while; None if it does.
    """

    def __init__(
        self, files: BatchFiles, requests: LineRequests, capacity: SpareCapacity, endpoint: Endpoint, tenant: str,
        batch_id: str, control: CacheControl, writer: PartWriter, known: RequestCounts, concurrency: int,
    ) -> None:  # fmt: skip
        """`writer`: has the results so far; `known`: how many these are.

        `concurrency`: lines of one model that ask for engines at once.
        """
        self._files = files
        self._requests = requests
        self._capacity = capacity
        self._endpoint = endpoint
        self._tenant = tenant
        self._batch_id = batch_id
        self._control = control
        self._writer = writer
        self._places: defaultdict[str, asyncio.Semaphore] = defaultdict(partial(asyncio.Semaphore, concurrency))
        self._flushing = asyncio.Lock()
        self._waiting: set[asyncio.Task[Any] | None] = set()  # those that can be cancelled without a loss
        self._in_flight = 0
        self._idle_since = asyncio.get_running_loop().time()
        self._is_stopped = False
        self._order = LineOrder(())
        self.counts = known
        self.refused: TenantRefusal | None = None

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def is_stalled(self) -> bool:
        """Whether no line has been in flight for a while."""
        return not self._in_flight and asyncio.get_running_loop().time() >= self._idle_since + _STALL

    def stop(self) -> None:
        """No line begins any more. Those in flight end, and `run` returns."""
        self._is_stopped = True
        for task in self._waiting:
            if task is not None:
                task.cancel()

    async def run(self, source: str, entries: Sequence[LineEntry]) -> bool:
        """Whether all lines have a result; else it was stopped. Raises FolderUnusableError."""
        self._order = LineOrder(entry.number for entry in entries)
        try:
            async with asyncio.TaskGroup() as group:
                for entry in entries:  # all at once, so that a hit does not wait for a line that needs an engine
                    group.create_task(self._run_line(source, entry))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return not self._is_stopped

    async def _run_line(self, source: str, entry: LineEntry) -> None:
        if self._is_stopped:
            return
        async with contextlib.AsyncExitStack() as place:
            with self._being_waiting(), self._order.undecided(entry.number):
                kind, result = await self._result(source, entry, place)
            self._writer.add(kind, result)
            async with self._flushing:  # while one writes, the results of others gather
                await self._files.run(self._writer.write, self._writer.take())
        self.counts = count_result(self.counts, kind, result)

    @contextlib.contextmanager
    def _being_waiting(self) -> Iterator[None]:
        task = asyncio.current_task()
        self._waiting.add(task)
        try:
            yield
        finally:
            self._waiting.discard(task)

    @contextlib.contextmanager
    def _being_in_flight(self) -> Iterator[None]:
        task = asyncio.current_task()
        self._waiting.discard(task)
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            self._idle_since = asyncio.get_running_loop().time()
            self._waiting.add(task)

    async def _result(
        self, source: str, entry: LineEntry, place: contextlib.AsyncExitStack
    ) -> tuple[Kind, bytes]:  # fmt: skip
        id_ = line_id(self._batch_id, entry.number)
        parsed = await self._files.run(_parse, self._files.storage, source, entry, self._endpoint.path)
        if isinstance(parsed, RequestLine) and entry.flags & DUPLICATE:
            message = "Another line of the file has the same `custom_id`."
            parsed = BadLine(parsed.custom_id, "duplicate_custom_id", message)
        if isinstance(parsed, BadLine):
            return "errors", error_line(id_, parsed.custom_id, entry.number, parsed.code, parsed.message)
        # A line may wait for hours, together with thousands: a long one is read again when it begins.
        body = parsed.body if entry.length <= _MAX_HELD else None
        parsed = parsed._replace(body=b"")

        async def read() -> bytes:
            if body is not None:
                return body
            line = await self._files.run(_parse, self._files.storage, source, entry, self._endpoint.path)
            if isinstance(line, BadLine):
                raise FolderUnusableError(line.message)
            return line.body

        request_id, cache, answer = await self._answer(entry.number, parsed.model, read, place)
        if isinstance(answer, FullResponse):
            return "output", response_line(id_, parsed.custom_id, 200, request_id, cache, answer.body)
        body = self._endpoint.errors.body(answer, request_id)
        return "errors", response_line(id_, parsed.custom_id, answer.status, request_id, cache, body)

    async def _answer(
        self, number: int, model: str, read: Callable[[], Awaitable[bytes]], place: contextlib.AsyncExitStack
    ) -> LineAnswer:
        """`place`: is to end when the answer is written."""
        failures, delay, has_place = 0, _FIRST_DELAY, False
        while True:
            found = await self._cached(model, read)
            if found is None:
                if not has_place:
                    await self._order.wait(number)
                    # The next line comes when this one stands in the queue of its model, before it has the place.
                    asyncio.get_running_loop().call_soon(self._order.leave, number)
                    await place.enter_async_context(self._places[model])
                    has_place = True
                async with self._capacity.one_more(model) as line:
                    with self._being_in_flight():
                        body = await read()
                        found = await self._requests.send(self._endpoint, self._tenant, self._control, body, line)
            answer = found.answer
            if isinstance(answer, FullResponse):
                return found
            # The gateway has tried other engines already, but a minute later there may be others.
            failures += answer.status in _FAILED
            is_worth_it = answer.status in _BUSY or (answer.status in _FAILED and failures < _MAX_FAILURES)
            if answer.code in _FINAL or not is_worth_it:
                return found
            if (answer.retry_after or 0) >= _LONG_DELAY and answer.status == 429:
                self.refused = TenantRefusal(answer.message, answer.retry_after or _LONG_DELAY)
                self._is_stopped = True
            if self._is_stopped:
                self.stop()  # this task, too
            await asyncio.sleep(max(delay, answer.retry_after or 0.0))
            delay = min(2 * delay, _MAX_DELAY)

    async def _cached(self, model: str, read: Callable[[], Awaitable[bytes]]) -> LineAnswer | None:
        """The answer of a line that needs no engine, if it would have to wait for one."""
        control = self._control
        await self._capacity.wait_until_open()
        if control.no_store or control.no_cache or not self._capacity.must_wait(model):
            return None
        find = self._requests.send if control.only_if_cached else self._requests.find_cached
        async with self._capacity.one_lookup():
            with self._being_in_flight():
                return await find(self._endpoint, self._tenant, control, await read())


class LineOrder:
    """Lets lines that need engines ask for them in their order, while it takes time to find out which ones do."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._undecided = {number: asyncio.Event() for number in numbers}

    @contextlib.contextmanager
    def undecided(self, number: int) -> Iterator[None]:
        """At its end, the line needs no engine, or has left."""
        try:
            yield
        finally:
            self.leave(number)

    async def wait(self, number: int) -> None:
        """Until no line before it is undecided."""
        if number != next(iter(self._undecided)):
            await self._undecided[number].wait()

    def leave(self, number: int) -> None:
        """Can be repeated."""
        if self._undecided.pop(number, None) is not None and self._undecided:
            next(iter(self._undecided.values())).set()


def _parse(storage: Storage, source: str, entry: LineEntry, endpoint: str) -> RequestLine | BadLine:
    line = input_line(storage, source, entry)
    if line is None:
        return BadLine(None, "file_not_found", "The input file is gone.")
    return parse_line(line, endpoint)
