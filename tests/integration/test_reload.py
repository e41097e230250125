"""Reloading the configuration by SIGHUP. tests/world/test_reload.py has what changes and what stays."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.router_process import RouterProcess, http_client
from tests.support.router_server import chat_body
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def serve(tmp_path: Path, redis: Any) -> Iterator[Any]:
    started: list[RouterProcess] = []

    async def start(text: str) -> RouterProcess:
        started.append(RouterProcess(tmp_path, text))
        started[-1].start()
        await started[-1].wait_until_ready()
        return started[-1]

    yield start
    for served in started:
        served.kill()


async def models(served: RouterProcess) -> list[str]:
    async with http_client(served.url) as http:
        return [model["id"] for model in (await http.get("/v1/models")).json()["data"]]


@pytest.mark.parametrize("workers", [1, 2])
async def test_sighup_reads_the_file_again_and_no_request_is_lost(serve: Any, config: str, workers: int) -> None:
    served = await serve(config.replace("[router]", f"[router]\nworkers = {workers}"))
    lost: list[object] = []
    sent = 0
    stop = asyncio.Event()

    async def ask(number: int) -> None:
        nonlocal sent
        async with http_client(served.url) as http:
            while not stop.is_set():
                sent += 1
                try:
                    answer = await http.post("/v1/chat/completions", json=chat_body(f"{number} {sent % 50}?"))
                    if answer.status_code != 200:
                        lost.append(answer.text)
                except httpx.HTTPError as error:
                    lost.append(error)

    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(ask(number))
        for name in ("one", "two", "three"):
            served.write_config(
                config.replace("[router]", f"[router]\nworkers = {workers}").replace("llama-alias", name)
            )
            served.process.send_signal(signal.SIGHUP)

            async def is_known_everywhere(name: str = name) -> bool:
                return all([name in await models(served) for _ in range(6)])

            await eventually(is_known_everywhere)
        stop.set()
    assert lost == []
    assert sent > 10


@pytest.mark.parametrize(
    ("workers", "bad", "messages"),
    [
        (1, "[routr]\n[auth]\nmode = 'key'", ["routr: ", "auth.mode: 'key' is none of ", "model is missing"]),
        (2, None, ["No such file"]),
    ],
)
async def test_an_invalid_file_is_refused_with_a_line_for_each_mistake_and_the_old_one_remains(
    serve: Any, config: str, workers: int, bad: str | None, messages: list[str]
) -> None:
    served = await serve(config.replace("[router]", f"[router]\nworkers = {workers}"))
    served.write_config(bad)
    served.process.send_signal(signal.SIGHUP)
    refused = "the configuration is invalid; the previous one stays in effect"
    await eventually(lambda: served.log.read_text().count(refused) == len(messages))
    lines = [line for line in served.log.read_text().splitlines() if refused in line]
    assert [message in line for message, line in zip(messages, lines, strict=True)] == [True] * len(messages)
    assert "llama-alias" in await models(served)
    if workers == 2:  # a worker that must be replaced now does not need the file either
        before = served.worker_pids()
        served.kill_worker(before.copy().pop())
        await eventually(lambda: len(now := served.worker_pids()) == 2 and now != before)
        await served.wait_until_ready()


async def test_a_setting_that_needs_a_restart_is_reported_and_remains(serve: Any, config: str) -> None:
    served = await serve(config)
    served.write_config(
        config.replace("[router]", '[router]\nworkers = 3\nlog_format = "json"\nhost = "0.0.0.0"\nkeep_alive = "620s"')
    )
    served.process.send_signal(signal.SIGHUP)
    await eventually(lambda: "the new configuration is in effect" in served.log.read_text())
    for name in ("workers", "log_format", "host", "keep_alive"):
        assert f"router.{name}: a change needs a restart" in served.log.read_text()
    assert "router.port" not in served.log.read_text()
    assert served.worker_pids() == set()
