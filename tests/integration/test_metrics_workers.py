"""The metrics of several worker processes are those of one router."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess, http_client
from tests.support.router_server import EngineSet, chat_body, router_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT = "/v1/chat/completions"
PAGES = 6  # from so many new connections, both workers answer some


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(
    redis_server: RedisServer, running_engines: EngineSet, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RouterProcess]:
    """One router for all tests of the module, in their order: the first counts from the start."""
    text = router_config(redis_server.url, running_engines.as_config(), router="workers = 2")
    served = RouterProcess(tmp_path_factory.mktemp("metrics"), text)
    served.start()
    try:
        await served.wait_until_ready()
        yield served
    finally:
        served.kill()


async def ask(served: RouterProcess, prompt: str, **fields: Any) -> httpx.Response:
    async with http_client(served.url) as http:
        answer = await http.post(CHAT, json=chat_body(prompt, **fields))
    assert answer.status_code == 200, answer.text
    return answer


async def pages(served: RouterProcess) -> list[dict[str, float]]:
    """The samples of several pages, each over a connection of its own, so that different workers answer."""
    found = []
    for _ in range(PAGES):
        async with http_client(served.url) as http:
            page = (await http.get("/metrics")).raise_for_status()
        lines = [line.rpartition(" ") for line in page.text.splitlines() if line[0] != "#"]
        assert len({name for name, _, _ in lines}) == len(lines), "a sample is there twice"
        found.append({name: float(value) for name, _, value in lines})
    return found


def total(page: dict[str, float], metric: str, *labels: str) -> float:
    return sum(
        value
        for name, value in page.items()
        if name.startswith(metric + "{") and all(label in name for label in labels)
    )


async def until_all_pages(served: RouterProcess, expected: dict[tuple[str, ...], float]) -> None:
    """Waits until each page has these totals. None may ever show more: that would be counted twice."""

    async def equal() -> bool:
        found = [{key: total(page, *key) for key in expected} for page in await pages(served)]
        assert all(sums[key] <= expected[key] for sums in found for key in expected), found
        return all(sums == pytest.approx(expected) for sums in found)

    await eventually(equal)


async def test_counters_and_histograms_are_summed_and_a_worker_that_died_neither_loses_nor_doubles_them(
    served: RouterProcess, redis_server: RedisServer
) -> None:
    def counts(questions: int) -> dict[tuple[str, ...], float]:
        return {
            ("llm_requests_total", 'status="200"'): 3 * questions,
            ("llm_cache_requests_total", 'result="hit"'): 2 * questions,
            ("llm_cache_requests_total", 'result="miss"'): questions,
            ("llm_cache_writes_total", 'result="stored"'): questions,
            ("llm_request_duration_seconds_count", 'cache="HIT"'): 2 * questions,
            ("llm_request_duration_seconds_bucket", 'le="+Inf"'): 3 * questions,
            ("llm_tokens_per_second_count",): questions,
        }  # fmt: skip

    async def ask_three_times(question: str) -> None:
        for _ in range(3):
            answer = await ask(served, question, stream=True, stream_options={"include_usage": True})
            # A worker stores it while its client already has it, and the other worker may get the next request.
            await eventually(partial(redis_server.command, "EXISTS", answer.headers["x-cache-key"]))

    async def gauges_are_right() -> bool:
        found = await pages(served)
        engine_up = [total(page, "roundhouse_engine_up", 'engine="mistral"') for page in found]
        assert max(engine_up) <= 1, "it is not summed"
        return min(engine_up) == 1 and all(
            total(page, "llm_cache_hit_ratio", 'model="llama"') == pytest.approx(2 / 3)
            and total(page, "roundhouse_problem") == 0
            for page in found
        )

    for number in range(8):
        await ask_three_times(f"Question {number}")
    await until_all_pages(served, counts(8))
    await eventually(gauges_are_right)
    (before,) = {total(page, "llm_gpu_seconds_total", 'kind="spent"') for page in await pages(served)}
    workers = served.worker_pids()
    served.kill_worker(min(workers))
    await eventually(lambda: len(served.worker_pids() - workers) == 1)
    await until_all_pages(served, counts(8))
    assert {total(page, "llm_gpu_seconds_total", 'kind="spent"') for page in await pages(served)} == {before}
    for number in range(8, 16):
        await ask_three_times(f"Question {number}")
    await until_all_pages(served, counts(16))


async def test_no_worker_is_killed_for_counting_requests_when_the_disk_is_full(served: RouterProcess) -> None:
    await ask(served, "The sea?")
    workers = served.worker_pids()
    environment = Path(f"/proc/{min(workers)}/environ").read_bytes().split(b"\0")
    (folder,) = [line.partition(b"=")[2].decode() for line in environment if line.startswith(b"PROMETHEUS_MULTI")]

    def have_files() -> bool:
        return {int(path.stem.rpartition("_")[2]) for path in Path(folder).glob("*.db")} >= workers

    await eventually(have_files)  # the second worker may still be starting
    await eventually(lambda: all(path.stat().st_size for path in Path(folder).glob("*.db")))
    files = {path.name: path.stat() for path in Path(folder).glob("*.db")}
    # Their blocks are allocated: a process that writes into a hole of mapped memory is killed then.
    assert [name for name, status in files.items() if status.st_blocks * 512 < status.st_size] == []


async def test_requests_in_flight_are_summed_and_those_of_a_dead_worker_are_gone(
    served: RouterProcess, engines: EngineSet
) -> None:
    started: list[int] = []

    async def read(number: int) -> None:
        """Reads a stream that stalls, until its worker dies."""
        body = chat_body(f"Question {number}", model="mistral", stream=True)
        with contextlib.suppress(httpx.HTTPError):
            async with (
                http_client(served.url) as http,
                http.stream("POST", CHAT, json=body) as answer,
            ):
                started.append(number)
                await answer.aread()

    await engines.mistral.set_faults({"fault": "stall", "after": 2})
    async with asyncio.TaskGroup() as group:
        readers = [group.create_task(read(number)) for number in range(8)]

        async def all_that_are_alive_are_counted() -> bool:
            alive = sum(not reader.done() for reader in readers)
            return {total(page, "llm_requests_in_flight", 'engine="mistral"') for page in await pages(served)} == {
                alive
            }

        await eventually(lambda: len(started) == len(readers))
        await eventually(all_that_are_alive_are_counted)
        workers = served.worker_pids()
        served.kill_worker(min(workers))
        await eventually(lambda: len(served.worker_pids() - workers) == 1)
        await eventually(all_that_are_alive_are_counted)
        for reader in readers:
            reader.cancel()
    await eventually(all_that_are_alive_are_counted)


async def test_clients_cannot_create_series_at_any_worker(served: RouterProcess) -> None:
    async def be_strange(number: int) -> None:
        async with http_client(served.url) as http:
            headers = {
                "x-tenant-id": f"t{number}", "x-request-id": f"id{number}", "user-agent": f"agent{number}",
                "authorization": f"Bearer key{number}", "traceparent": f"00-{number + 1:032x}-{1:016x}-01",
                "x-session-id": f"session{number}",
            }  # fmt: skip
            for fields in ({"model": f"model-{number}"}, {"user": f"user{number}"}, {f"field{number}": number}):
                await http.post(CHAT, json=chat_body(f"p{number}", **fields), headers=headers)
            await http.post(CHAT, content=b"{" * number, headers=headers)
            await http.request(f"M{number}", CHAT, headers=headers)
            for path in (f"/path/{number}", f"/v1/models/m{number}", f"/admin/{number}", "/metrics", f"/{number}/v1"):
                await http.request(f"METHOD{number}", path, headers=headers)
                await http.get(path, headers=headers)

    # Of engines: once enough is known, and with the next probe after their first requests.
    measured = ("roundhouse_engine_tokens_per_second", "roundhouse_draft_", "vllm_")

    async def names() -> set[str]:
        return {name for page in await pages(served) for name in page if not name.startswith(measured)}

    for number in range(12):
        await be_strange(number)
    known = await names()
    for number in range(12, 24):
        await be_strange(number)
    await until_all_pages(served, {("llm_requests_total", 'status="404"'): 24})
    assert await names() == known


async def test_gauges_of_removed_engines_and_unknown_values_have_no_samples(
    served: RouterProcess, redis_server: RedisServer, engines: EngineSet
) -> None:
    async def all_have(engine: str, expected: bool, metric: str = "roundhouse_engine_up") -> bool:
        return all((f'{metric}{{engine="{engine}"}}' in page) is expected for page in await pages(served))

    await eventually(lambda: all_have("llama-code", True))
    await eventually(lambda: all_have("mistral", True, "vllm_kv_cache_usage"))
    await ask(served, "[[sim:kv metric=missing]]", model="mistral")
    await eventually(lambda: all_have("mistral", False, "vllm_kv_cache_usage"))
    table = engines.as_config()
    del table["llama-code"]
    served.write_config(router_config(redis_server.url, table, router="workers = 2"))
    served.process.send_signal(signal.SIGHUP)

    async def nothing_is_left() -> bool:
        found = await pages(served)
        assert all('roundhouse_engine_up{engine="llama-chat"}' in page for page in found)
        return not any('engine="llama-code"' in name for page in found for name in page)

    await eventually(nothing_is_left)
