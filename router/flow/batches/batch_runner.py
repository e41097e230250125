"""The part of all batches that this process works on: it looks for work, and holds what it has found by leases.

See router.shared.batches.batch_records.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import xxhash

from router.core.batches.batch_object import BatchErrors
from router.core.cache.cache_control import parse_cache_control
from router.core.endpoints.table import ENDPOINT_BY_PATH
from router.flow.batches.batch_range import BatchRange, TenantRefusedError
from router.flow.batches.line_requests import LineRequests
from router.flow.batches.spare_capacity import SpareCapacity
from router.net.redis.pipeline import RedisDownError
from router.net.tasks import cancel_and_wait
from router.shared.batches.batch_folder import RANGE_LINES, BatchFolder, InvalidInputError, JoinedResults
from router.shared.batches.batch_records import (
    LEASE,
    RENEW_INTERVAL,
    BatchName,
    BatchNotFoundError,
    BatchRecord,
    BatchRecords,
    Claim,
)
from router.shared.batches.file_record import UnknownFileError
from router.shared.batches.files import BatchFiles

log = logging.getLogger("roundhouse.batches")

_LOOK_INTERVAL: Final = 1.0
_RETRY_DELAY: Final = 1.0
_MAX_CLAIMS: Final = 2
"""Of a process at once: while the last lines of a range run, those of the next one begin."""

_MAX_REFUSED: Final = 60.0  # seconds after which a tenant that was refused is tried again
_STOPPED: Final = "stopped"


class BatchLimits(NamedTuple):
    """`max_body`: bytes of a request. `max_in_flight`: lines of this process at once. `file_ttl` in seconds."""

    max_lines: int
    max_body: int
    max_in_flight: int


class BatchRunner:
    """- Each line of a batch has one result, whichever processes, engines and servers of Redis end meanwhile.
    - What this process holds when it ends is free at once; when it dies, once the lease has ended.
    """

    def __init__(
        self, records: BatchRecords, files: BatchFiles, folder: Path, requests: LineRequests,
        capacity: SpareCapacity, limits: BatchLimits, tenants: Sequence[str],
    ) -> None:  # fmt: skip
        """`folder`: see BatchFolder. `tenants`: those of the configuration."""
        self._records = records
        self._files = files
        self._folder = folder
        self._requests = requests
        self._capacity = capacity
        self._limits = limits
        self._tenants = frozenset(tenants)
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_ended = asyncio.Event()
        self._not_before: dict[BatchName, float] = {}
        self._looks = 0
        self._is_stopped = False
        self._has_said_closed = False

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                with contextlib.suppress(RedisDownError):
                    await self._look_for_work()
                self._has_ended.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_INTERVAL):
                        await self._has_ended.wait()
        finally:
            self._is_stopped = True
            await cancel_and_wait(*self._tasks)

    async def _look_for_work(self) -> None:
        if len(self._tasks) >= _MAX_CLAIMS:
            return
        if not self._capacity.is_open:
            await self._say_closed()
            return
        self._has_said_closed = False
        names = await self._records.open()
        # Each look begins with another batch, so that none waits for the end of a larger one.
        self._looks += 1
        first = self._looks % len(names) if names else 0
        now = asyncio.get_running_loop().time()
        for name in names[first:] + names[:first]:
            if name.tenant not in self._tenants or self._not_before.get(name, 0.0) > now:
                continue
            claim = await self._records.claim(name, secrets.token_hex(8))
            if claim.what in ("wait", "ended"):
                self._not_before.pop(name, None)
                continue
            task = asyncio.get_running_loop().create_task(self._work(name, claim))
            self._tasks.add(task)
            task.add_done_callback(self._on_done)
            if len(self._tasks) >= _MAX_CLAIMS:
                return

    async def _say_closed(self) -> None:
        if not self._has_said_closed:
            for name in await self._records.open():
                await self._records.set_waiting(name, "No lines run now: see batch.hours.")
            self._has_said_closed = True

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._has_ended.set()

    async def _work(self, name: BatchName, claim: Claim) -> None:
        try:
            record = await self._records.find(name)
            folder = BatchFolder(
                self._folder / name.tenant / name.id, name.id, record.spec.endpoint, self._limits.max_body
            )
            if claim.what == "range":
                await self._run_range(name, claim, record, folder)
            elif claim.what == "validate":
                await self._holding_job(name, claim, self._validate(name, claim, record, folder))
            else:
                await self._holding_job(name, claim, self._finalize(name, claim, record, folder))
        except (BatchNotFoundError, RedisDownError):
            await asyncio.sleep(_RETRY_DELAY)
        except Exception:
            # The lease ends, and the next process tries it; this one does not at once.
            log.exception("a part of the batch %s has failed", name.id)
            await asyncio.sleep(LEASE)

    # -- the beginning and the end ------------------------------------------------------------------------------------

    async def _holding_job(self, name: BatchName, claim: Claim, work: "Any") -> None:
        """Ends the work if another process has taken it over."""
        async with asyncio.TaskGroup() as group:
            working = group.create_task(work)
            lease = group.create_task(self._renew(partial(self._renew_job, name, claim, working)))
            working.add_done_callback(lambda _: lease.cancel())

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
            source = self._files.path(name.tenant, record.spec.input_file_id)
            total = await self._files.run(
                folder.check_input, source, claim.token, self._limits.max_lines, lambda: self._is_stopped
            )
        except UnknownFileError:
            error = InvalidInputError("file_not_found", "The input file is gone.").error
        except InvalidInputError as invalid:
            error = invalid.error
            if error.code == _STOPPED:  # the lease ends, and another process begins anew
                return
        else:
            ranges = -(-total // RANGE_LINES)
            await self._until_done(partial(self._records.begin, name, claim.token, total, ranges))
            return
        await self._until_done(partial(self._records.fail, name, claim.token, BatchErrors((error,))))

    async def _finalize(self, name: BatchName, claim: Claim, record: BatchRecord, folder: BatchFolder) -> None:
        expired = claim.ends_as == "expired"
        source = self._files.path(name.tenant, record.spec.input_file_id) if expired else None
        joined: JoinedResults = await self._files.run(
            folder.join, claim.token, record.ranges, record.tokens, source, record.index_token
        )
        output = await self._adopt(name, joined.output, "output")
        errors = await self._adopt(name, joined.errors, "errors")
        end = partial(self._records.end, name, claim.token, claim.ends_as, joined.counts, output, errors)
        if await self._until_done(end):
            await self._files.run(folder.remove)

    async def _adopt(self, name: BatchName, path: Path | None, kind: str) -> str:
        """The id of the tenant's new file; empty without a path."""
        if path is None:
            return ""
        record = await self._files.adopt(
            name.tenant, path, f"{name.id}_{kind}.jsonl", "batch_output", id_=_file_id(name, kind)
        )
        return record.id

    async def _until_done(self, change: Callable[[], Awaitable[bool]]) -> bool:
        while True:
            try:
                return await change()
            except RedisDownError:
                await asyncio.sleep(_RETRY_DELAY)

    # -- a range ------------------------------------------------------------------------------------------------------

    async def _run_range(self, name: BatchName, claim: Claim, record: BatchRecord, folder: BatchFolder) -> None:
        source = self._files.path(name.tenant, record.spec.input_file_id)
        entries = await self._files.run(folder.entries, record.index_token, claim.range)
        writer, known, counts = await self._files.run(folder.take_over, claim.range, claim.token)
        control = parse_cache_control(record.spec.cache_control.encode("latin-1", "replace"), None)
        endpoint = ENDPOINT_BY_PATH[record.spec.endpoint]
        lines = BatchRange(
            self._files, self._requests, self._capacity, endpoint, name.tenant, name.id, control, writer, counts
        )
        missing = [entry for entry in entries if entry.number not in known]
        loop = asyncio.get_running_loop()
        running = loop.create_task(lines.run(source, missing, self._limits.max_in_flight))
        lease = loop.create_task(self._renew(partial(self._renew_range, name, claim, lines, running)))
        is_done = False
        try:
            await asyncio.wait((running,))
            is_done = not running.cancelled() and running.exception() is None  # else some lines have no result
        finally:
            await cancel_and_wait(running, lease)
            writer.close()
            finish = partial(self._records.finish_range, name, claim, lines.counts, done=is_done)
            if is_done:
                await self._until_done(finish)
            else:
                with contextlib.suppress(RedisDownError):
                    await finish()
        failure = None if running.cancelled() else running.exception()
        if isinstance(failure, TenantRefusedError):
            self._not_before[name] = loop.time() + min(_MAX_REFUSED, failure.retry_after)
            await self._records.set_waiting(name, failure.message)
        elif failure is not None:
            raise failure

    async def _renew_range(
        self, name: BatchName, claim: Claim, lines: BatchRange, running: "asyncio.Task[None]"
    ) -> bool:
        state = await self._records.renew_range(name, claim, lines.counts)
        lines.set_paused(state == 2)
        if not state:
            running.cancel()
        return bool(state)


def _file_id(name: BatchName, kind: str) -> str:
    # The same for each process that ends the batch, if one dies while it does.
    return f"file-{xxhash.xxh3_128_hexdigest(f'{name.id}:{kind}'.encode())}"
