"""What `roundhouse serve` logs from its start to its end."""

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from router.api.access.auth import hash_key
from tests.support.redis_process import RedisServer
from tests.support.router_process import START_TIMEOUT, RouterProcess, http_client
from tests.support.router_server import EngineSet, router_config
from tests.support.waiting import TEST_TIMEOUT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

TENANTS: Final = f"""[auth]
mode = "keys"
admin_keys = ["{hash_key(b"admin-key")}"]

[[tenant]]
name = "acme"
keys = ["{hash_key(b"acme-key")}"]
"""


@pytest.fixture
def serve(tmp_path: Path, redis: Any) -> Iterator[Any]:
    started: list[RouterProcess] = []

    def start(text: str) -> RouterProcess:
        started.append(RouterProcess(tmp_path, text))
        started[-1].start()
        return started[-1]

    yield start
    for served in started:
        served.kill()


def messages(served: RouterProcess) -> list[str]:
    """The messages of the server, in the order of the log."""
    marker = " roundhouse.server "
    return [line.partition(marker)[2] for line in served.log.read_text().splitlines() if marker in line]


async def stopped(served: RouterProcess) -> int:
    served.process.send_signal(signal.SIGTERM)
    return await asyncio.to_thread(served.process.wait, TEST_TIMEOUT)


async def test_three_lines_at_the_start_one_when_ready_and_one_at_the_end(
    serve: Any, redis_server: RedisServer, engines: EngineSet
) -> None:
    served = serve(router_config(redis_server.url, engines.as_config(), rest=TENANTS))
    await eventually(lambda: "ready: " in served.log.read_text(), START_TIMEOUT)
    async with http_client(served.url) as http:  # at once, without a second attempt
        assert (await http.get("/readyz")).status_code == 200
    assert await stopped(served) == 0
    process, dependencies, models, *rest = messages(served)
    assert process.startswith("Roundhouse 0.1.0")
    assert process.endswith(f" starts on {served.url}: 1 worker, pid {served.process.pid}")
    assert dependencies.startswith(f"Redis at {redis_server.url.removesuffix('/0')}: version ")
    assert dependencies.endswith("Authentication: keys, 1 tenant, 1 admin key")
    assert models == "2 models, 3 engines: llama (llama-chat, llama-code), mistral (mistral)"
    ready = [line for line in rest if line.startswith("ready: ")]
    assert ready == [
        f"ready: Roundhouse serves on {served.url} (OpenAI's API under {served.url}/v1); 3 of 3 engines are up"
    ]
    assert rest[-1] == "stopped with exit code 0"


async def test_the_lines_of_several_workers_are_json_where_the_others_are(
    serve: Any, redis_server: RedisServer, engines: EngineSet
) -> None:
    tables = {**engines.as_config(), "dead": ("mistral", "any", "http://127.0.0.1:1")}
    served = serve(router_config(redis_server.url, tables, router='log_format = "json"\nworkers = 2'))
    await eventually(lambda: '"event":"ready"' in served.log.read_text(), START_TIMEOUT)
    async with http_client(served.url) as http:
        assert (await http.get("/readyz")).status_code == 200
    assert await stopped(served) == 0
    lines = [json.loads(line) for line in served.log.read_text().splitlines()]
    assert [line["event"] for line in lines if "event" in line] == ["start", "ready"]
    (ready,) = [line for line in lines if line.get("event") == "ready"]
    assert ready["message"].endswith("; 3 of 4 engines are up")
    assert {line["level"] for line in lines} <= {"info", "warning"}
    assert lines[-1]["message"] == "stopped with exit code 0"
    start = lines[0]
    assert (start["address"], start["workers"], start["pid"]) == (served.url, 2, served.process.pid)
    assert (lines[1]["auth"], lines[1]["tenants"], lines[1]["redis_up"]) == ("open", 1, True)
    assert lines[2]["models"] == {"llama": ["llama-chat", "llama-code"], "mistral": ["mistral", "dead"]}
