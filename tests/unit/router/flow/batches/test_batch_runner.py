"""Batches run by processes that come and go, at engines that fail: each line has one result."""

import asyncio
import errno
import gc
import json
import os
import shutil
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from router.core.batches.batch_object import BatchObject, RequestCounts
from router.core.cache.cache_control import CacheControl
from router.core.endpoints.embeddings import EMBEDDINGS
from router.core.types import CacheStatus
from router.errors import ApiError, not_cached
from router.flow.batches.batch_runner import BatchLimits, BatchRunner
from router.flow.batches.begun_lines import BegunLine
from router.flow.batches.leftover_folders import remove_leftover_folders
from router.flow.batches.line_requests import LineRequests
from router.flow.body_budget import BodyAllocation, BodyBudget
from router.flow.caller import Caller
from router.flow.exchange import Exchange
from router.flow.lookup import FullResponse
from router.net.tasks import cancel_and_wait
from router.shared.batches.batch_folder import BatchFolder, JoinedResults
from router.shared.batches.batch_records import BatchName, BatchRecords, BatchSpec
from router.shared.batches.file_folder import LEFTOVER_AGE
from router.shared.batches.files import BatchFiles
from router.shared.batches.local_storage import LocalStorage
from router.shared.connection.redis import open_backend, open_pipeline
from router.shared.quota.rate_limits import TenantLimits
from router.telemetry.telemetry import Telemetry
from tests.support.redis_process import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

NAME = BatchName("acme", "batch_0123456789abcdef01234567")
OTHER = BatchName("acme", "batch_ffffffffffffffffffffffff")
RUNNING = BatchName("other", "batch_222222222222222222222222")
LIMITS = BatchLimits(max_lines=1000, max_body=10_000, max_in_flight=8)


class Handler:
    """In place of the gateway. `answers`: what the next requests with a text get; then they are echoed.

    `cached`: texts of hits. `looked_up`: those that were no hits. `hold_after`: so many requests, the next ones wait
    for `gate`.
    """

    def __init__(self) -> None:
        self.answers: dict[str, list[ApiError]] = {}
        self.seen: Counter[str] = Counter()
        self.cached: set[str] = set()
        self.looked_up: Counter[str] = Counter()
        self.gate = asyncio.Event()
        self.gate.set()
        self.hold_after: int | None = None
        self.gates: dict[str, asyncio.Event] = {}  # of texts with their own
        self.controls: set[CacheControl] = set()
        self.priorities: set[int | None] = set()
        self.max_ttfts: set[float | None] = set()
        self.now = self.most = 0

    @property
    def is_holding(self) -> bool:
        return not self.gate.is_set()

    def release(self) -> None:
        self.hold_after = None
        self.gate.set()

    async def handle(self, exchange: Exchange, control: CacheControl, body: bytes, caller: Caller) -> FullResponse:
        text = json.loads(body)["input"]
        if text in self.cached and not control.no_cache:
            exchange.cache_status = CacheStatus.HIT
            return FullResponse(b'{"echo": %b}' % json.dumps(text).encode(), stream=False)
        if control.only_if_cached:
            self.looked_up[text] += 1
            raise not_cached()
        self.seen[text] += 1
        if self.hold_after is not None and self.seen.total() > self.hold_after:
            self.gate.clear()
        self.controls.add(control)
        self.priorities.add(caller.priority)
        self.max_ttfts.add(caller.max_ttft)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.gates.get(text, self.gate).wait()
            await asyncio.sleep(0)
        finally:
            self.now -= 1
        if self.answers.get(text):
            raise self.answers[text].pop(0)
        return FullResponse(b'{"echo": %b}' % json.dumps(text).encode(), stream=False)


class Capacity:
    """Every engine has room; those of the model `full` once `has_room` is set. `waiting`: lines that wait for them."""

    def __init__(self) -> None:
        self.has_room = asyncio.Event()
        self.waiting = 0

    is_open = True

    async def wait_until_open(self) -> None:
        pass

    def must_wait(self, model: str) -> bool:
        return model == "full" and not self.has_room.is_set()

    @asynccontextmanager
    async def one_lookup(self) -> AsyncIterator[None]:
        yield

    @asynccontextmanager
    async def one_more(self, model: str) -> AsyncIterator[BegunLine]:
        if model == "full":
            self.waiting += 1
            try:
                await self.has_room.wait()
            finally:
                self.waiting -= 1
        yield BegunLine()


class World:
    """One Redis, one folder, one handler; runners as processes."""

    def __init__(self, url: str, folder: Path, stack: AsyncExitStack) -> None:
        self.folder = folder
        self.handler = Handler()
        self.capacity = Capacity()
        self._url = url
        self._stack = stack
        self.now = 1000.0
        self.capacity = Capacity()
        self.draining = False
        self.telemetry = Telemetry(log_format="text")
        self.asked_while_draining = 0
        self.files = BatchFiles(LocalStorage(folder), max_files=100, ttl=0, clock=lambda: self.now)

    async def start(self) -> None:
        self.records = await self._open_records()

    async def _open_records(self) -> BatchRecords:
        pipeline = open_pipeline(open_backend(self._url, timeout=2), timeout=2, retry=0.05)
        await pipeline.start()
        self._stack.push_async_callback(pipeline.aclose)
        return BatchRecords(pipeline, clock=lambda: self.now)

    async def batch(self, lines: Iterable[Any], name: BatchName = NAME, **changed: Any) -> None:
        content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)

        async def chunks() -> AsyncIterator[bytes]:
            yield content

        record = await self.files.create("acme", "in.jsonl", "batch", chunks())
        fields: dict[str, Any] = {"cache_control": "", "expires_at": 90_000} | changed
        spec = BatchSpec(
            endpoint=EMBEDDINGS.path, input_file_id=record.id, completion_window="24h", created_at=1000, **fields
        )
        await self.records.create(name, spec, max_open=20)

    async def runner(self) -> "asyncio.Task[None]":
        runner = BatchRunner(
            await self._open_records(),
            self.files,
            LineRequests(
                {EMBEDDINGS.path: self.handler},
                TenantLimits(),
                partial(BodyAllocation, BodyBudget(), 10**9),
                _ignore,
                lambda _: True,
            ),
            self.capacity,  # type: ignore[arg-type]
            LIMITS,
            ["acme"],
            self.is_draining,
            self.telemetry,
        )
        task = asyncio.create_task(runner.run())
        self._stack.push_async_callback(cancel_and_wait, task)
        return task

    def is_draining(self) -> bool:
        self.asked_while_draining += self.draining
        return self.draining

    def line_metrics(self) -> list[float | None]:
        """Those generated, cached, failed and in flight, of all processes."""
        name, value = "roundhouse_batch_lines", self.telemetry.registry.get_sample_value
        results = ("generated", "cached", "failed")
        counted = [value(f"{name}_total", {"result": result}) for result in results]
        return [*counted, value(f"{name}_in_flight")]

    async def shown(self, name: BatchName = NAME) -> BatchObject:
        return (await self.records.find(name)).shown

    async def until(self, status: str, name: BatchName = NAME) -> BatchObject:
        async def has_status() -> bool:
            return (await self.shown(name)).status == status

        await eventually(has_status)
        return await self.shown(name)

    def parts(self) -> list[Path]:
        return sorted((self.folder / "acme" / NAME.id).glob("*-*.*"))

    def path(self, id_: str) -> Path:
        return self.folder / self.files.name("acme", id_)

    def results(self, id_: str | None) -> dict[str | None, Any]:
        """By custom_id; each once."""
        if id_ is None:
            return {}
        lines = [json.loads(line) for line in self.path(id_).read_bytes().splitlines()]
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


def line(number: int, text: str | None = None, model: str = "m") -> Any:
    body = {"model": model, "input": text if text is not None else f"text {number}"}
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
    assert world.handler.max_ttfts == {inf}, "the one of a tenant is for people"
    assert world.handler.most <= 2 * LIMITS.max_in_flight
    await eventually(lambda: not (world.folder / "acme" / NAME.id).exists())


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
    world.path(file_id).write_bytes(content)
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


@pytest.mark.parametrize("has_links", [True, False])
async def test_a_batch_goes_on_when_its_input_is_deleted(
    world: World, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    if not has_links:
        monkeypatch.setattr(Path, "hardlink_to", _refuse_link)
    world.handler.gate.clear()
    await world.batch([line(number) for number in range(250)])
    await world.runner()
    await eventually(lambda: world.handler.now)
    await world.files.delete("acme", (await world.shown()).input_file_id)
    world.handler.gate.set()
    shown = await world.until("completed")
    check_outputs(world, shown, 250)


def _refuse_link(*_: object) -> None:
    raise PermissionError


async def test_a_batch_whose_input_is_deleted_ends_with_its_window(world: World) -> None:
    world.handler.gate.clear()
    await world.batch([line(number) for number in range(150)], expires_at=2000)
    task = await world.runner()
    await eventually(lambda: world.handler.now)
    await cancel_and_wait(task)
    await world.files.delete("acme", (await world.shown()).input_file_id)
    world.now = 2000.0
    await world.runner()
    shown = await world.until("expired")
    assert set(world.results(shown.error_file_id)) == {f"n{number}" for number in range(150)}


async def test_a_batch_whose_folder_is_lost_holds_up_no_other_and_ends(world: World) -> None:
    world.handler.gate.clear()
    lost = BatchName("acme", f"batch_{0:024x}")
    await world.batch([line(number) for number in range(250)], name=lost, expires_at=2000)
    task = await world.runner()
    await eventually(lambda: world.handler.now)
    await cancel_and_wait(task)
    shutil.rmtree(world.folder / "acme" / lost.id)
    world.handler.gate.set()
    await world.runner()
    await world.batch([line(number) for number in range(10)])
    check_outputs(world, await world.until("completed"), 10)
    assert (await world.records.find(lost)).shown.status == "in_progress"
    world.now = 2000.0
    await world.runner()

    async def has_ended() -> bool:
        return (await world.records.find(lost)).shown.status == "expired"

    await eventually(has_ended)


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


async def test_each_line_counts_once_in_the_metrics_whoever_takes_over(world: World) -> None:
    await world.batch([line(number) for number in range(200)])
    world.handler.answers["text 7"] = [ApiError(400, "bad", kind="invalid_request_error")]
    world.handler.hold_after = 150
    first = await world.runner()
    await eventually(lambda: world.line_metrics() == [149, 0, 1, world.handler.now] and world.handler.now > 0)
    await cancel_and_wait(first)
    assert world.line_metrics() == [149, 0, 1, 0]
    world.handler.release()
    await world.runner()
    await world.until("completed")
    assert world.line_metrics() == [199, 0, 1, 0]


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
    world.handler.hold_after = 50
    first = await world.runner()
    await eventually(lambda: world.handler.is_holding)
    await cancel_and_wait(first)
    world.handler.release()
    await world.runner()
    shown = await world.until("completed")
    check_outputs(world, shown, 120)
    assert sum(world.handler.seen.values()) <= 120 + 2 * LIMITS.max_in_flight


async def test_what_a_dead_process_held_is_taken_over_with_its_results(world: World) -> None:
    await world.batch([line(number) for number in range(100)])
    world.handler.hold_after = 50
    dead = await world.runner()
    await eventually(lambda: world.handler.now == LIMITS.max_in_flight and world.handler.is_holding)
    stuck = sum(world.handler.seen.values())
    world.now += 100  # its lease is over, though it lives: as if it had been paused
    await world.runner()
    await eventually(lambda: world.handler.now == 2 * LIMITS.max_in_flight)
    world.handler.release()
    shown = await world.until("completed")
    check_outputs(world, shown, 100)
    assert shown.request_counts == RequestCounts(100, 100, 0)
    assert stuck + 8 <= sum(world.handler.seen.values()) <= 150
    assert not dead.done()


async def test_a_cancelled_batch_keeps_the_results_that_it_has(world: World) -> None:
    await world.batch([line(number) for number in range(300)])
    world.handler.hold_after = 120
    task = await world.runner()
    await eventually(lambda: world.handler.is_holding)
    await cancel_and_wait(task)
    await world.records.cancel(NAME)
    await world.runner()
    shown = await world.until("cancelled")
    assert 0 < shown.request_counts.completed < 300
    assert len(world.results(shown.output_file_id)) == shown.request_counts.completed
    assert shown.error_file_id is None


async def test_lines_without_a_result_at_the_end_of_the_window_are_errors(world: World) -> None:
    await world.batch([line(number) for number in range(150)], expires_at=2000)
    world.handler.hold_after = 60
    task = await world.runner()
    await eventually(lambda: world.handler.is_holding)
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


async def test_a_refusal_cuts_no_other_line(world: World) -> None:
    world.handler.answers["text 0"] = [ApiError(429, "Over.", code="budget", retry_after=3600)]
    await world.batch([line(number) for number in range(8)])
    world.handler.gate.clear()
    await world.runner()
    await eventually(lambda: world.handler.now == 8)
    world.handler.gate.set()

    async def says_why() -> bool:
        return (await world.shown()).waiting_for == "Over."

    await eventually(says_why)
    assert (await world.shown()).request_counts.completed == 7
    assert set(world.handler.seen.values()) == {1}


async def test_a_batch_whose_engines_have_no_room_holds_up_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.flow.batches.batch_range._STALL", 0.01)
    await world.batch([line(number, model="full") for number in range(400)])
    await world.runner()
    await world.until("in_progress")
    await eventually(lambda: len(world.parts()) > 0)
    await asyncio.sleep(0.02)  # so that it has stalled; later is no difference
    await world.batch([line(number) for number in range(150)], OTHER)
    check_outputs(world, await world.until("completed", OTHER), 150)
    assert len(world.parts()) <= 4, "it takes no more of what it cannot work on"


async def test_a_paused_batch_holds_nothing_and_keeps_the_lines_in_flight(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.flow.batches.batch_runner.RENEW_INTERVAL", 0.01)
    await world.batch([line(number) for number in range(100)])
    world.handler.gate.clear()
    await world.runner()
    await eventually(lambda: world.handler.now == 8)
    await world.records.pause(NAME, paused=True)
    await asyncio.sleep(0.05)  # whether it was seen makes no difference to the result
    world.handler.gate.set()

    async def is_given_back() -> bool:
        await world.records.pause(NAME, paused=False)
        claim = await world.records.claim(NAME, "other")
        await world.records.pause(NAME, paused=True)
        return claim.what == "range" and bool(claim.given_back)

    await eventually(is_given_back)
    assert sum(world.handler.seen.values()) < 100
    assert set(world.handler.seen.values()) == {1}


async def test_what_was_given_back_is_not_kept_twice(world: World) -> None:
    await world.batch([line(number) for number in range(50)])
    for _ in range(3):
        world.handler.hold_after = world.handler.seen.total() + 8
        runner = await world.runner()
        await eventually(lambda: world.handler.is_holding)
        await cancel_and_wait(runner)
        world.handler.release()
        assert len(world.parts()) == 2
    await world.runner()
    check_outputs(world, await world.until("completed"), 50)


async def test_a_batch_that_always_fails_holds_up_no_other_and_has_a_line_in_the_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.batch([line(number) for number in range(250)])
    first = await world.runner()
    await eventually(lambda: bool(world.parts()))
    await cancel_and_wait(first)
    for index in (world.folder / "acme" / NAME.id).glob("index-*"):
        index.unlink()
    await world.runner()
    await world.batch([line(number) for number in range(50)], OTHER)
    check_outputs(world, await world.until("completed", OTHER), 50)
    assert "batch.folder cannot be used" in caplog.text
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_process_that_has_lost_the_end_leaves_the_output_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined, go = threading.Event(), threading.Event()
    join = BatchFolder.join

    def slow_join(self: BatchFolder, *args: Any) -> JoinedResults:
        result = join(self, *args)
        joined.set()
        go.wait(10)
        return result

    await world.batch([line(0)])
    monkeypatch.setattr(BatchFolder, "join", slow_join)
    await world.runner()
    await eventually(joined.is_set)
    monkeypatch.setattr(BatchFolder, "join", join)
    world.now += 100
    await world.runner()
    shown = await world.until("completed")
    assert shown.output_file_id is not None
    await world.files.delete("acme", shown.output_file_id)
    go.set()
    await world.batch([line(0)], OTHER)
    await world.until("completed", OTHER)
    assert not world.path(shown.output_file_id).exists()
    await eventually(lambda: not [path for path in (world.folder / "acme").iterdir() if path.is_dir()])


async def test_work_in_a_thread_ends_with_its_task(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Event(), threading.Event()

    def check(*args: Any) -> int:
        is_stopped = args[-1]
        begun.set()
        while not is_stopped():
            time.sleep(0.001)
        ended.set()
        return 1

    monkeypatch.setattr(BatchFolder, "check_input", check)
    await world.batch([line(0)])
    runner = await world.runner()

    await eventually(begun.is_set)
    await cancel_and_wait(runner)
    await eventually(ended.is_set)


async def test_folders_of_batches_that_are_gone_or_have_ended_are_removed_a_day_later(world: World) -> None:
    await world.batch([line(0)])
    await world.batch([line(0)], OTHER)
    await world.records.cancel(OTHER)
    await world.runner()
    await world.until("cancelled", OTHER)
    await world.until("completed")
    ended, lost = world.folder / "acme" / OTHER.id, world.folder / "acme" / "batch_000000000000000000000000"
    running, young = (
        world.folder / RUNNING.tenant / RUNNING.id,
        world.folder / "acme" / "batch_111111111111111111111111",
    )
    foreign = world.folder / "acme" / "batch_mine"
    for folder in (ended, lost, running, young, foreign):
        folder.mkdir(parents=True)
        (folder / "index-x").write_bytes(b"")
        os.utime(folder, (1000, 1000))
    await world.records.create(RUNNING, BatchSpec(
        endpoint="", input_file_id="", completion_window="1h", created_at=1000, expires_at=2000
    ), max_open=20)  # fmt: skip
    now = 1001.0 + LEFTOVER_AGE
    os.utime(young, (now, now))
    await remove_leftover_folders(world.files, world.records, lambda: now)
    assert [folder.exists() for folder in (ended, lost, running, young)] == [False, False, True, True]
    assert await world.files.find("acme", (await world.shown()).input_file_id)


async def test_a_batch_goes_on_when_the_disk_has_room_again(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("router.flow.batches.batch_runner.LEASE", 0.01)
    full = True

    def sync(file: int) -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")

    await world.batch([line(number) for number in range(50)])
    world.handler.hold_after = 20
    first = await world.runner()
    await eventually(lambda: world.handler.now == 8 and world.handler.is_holding)
    monkeypatch.setattr("router.shared.batches.local_storage.os.fsync", sync)
    world.handler.release()

    async def says_why() -> bool:
        return (await world.shown()).waiting_for == "A router cannot use its folder for files; its log says why."

    await eventually(says_why)
    assert "No space left on device" in caplog.text
    assert (await world.shown()).request_counts.completed > 8
    full = False
    check_outputs(world, await world.until("completed"), 50)
    assert not [record for record in caplog.records if record.exc_info]
    assert not first.done()


async def test_a_model_whose_engines_are_down_holds_up_no_line_of_another_one(world: World) -> None:
    await world.batch([line(number, model="full" if number < 20 else "free") for number in range(40)])
    await world.runner()
    await eventually(lambda: world.handler.seen.total() == 20)
    world.capacity.has_room.set()
    check_outputs(world, await world.until("completed"), 40)


async def test_long_lines_that_wait_take_no_memory(world: World) -> None:
    text = "x" * 60_000
    await world.batch([line(number, text, model="full") for number in range(16)])
    tracemalloc.start()
    try:
        await world.runner()
        await eventually(lambda: world.handler.looked_up.total() == 16)
        await eventually(lambda: world.capacity.waiting == LIMITS.max_in_flight)
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < LIMITS.max_in_flight * len(text) / 2
    world.capacity.has_room.set()
    shown = await world.until("completed")
    results = world.results(shown.output_file_id).values()
    assert [each["response"]["body"] for each in results] == [{"echo": text}] * 16


async def test_hits_do_not_wait_for_engines_and_the_others_are_looked_up_once(world: World) -> None:
    world.handler.cached = {f"text {number}" for number in range(150) if number % 7}
    await world.batch([line(number, model="full") for number in range(150)])
    await world.runner()

    async def hits_have_ended() -> bool:
        return (await world.shown()).request_counts.completed == len(world.handler.cached)

    await eventually(hits_have_ended)
    assert (await world.shown()).request_counts.cached == len(world.handler.cached)
    assert not world.handler.seen
    missing = {f"text {number}" for number in range(0, 150, 7)}
    assert world.handler.looked_up == dict.fromkeys(missing, 1)
    world.capacity.has_room.set()
    shown = await world.until("completed")
    check_outputs(world, shown, 150)
    assert shown.request_counts.cached == len(world.handler.cached)
    assert world.handler.looked_up == world.handler.seen == dict.fromkeys(missing, 1)


async def test_a_line_that_waits_in_each_range_holds_up_no_hit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr("router.flow.batches.batch_range._STALL", 0.01)
    monkeypatch.setattr("router.flow.batches.batch_runner._LOOK_INTERVAL", 0.01)
    # Lines that begin alike are in one range: some of each beginning are not cached.
    texts = [f"{beginning} {number}" for beginning in "abcdef" for number in range(100)]
    world.handler.cached = {text for text in texts if not text.endswith("7")}
    await world.batch([line(number, text, model="full") for number, text in enumerate(texts)])
    await world.runner()

    async def hits_have_ended() -> bool:
        return len(world.handler.looked_up) == 60

    await eventually(hits_have_ended)
    world.capacity.has_room.set()
    shown = await world.until("completed")
    assert shown.request_counts.cached == 540
    assert set(world.handler.seen) == set(texts) - world.handler.cached


@pytest.mark.parametrize("directive", ["no-cache", "no-store"])
async def test_lines_that_may_not_be_hits_are_not_looked_up(world: World, directive: str) -> None:
    world.handler.cached = {"text 0"}
    await world.batch([line(number, model="full") for number in range(20)], cache_control=directive)
    await world.runner()
    await eventually(lambda: world.capacity.waiting == LIMITS.max_in_flight)
    assert not world.handler.looked_up
    world.capacity.has_room.set()
    await world.until("completed")
    assert not world.handler.looked_up


async def test_a_batch_that_may_only_have_hits_needs_no_engine(world: World) -> None:
    world.handler.cached = {f"text {number}" for number in range(10)}
    await world.batch([line(number, model="full") for number in range(20)], cache_control="only-if-cached")
    await world.runner()
    shown = await world.until("completed")
    assert shown.request_counts == RequestCounts(20, 10, 10, cached=10)
    errors = world.results(shown.error_file_id)
    assert {each["response"]["body"]["error"]["code"] for each in errors.values()} == {"not_cached"}


async def test_outside_of_the_hours_of_batches_no_line_begins(world: World) -> None:
    world.capacity.is_open = False
    await world.batch([line(0)])
    await world.runner()

    async def says_why() -> bool:
        return (await world.shown()).waiting_for == "No lines run now: see batch.hours."

    await eventually(says_why)
    assert not world.handler.seen
    assert not world.handler.looked_up
    world.capacity.is_open = True
    await world.until("completed")


async def test_a_batch_that_is_cancelled_outside_of_the_hours_ends(world: World) -> None:
    world.capacity.is_open = False
    await world.batch([line(0)])
    await world.runner()
    await world.until("in_progress")
    await world.records.cancel(NAME)
    await world.until("cancelled")
    assert not world.handler.seen


async def test_a_process_that_drains_begins_no_line_and_cuts_none(world: World) -> None:
    await world.batch([line(number) for number in range(120)])
    world.handler.gate.clear()
    draining = await world.runner()
    await eventually(lambda: world.handler.now == 2 * LIMITS.max_in_flight)
    world.draining = True
    await eventually(lambda: world.asked_while_draining > 0)
    world.handler.gate.set()

    async def all_are_kept() -> bool:
        return (await world.shown()).request_counts.completed == 2 * LIMITS.max_in_flight

    await eventually(all_are_kept)
    assert sum(world.handler.seen.values()) == 2 * LIMITS.max_in_flight
    assert (await world.records.claim(NAME, "other")).what == "range"
    assert not draining.done()


async def test_a_batch_says_that_its_engines_have_no_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.flow.batches.batch_range._STALL", 0.01)
    monkeypatch.setattr("router.flow.batches.batch_runner.RENEW_INTERVAL", 0.01)
    await world.batch([line(0, model="full")])
    world.handler.gate.clear()
    await world.runner()

    async def says(reason: str | None) -> bool:
        return (await world.shown()).waiting_for == reason

    await eventually(lambda: says("The engines are busy or down."))
    world.capacity.has_room.set()
    await eventually(lambda: says(None))
    world.handler.gate.set()
    await world.until("completed")


async def test_a_batch_says_that_its_folder_does_not_answer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.flow.batches.batch_range._STALL", 0.01)
    monkeypatch.setattr("router.flow.batches.batch_runner.RENEW_INTERVAL", 0.01)
    monkeypatch.setattr("router.shared.batches.files._STUCK", 0.05)
    answers = threading.Event()
    read_range = LocalStorage.read_range

    def read_when_it_answers(storage: LocalStorage, name: str, offset: int, length: int) -> bytes:
        if "/input-" in name:
            answers.wait()
        return read_range(storage, name, offset, length)

    monkeypatch.setattr(LocalStorage, "read_range", read_when_it_answers)
    await world.batch([line(number) for number in range(10)])
    await world.runner()

    async def says_why() -> bool:
        return (await world.shown()).waiting_for == "The folder for files does not answer."

    try:
        await eventually(says_why)
    finally:
        answers.set()
    check_outputs(world, await world.until("completed"), 10)


async def test_a_batch_whose_kept_input_is_lost_ends_with_errors(world: World) -> None:
    await world.batch([line(number) for number in range(150)])
    world.handler.gate.clear()
    await world.runner()
    await eventually(lambda: world.handler.now > 0)
    for path in (world.folder / "acme" / NAME.id).glob("input-*"):
        path.unlink()
    world.handler.gate.set()
    shown = await world.until("completed")
    assert shown.request_counts.completed > 0
    assert shown.request_counts.completed + shown.request_counts.failed == 150
    assert shown.error_file_id is not None
    errors = world.path(shown.error_file_id).read_bytes().splitlines()
    assert {json.loads(each)["error"]["code"] for each in errors} == {"file_not_found"}


@pytest.mark.parametrize("gone", ["input", "folder"])
async def test_a_batch_whose_files_are_gone_expires(world: World, gone: str) -> None:
    world.capacity.is_open = False
    await world.batch([line(number) for number in range(150)], expires_at=2000)
    await world.runner()
    await world.until("in_progress")
    if gone == "input":
        await world.files.delete("acme", (await world.shown()).input_file_id)
    else:
        shutil.rmtree(world.folder / "acme" / NAME.id)
    world.now = 2000.0
    shown = await world.until("expired")
    assert shown.request_counts.failed == (150 if gone == "input" else 0)


async def test_the_check_and_the_end_of_a_batch_wait_for_no_lines_of_another(world: World) -> None:
    world.handler.hold_after = 0
    await world.batch([line(number) for number in range(250)])
    await world.runner()
    await eventually(lambda: world.handler.seen.total() >= 2 * LIMITS.max_in_flight)
    await world.batch([line(0)], OTHER)
    await world.until("in_progress", OTHER)
    await world.records.cancel(OTHER)
    await world.until("cancelled", OTHER)
    late = BatchName("acme", "batch_111111111111111111111111")
    await world.batch([line(0)], late)
    await world.until("in_progress", late)
    world.now = 90_001.0
    await world.until("expired", late)
    world.handler.release()
