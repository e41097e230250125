"""The part of all batches that this process works on: it looks for work, and holds what it has found by leases.

See router.shared.batches.batch_records.
"""

import asyncio
import contextlib
import logging
import secrets
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import xxhash

from router.core.batches.batch_object import BatchErrors, RequestCounts
from router.core.batches.batch_overview import OpenState
from router.core.batches.line_index import LineEntry
from router.core.cache.cache_control import parse_cache_control
from router.core.endpoints.table import ENDPOINT_BY_PATH
from router.flow.batches.batch_range import BatchRange
from router.flow.batches.line_requests import LineRequests
from router.flow.batches.open_batches import OpenBatches
from router.flow.batches.spare_capacity import SpareCapacity
from router.flow.replicas.background import keep_running
from router.net.redis.pipeline import RedisDownError
from router.net.tasks import cancel_and_wait
from router.shared.batches.batch_folder import (
    RANGE_LINES,
    BatchFolder,
    InvalidInputError,
    JoinedResults,
    PartWriter,
    TakenOver,
)
from router.shared.batches.batch_records import (
    LEASE,
    RENEW_INTERVAL,
    BatchName,
    BatchNotFoundError,
    BatchRecord,
    BatchRecords,
    Claim,
)
from router.shared.batches.file_record import FolderUnusableError, UnknownFileError
from router.shared.batches.files import BatchFiles

log = logging.getLogger("roundhouse.batches")

_T = TypeVar("_T")

_LOOK_INTERVAL: Final = 1.0
_RETRY_DELAY: Final = 1.0
# Of a process at once: while the last lines of a range run, those of the next one begin.
_MAX_RANGES: Final = 2

# Files that a process checks or joins at once. They do not wait for ranges, which may take hours.
_MAX_JOBS: Final = 2

# Ranges that wait for engines do not count, up to so many: other batches may have engines with room.
_MAX_STALLED: Final = 30

_MAX_STALLED_OF_BATCH: Final = 15
"""As long as they have hits, which need no engine."""

_PAUSED: Final = 2
_NO_FOLDER: Final = "A router cannot use its folder for files; its log says why."
_SLOW_FOLDER: Final = "The folder for files does not answer."
_CLOSED: Final = "No lines run now: see batch.hours."
_NO_ROOM: Final = "The engines are busy or down."
_MAX_REFUSED: Final = 600.0
"""Seconds after which a tenant that was refused is tried again. Each time, its refused requests are counted."""


class BatchLimits(NamedTuple):
    """`max_body`: bytes of a request. `max_in_flight`: lines of this process at once."""

    max_lines: int
    max_body: int
    max_in_flight: int


class BatchMetrics(Protocol):
    """Telemetry."""

    def record_batch_lines(self, counts: RequestCounts) -> None:
        """Lines that have got a result since the last call."""

    def set_batch_lines_in_flight(self, lines: int) -> None: ...

    def set_open_batches(self, batches: Mapping[OpenState, int] | None) -> None: ...


class _Held:
    """What this process has claimed. `is_range`: and not the check of a file, or the end of a batch.

    `lines`: None until they run, and for the other parts. `reason`: what the batch says of why these do not.
    `recorded`: the lines with a result that the metrics have, or that another process had.
    """

    def __init__(self, name: BatchName, *, is_range: bool) -> None:
        self.name = name
        self.is_range = is_range
        self.lines: BatchRange | None = None
        self.reason = ""
        self.recorded = RequestCounts()

    def take_new(self) -> RequestCounts:
        """The lines that have got a result since the last call."""
        before, now = self.recorded, self.lines.counts if self.lines is not None else self.recorded
        self.recorded = now
        return RequestCounts(
            completed=now.completed - before.completed, failed=now.failed - before.failed,
            cached=now.cached - before.cached,
        )  # fmt: skip

    @property
    def is_stalled(self) -> bool:
        return self.lines is not None and self.lines.is_stalled

    @property
    def has_hits(self) -> bool:
        return self.lines is not None and self.lines.counts.cached > 0

    def stop(self) -> None:
        if self.lines is not None:
            self.lines.stop()


class BatchRunner:
    """- Each line of a batch has one result, whichever processes, engines and servers of Redis end meanwhile.
    - What this process holds when it ends is free at once; when it dies, once the lease has ended.
    - While the process drains, no line begins, and those in flight end.
    - The check of a file, and the end of a batch, wait for no lines of other batches.
    """

    def __init__(
        self, records: BatchRecords, files: BatchFiles, requests: LineRequests, capacity: SpareCapacity,
        limits: BatchLimits, tenants: Sequence[str], is_draining: Callable[[], bool], metrics: BatchMetrics,
    ) -> None:  # fmt: skip
        """`tenants`: those of the configuration. `is_draining`: it ends soon."""
        self._records = records
        self._files = files
        self._requests = requests
        self._capacity = capacity
        self._limits = limits
        self._tenants = frozenset(tenants)
        self._is_draining = is_draining
        self._metrics = metrics
        self._open_batches = OpenBatches(records, tenants, lambda: capacity.is_open, metrics.set_open_batches)
        self._held: dict[asyncio.Task[None], _Held] = {}
        self._has_ended = asyncio.Event()
        self._not_before: dict[BatchName, float] = {}
        self._looks = 0

    async def run(self) -> None:
        """Until it is cancelled."""
        self._metrics.record_batch_lines(RequestCounts())
        counting = asyncio.get_running_loop().create_task(keep_running(self._open_batches.run))
        try:
            while True:
                self._record()
                with contextlib.suppress(RedisDownError):
                    await self._look_for_work()
                self._has_ended.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_INTERVAL):
                        await self._has_ended.wait()
        finally:
            await cancel_and_wait(counting, *self._held)
            self._metrics.set_batch_lines_in_flight(0)

    def _record(self) -> None:
        # Prometheus looks less often than this is called, so no line has to touch a metric.
        lines = [held.lines.in_flight for held in self._held.values() if held.lines is not None]
        self._metrics.set_batch_lines_in_flight(sum(lines))
        for held in self._held.values():
            self._metrics.record_batch_lines(held.take_new())

    def _may_take_range(self) -> bool:
        ranges = sum(held.is_range for held in self._held.values())
        stalled = sum(held.is_stalled for held in self._held.values())
        return ranges < _MAX_RANGES + min(stalled, _MAX_STALLED)

    def _may_take_job(self) -> bool:
        return sum(not held.is_range for held in self._held.values()) < _MAX_JOBS

    async def _look_for_work(self) -> None:
        if self._is_draining():
            for held in self._held.values():
                held.stop()
            return
        if not self._may_take_job():
            return
        takes_ranges = self._may_take_range()
        names = await self._records.open()
        # Each look begins with another batch, so that none waits for the end of a larger one.
        self._looks += 1
        first = self._looks % len(names) if names else 0
        now = asyncio.get_running_loop().time()
        self._not_before = {name: time for name, time in self._not_before.items() if name in names and time > now}
        stalled = Counter(held.name for held in self._held.values() if held.is_stalled)
        without_hits = {held.name for held in self._held.values() if held.is_stalled and not held.has_hits}
        if not takes_ranges:
            names = await self._records.with_jobs(names)
            first = 0
        for name in sorted(names[first:] + names[:first], key=lambda name: name in stalled):
            if name.tenant not in self._tenants or name in self._not_before:
                continue
            if name in without_hits or stalled[name] >= _MAX_STALLED_OF_BATCH:
                continue
            claim = await self._claim(name, ranges=takes_ranges)
            if claim.what in ("wait", "ended"):
                continue
            held = _Held(name, is_range=claim.what == "range")
            task = asyncio.get_running_loop().create_task(self._work(held, claim))
            self._held[task] = held
            task.add_done_callback(self._on_done)
            if not self._may_take_job() or takes_ranges != self._may_take_range():
                return

    async def _claim(self, name: BatchName, *, ranges: bool) -> Claim:
        why_none = "" if self._capacity.is_open else _CLOSED
        return await self._records.claim(name, secrets.token_hex(8), why_none, ranges=ranges)

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        del self._held[task]
        self._has_ended.set()

    async def _work(self, held: _Held, claim: Claim) -> None:
        name = held.name
        try:
            record = await self._records.find(name)
            folder = BatchFolder(self._files.storage, name.tenant, name.id, record.spec.endpoint, self._limits.max_body)
            if claim.what == "range":
                await self._run_range(held, claim, record, folder)
                if self._is_draining():
                    return
                # After its last range, the batch ends before lines of others get a turn.
                claim = await self._claim(name, ranges=False)
                held.lines, record = None, await self._records.find(name)
            if claim.what == "validate":
                await self._holding_job(name, claim, self._validate(name, claim, record, folder))
            elif claim.what == "finalize":
                await self._holding_job(name, claim, self._finalize(name, claim, record, folder))
        except (BatchNotFoundError, RedisDownError):
            self._put_off(name, _RETRY_DELAY)
        except FolderUnusableError:  # it is logged
            self._put_off(name, LEASE)
            with contextlib.suppress(RedisDownError):
                await self._records.set_waiting(name, _NO_FOLDER)
        except Exception:  # the other batches go on
            log.exception("a part of the batch %s has failed", name.id)
            self._put_off(name, LEASE)

    def _put_off(self, name: BatchName, seconds: float) -> None:
        """Other processes may try it before."""
        self._not_before[name] = asyncio.get_running_loop().time() + seconds

    # -- the beginning and the end ------------------------------------------------------------------------------------

    async def _holding_job(self, name: BatchName, claim: Claim, work: Coroutine[Any, Any, None]) -> None:
        """Ends the work if another process has taken it over."""
        loop = asyncio.get_running_loop()
        working = loop.create_task(work)
        lease = loop.create_task(self._renew(partial(self._renew_job, name, claim, working)))
        try:
            await asyncio.wait((working,))
        finally:
            await cancel_and_wait(working, lease)
        if not working.cancelled():
            working.result()

    async def _renew_job(self, name: BatchName, claim: Claim, working: "asyncio.Task[None]") -> bool:
        if await self._records.renew_job(name, claim.token):
            return True
        working.cancel()
        return False

    async def _renew(self, renew: Callable[[], Awaitable[bool]]) -> None:
        """Until it returns False."""
        while True:
            await asyncio.sleep(RENEW_INTERVAL)
            while True:
                try:
                    if not await renew():
                        return
                    break
                except RedisDownError:
                    await asyncio.sleep(_RETRY_DELAY)

    async def _validate(self, name: BatchName, claim: Claim, record: BatchRecord, folder: BatchFolder) -> None:
        try:
            await self._files.find(name.tenant, record.spec.input_file_id)
            source = self._files.name(name.tenant, record.spec.input_file_id)
            total = await self._until_cancelled(folder.check_input, source, claim.token, self._limits.max_lines)
        except UnknownFileError:
            error = InvalidInputError("file_not_found", "The input file is gone.").error
        except InvalidInputError as invalid:
            error = invalid.error
        else:
            ranges = -(-total // RANGE_LINES)
            await self._until_done(partial(self._records.begin, name, claim.token, total, ranges))
            return
        if await self._until_done(partial(self._records.fail, name, claim.token, BatchErrors((error,)))):
            await self._files.run(folder.remove)  # of a check before, whose process has ended

    async def _finalize(self, name: BatchName, claim: Claim, record: BatchRecord, folder: BatchFolder) -> None:
        joined: JoinedResults = await self._until_cancelled(
            folder.join, claim.token, record.ranges, record.tokens, record.index_token, claim.ends_as == "expired"
        )
        # It may have lost the lease meanwhile, and others have ended the batch.
        if not await self._until_done(partial(self._records.renew_job, name, claim.token)):
            return
        output = await self._adopt(name, record, joined.output, "output")
        errors = await self._adopt(name, record, joined.errors, "errors")
        end = partial(self._records.end, name, claim.token, claim.ends_as, joined.counts, output, errors)
        if await self._until_done(end):
            await self._files.run(folder.remove)

    async def _adopt(self, name: BatchName, batch: BatchRecord, results: str | None, kind: str) -> str:
        """The id of the tenant's new file; empty without results."""
        if results is None:
            return ""
        record = await self._files.adopt(
            name.tenant, results, f"{name.id}_{kind}.jsonl", "batch_output", id_=_file_id(name, kind),
            ttl=batch.spec.output_ttl,
        )  # fmt: skip
        return record.id

    async def _until_cancelled(self, work: Callable[..., _T], *args: Any) -> _T:
        """Runs it in a thread. Its last argument says whether it is to end, since a thread cannot be cancelled."""
        is_cancelled = threading.Event()
        try:
            return await self._files.run_long(work, *args, is_cancelled.is_set)
        finally:
            is_cancelled.set()

    async def _until_done(self, change: Callable[[], Awaitable[bool]]) -> bool:
        while True:
            try:
                return await change()
            except RedisDownError:
                await asyncio.sleep(_RETRY_DELAY)

    # -- a range ------------------------------------------------------------------------------------------------------

    async def _run_range(self, held: _Held, claim: Claim, record: BatchRecord, folder: BatchFolder) -> None:
        is_done = False
        try:
            entries = await self._files.run(folder.entries, record.index_token, claim.range)
            writer, known, so_far = await self._take_over(claim, folder)
            try:
                missing = [entry for entry in entries if entry.number not in known]
                held.recorded = so_far
                held.lines = self._lines(held.name, record, writer, so_far)
                is_done = await self._run_lines(held, claim, folder.input(record.index_token), missing)
            finally:
                await asyncio.shield(self._files.run(writer.close, writer.take()))
        finally:
            self._metrics.record_batch_lines(held.take_new())
            counts = held.lines.counts if held.lines is not None else None
            finish = partial(self._records.finish_range, held.name, claim, counts, done=is_done)
            if is_done:
                await self._until_done(finish)
            else:
                with contextlib.suppress(RedisDownError):
                    await finish()
        if (refused := held.lines.refused) is not None:
            self._put_off(held.name, min(_MAX_REFUSED, refused.retry_after))
            await self._records.set_waiting(held.name, refused.message, is_limited=True)

    async def _take_over(self, claim: Claim, folder: BatchFolder) -> TakenOver:
        taking = asyncio.ensure_future(
            self._files.run(folder.take_over, claim.range, claim.token, claim.given_back)
        )  # fmt: skip
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(_close)  # the thread goes on
            raise

    def _lines(self, name: BatchName, record: BatchRecord, writer: PartWriter, known: RequestCounts) -> BatchRange:
        control = parse_cache_control(record.spec.cache_control.encode("latin-1", "replace"), None)
        endpoint = ENDPOINT_BY_PATH[record.spec.endpoint]
        return BatchRange(
            self._files, self._requests, self._capacity, endpoint, name.tenant, name.id, control, writer, known,
            self._limits.max_in_flight,
        )  # fmt: skip

    async def _run_lines(
        self, held: _Held, claim: Claim, source: str, missing: Sequence[LineEntry]
    ) -> bool:  # fmt: skip
        """Whether all have a result."""
        assert held.lines is not None, "they are about to run"
        loop = asyncio.get_running_loop()
        running = loop.create_task(held.lines.run(source, missing))
        lease = loop.create_task(self._renew(partial(self._renew_range, held, held.lines, claim, running)))
        try:
            await asyncio.wait((running,))
        finally:
            await cancel_and_wait(running, lease)
        return not running.cancelled() and running.result()

    async def _renew_range(self, held: _Held, lines: BatchRange, claim: Claim, running: "asyncio.Task[bool]") -> bool:
        state = await self._records.renew_range(held.name, claim, lines.counts)
        if state == _PAUSED:
            lines.stop()
        if not state:
            running.cancel()
        elif (reason := self._reason(lines)) != held.reason:
            held.reason = reason
            await self._records.set_waiting(held.name, reason)
        return bool(state)

    def _reason(self, lines: BatchRange) -> str:
        """Why no line runs; empty if one does."""
        if not lines.is_stalled:
            return ""
        if self._files.is_stuck:
            return _SLOW_FOLDER
        return _NO_ROOM if self._capacity.is_open else _CLOSED


def _close(taking: "asyncio.Future[TakenOver]") -> None:
    if taking.exception() is None:
        taking.result().writer.close()


def _file_id(name: BatchName, kind: str) -> str:
    # The same for each process that ends the batch, if one dies while it does.
    return f"file-{xxhash.xxh3_128_hexdigest(f'{name.id}:{kind}'.encode())}"
