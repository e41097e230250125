"""Batches run by processes that come and go, at engines that fail: each line has one result."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from router.core.batches.batch_object import BatchObject, RequestCounts
from router.core.cache.cache_control import CacheControl
from router.core.endpoints.embeddings import EMBEDDINGS
from router.errors import ApiError
from router.flow.batches.batch_runner import BatchLimits, BatchRunner
from router.flow.batches.line_requests import LineRequests
from router.flow.body_budget import BodyAllocation, BodyBudget
from router.flow.caller import Caller
from router.flow.exchange import Exchange
from router.flow.lookup import FullResponse
from router.net.tasks import cancel_and_wait
from router.shared.batches.batch_records import BatchName, BatchRecords, BatchSpec
from router.shared.batches.files import BatchFiles
from router.shared.connection.redis import open_backend, open_pipeline
from router.shared.quota.rate_limits import TenantLimits
from tests.support.redis_process import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

NAME = BatchName("acme", "batch_0123456789abcdef01234567")
LIMITS = BatchLimits(max_lines=1000, max_body=10_000, max_in_flight=8)


class Handler:
    """In place of the gateway. `answers`: what the next requests with a text get; then they are echoed."""

    def __init__(self) -> None:
        self.answers: dict[str, list[ApiError]] = {}
        self.seen: Counter[str] = Counter()
        self.gate = asyncio.Event()
        self.gate.set()
        self.controls: set[CacheControl] = set()
        self.priorities: set[int | None] = set()
        self.now = self.most = 0

    async def handle(self, exchange: Exchange, control: CacheControl, body: bytes, caller: Caller) -> FullResponse:
        text = json.loads(body)["input"]
        self.seen[text] += 1
        self.controls.add(control)
        self.priorities.add(caller.priority)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.gate.wait()
            await asyncio.sleep(0)
        finally:
            self.now -= 1
        if self.answers.get(text):
            raise self.answers[text].pop(0)
        return FullResponse(b'{"echo": %b}' % json.dumps(text).encode(), stream=False)


class Capacity:
    """Every engine has room."""

    is_open = True

    @asynccontextmanager
    async def one_more(self, _: str) -> AsyncIterator[None]:
        yield


class World:
    """One Redis, one folder, one handler; runners as processes."""

    def __init__(self, url: str, folder: Path, stack: AsyncExitStack) -> None:
        self.folder = folder
        self.handler = Handler()
        self._url = url
        self._stack = stack
        self.now = 1000.0
        self.capacity = Capacity()
        self.files = BatchFiles(folder, max_files=100, ttl=0, clock=lambda: self.now)

    async def start(self) -> None:
        self.records = await self._open_records()

    async def _open_records(self) -> BatchRecords:
        pipeline = open_pipeline(open_backend(self._url, timeout=2), timeout=2, retry=0.05)
        await pipeline.start()
        self._stack.push_async_callback(pipeline.aclose)
        return BatchRecords(pipeline, clock=lambda: self.now)

    async def batch(self, lines: Iterable[Any], **changed: Any) -> None:
        content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)

        async def chunks() -> AsyncIterator[bytes]:
            yield content

        record = await self.files.create("acme", "in.jsonl", "batch", chunks())
        fields: dict[str, Any] = {"cache_control": "", "expires_at": 90_000} | changed
        spec = BatchSpec(
            endpoint=EMBEDDINGS.path, input_file_id=record.id, completion_window="24h", created_at=1000, **fields
        )
        await self.records.create(NAME, spec)

    async def runner(self) -> "asyncio.Task[None]":
        runner = BatchRunner(
            await self._open_records(),
            self.files,
            self.folder,
            LineRequests(
                {EMBEDDINGS.path: self.handler}, TenantLimits(), partial(BodyAllocation, BodyBudget(), 10**9), _ignore
            ),
            self.capacity,  # type: ignore[arg-type]
            LIMITS,
            ["acme"],
        )
        task = asyncio.create_task(runner.run())
        self._stack.push_async_callback(cancel_and_wait, task)
        return task

    async def shown(self) -> BatchObject:
        return (await self.records.find(NAME)).shown

    async def until(self, status: str) -> BatchObject:
        async def has_status() -> bool:
            return (await self.shown()).status == status

        await eventually(has_status)
        return await self.shown()

    def results(self, id_: str | None) -> dict[str | None, Any]:
        """By custom_id; each once."""
        if id_ is None:
            return {}
        lines = [json.loads(line) for line in self.files.path("acme", id_).read_bytes().splitlines()]
        found = {line["custom_id"]: line for line in lines}
        assert len(found) == len(lines)
        return found


def _ignore(*_: object) -> None:
    pass


@pytest_asyncio.fixture(loop_scope="session")
async def world(redis_server: RedisServer, redis: Any, tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        world = World(redis_server.url, tmp_path, stack)
        await world.start()
        yield world


def line(number: int, text: str | None = None) -> Any:
    body = {"model": "m", "input": text if text is not None else f"text {number}"}
    return {"custom_id": f"n{number}", "method": "POST", "url": EMBEDDINGS.path, "body": body}


def check_outputs(world: World, shown: BatchObject, count: int) -> None:
    results = world.results(shown.output_file_id)
    assert set(results) == {f"n{number}" for number in range(count)}
    for custom_id, result in results.items():
        assert result["response"]["body"] == {"echo": f"text {str(custom_id)[1:]}"}
        assert (result["response"]["status_code"], result["error"]) == (200, None)


async def test_each_line_is_answered_with_the_lowest_priority_and_the_batch_s_cache_control(world: World) -> None:
    await world.batch([line(number) for number in range(250)], cache_control="no-cache")
    await world.runner()
    shown = await world.until("completed")
    assert shown.request_counts == RequestCounts(250, 250, 0)
    check_outputs(world, shown, 250)
    assert shown.error_file_id is None
    assert set(world.handler.seen.values()) == {1}
    assert [control.no_cache for control in world.handler.controls] == [True]
    assert world.handler.priorities == {2**31 - 1}
    assert world.handler.most <= 2 * LIMITS.max_in_flight
    assert not (world.folder / "acme" / NAME.id).exists()


async def test_a_bad_line_is_an_entry_of_the_error_file(world: World) -> None:
    bad = {"custom_id": "bad", "method": "POST", "url": "/v1/other", "body": {}}
    await world.batch([line(0), {}, bad, line(0), line(1)])
    world.handler.answers["text 1"] = [ApiError(400, "No.", code="no")]
    await world.runner()
    shown = await world.until("completed")
    assert shown.request_counts == RequestCounts(5, 1, 4)
    check_outputs(world, shown, 1)
    errors = world.results(shown.error_file_id)
    codes = {custom_id: (each["error"] or {}).get("code") for custom_id, each in errors.items()}
    assert codes == {None: "missing_custom_id", "bad": "invalid_url", "n0": "duplicate_custom_id", "n1": None}
    assert errors[None]["error"]["line"] == 2
    assert errors["n1"]["response"]["status_code"] == 400
    assert errors["n1"]["response"]["body"]["error"]["code"] == "no"


@pytest.mark.parametrize(
    ("content", "code", "at"),
    [
        (b'{"custom_id": "a"}\nnonsense\n', "invalid_json_line", 2),
        (b"[]\n", "invalid_json_line", 1),
        (b'{"a": 1}\n\n{"a": 1}\n', "invalid_json_line", 3),
        (b"{}\n" * 1001, "too_many_lines", None),
        (b'{"a": "' + b"x" * 200_000 + b'"}', "line_too_long", 1),
        (b"\n\n", "empty_file", None),
    ],
)
async def test_a_file_that_is_no_batch_fails_with_the_line(
    world: World, content: bytes, code: str, at: int | None
) -> None:
    await world.batch([line(0)])
    file_id = (await world.shown()).input_file_id
    world.files.path("acme", file_id).write_bytes(content)
    await world.runner()
    shown = await world.until("failed")
    assert shown.errors is not None
    (error,) = shown.errors.data
    assert (error.code, error.line) == (code, at)
    assert not world.handler.seen


async def test_a_file_that_is_gone_fails_the_batch(world: World) -> None:
    await world.batch([line(0)])
    await world.files.delete("acme", (await world.shown()).input_file_id)
    await world.runner()
    shown = await world.until("failed")
    assert shown.errors is not None
    assert shown.errors.data[0].code == "file_not_found"


async def test_a_line_is_sent_again_while_engines_are_busy_or_have_failed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.flow.batches.batch_range._FIRST_DELAY", 0.001)
    world.handler.answers = {
        "text 0": [ApiError(503, "", code="queue_full"), ApiError(429, "")] * 3,
        "text 1": [ApiError(502, ""), ApiError(504, "")],
        "text 2": [ApiError(502, "")] * 3,
        "text 3": [ApiError(503, "", code="engine_lost")],
        "text 4": [ApiError(504, "", code="not_cached")],
    }
    await world.batch([line(number) for number in range(5)])
    await world.runner()
    shown = await world.until("completed")
    assert {text: count for text, count in world.handler.seen.items() if count > 1} == {
        "text 0": 7, "text 1": 3, "text 2": 3,
    }  # fmt: skip
    check_outputs(world, shown, 2)
    assert set(world.results(shown.error_file_id)) == {"n2", "n3", "n4"}


async def test_several_processes_share_the_ranges(world: World) -> None:
    await world.batch([line(number) for number in range(900)])
    world.handler.gate.clear()
    for _ in range(3):
        await world.runner()
    await eventually(lambda: world.handler.now == 3 * 2 * LIMITS.max_in_flight)
    world.handler.gate.set()
    shown = await world.until("completed")
    check_outputs(world, shown, 900)
    assert set(world.handler.seen.values()) == {1}


async def test_what_a_process_that_ends_held_is_free_at_once(world: World) -> None:
    await world.batch([line(number) for number in range(120)])
    first = await world.runner()
    await eventually(lambda: sum(world.handler.seen.values()) > 50)
    await cancel_and_wait(first)
    answered = sum(world.handler.seen.values())
    assert answered < 120
    await world.runner()
    shown = await world.until("completed")
    check_outputs(world, shown, 120)
    assert sum(world.handler.seen.values()) <= 120 + 2 * LIMITS.max_in_flight


async def test_what_a_dead_process_held_is_taken_over_with_its_results(world: World) -> None:
    await world.batch([line(number) for number in range(100)])
    dead = await world.runner()
    await eventually(lambda: sum(world.handler.seen.values()) > 50)
    world.handler.gate.clear()
    await eventually(lambda: world.handler.now == LIMITS.max_in_flight)
    stuck = sum(world.handler.seen.values())
    world.now += 100  # its lease is over, though it lives: as if it had been paused
    await world.runner()
    await eventually(lambda: world.handler.now == 2 * LIMITS.max_in_flight)
    world.handler.gate.set()
    shown = await world.until("completed")
    check_outputs(world, shown, 100)
    assert shown.request_counts == RequestCounts(100, 100, 0)
    assert stuck + 8 <= sum(world.handler.seen.values()) <= 150
    assert not dead.done()


async def test_a_cancelled_batch_keeps_the_results_that_it_has(world: World) -> None:
    await world.batch([line(number) for number in range(300)])
    task = await world.runner()
    await eventually(lambda: sum(world.handler.seen.values()) > 120)
    await cancel_and_wait(task)
    await world.records.cancel(NAME)
    await world.runner()
    shown = await world.until("cancelled")
    assert 0 < shown.request_counts.completed < 300
    assert len(world.results(shown.output_file_id)) == shown.request_counts.completed
    assert shown.error_file_id is None


async def test_lines_without_a_result_at_the_end_of_the_window_are_errors(world: World) -> None:
    await world.batch([line(number) for number in range(150)], expires_at=2000)
    task = await world.runner()
    await eventually(lambda: sum(world.handler.seen.values()) > 60)
    await cancel_and_wait(task)
    world.now = 2000.0
    await world.runner()
    shown = await world.until("expired")
    outputs, errors = world.results(shown.output_file_id), world.results(shown.error_file_id)
    assert {*outputs, *errors} == {f"n{number}" for number in range(150)}
    assert {each["error"]["code"] for each in errors.values()} == {"batch_expired"}
    assert shown.request_counts == RequestCounts(150, len(outputs), len(errors))


async def test_a_tenant_over_its_budget_holds_up_no_other_batch(world: World) -> None:
    world.handler.answers["text 0"] = [ApiError(429, "Over.", code="budget", retry_after=3600)] * 9
    await world.batch([line(number) for number in range(3)])
    await world.runner()
    await eventually(lambda: world.handler.seen["text 0"] == 1)

    async def says_why() -> bool:
        return (await world.shown()).waiting_for == "Over."

    await eventually(says_why)
    assert (await world.records.claim(NAME, "other")).what == "range"
    assert (await world.shown()).waiting_for is None
    assert world.handler.seen["text 0"] == 1


async def test_outside_of_the_hours_of_batches_nothing_begins(world: World) -> None:
    world.capacity.is_open = False
    await world.batch([line(0)])
    await world.records.claim(NAME, "check")
    await world.records.begin(NAME, "check", 0, 0)
    await world.runner()

    async def says_why() -> bool:
        return (await world.shown()).waiting_for == "No lines run now: see batch.hours."

    await eventually(says_why)
    world.capacity.is_open = True
    await world.until("completed")
