"""A change that fails or is interrupted half-way is in the audit, with how far it came."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import redis.asyncio as aioredis

from router.api.access.auth import hash_key
from router.core.cache.redis_keys import AUDIT_KEY, KEYS_APPLIED_KEY
from tests.support.cli_helpers import run_cli
from tests.support.entry_factory import entry_key, store_entry
from tests.support.redis_process import RedisServer
from tests.support.router_server import MakeRouter, router_config
from tests.support.waiting import TEST_TIMEOUT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADMIN = {"authorization": "Bearer admin-key"}
NO_ENGINE = {"llama-chat": ("llama", "chat", "http://127.0.0.1:9")}
REST = f'[auth]\nadmin_keys = ["{hash_key(b"admin-key")}"]\nmode = "keys"\n[[tenant]]\nname = "acme"\n'


def config_text(redis: RedisServer) -> str:
    return router_config(redis.url, NO_ENGINE, rest=REST)


@pytest.fixture(autouse=True)
def hangup_ends_commands() -> Iterator[None]:
    """Also if the tests run under nohup: children inherit that a signal is ignored, and not that it is handled."""
    before = signal.signal(signal.SIGHUP, lambda *_: None)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def file(tmp_path: Path, own_redis: RedisServer) -> Path:
    path = tmp_path / "roundhouse.toml"
    path.write_text(config_text(own_redis))
    return path


@asynccontextmanager
async def running(*words: object) -> AsyncIterator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "router", *map(str, words), stdin=pipe, stdout=pipe, stderr=pipe
    )
    try:
        async with asyncio.timeout(TEST_TIMEOUT):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def audited(redis: RedisServer) -> list[tuple[str, str, dict[str, Any]]]:
    records = [fields for _, fields in await redis.command("XRANGE", AUDIT_KEY, "-", "+")]
    return [(fields["action"], fields["subject"], json.loads(fields["details"])) for fields in records]


async def is_paused(redis: RedisServer) -> bool:
    """Whether a command waits for the end of CLIENT PAUSE."""
    return bool((await redis.command("INFO", "clients"))["blocked_clients"])


async def exported(count: int, client: Any, file: Path) -> list[bytes]:
    for number in range(count):
        await store_entry(client, entry_key(number))
    lines = (await run_cli("cache", "export", "--config", file)).stdout.encode().splitlines(keepends=True)
    await client.flushall()
    return lines


@pytest_asyncio.fixture(loop_scope="session")
async def client(own_redis: RedisServer) -> AsyncIterator[Any]:
    await own_redis.start()
    async with aioredis.Redis.from_url(own_redis.url) as connected:
        yield connected


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_an_import_that_a_signal_ends_is_recorded_with_what_it_has_stored(
    client: Any, own_redis: RedisServer, file: Path, number: signal.Signals
) -> None:
    lines = await exported(120, client, file)
    async with running("cache", "import", "--config", file) as process:
        assert process.stdin is not None
        process.stdin.write(b"".join(lines[:110]))  # two batches, and more
        await eventually(lambda: at_least(client, 100))
        process.send_signal(number)
        assert await process.wait() == 128 + number
    ((action, subject, details),) = await audited(own_redis)
    assert (action, subject, details["result"]) == ("import", "-", "interrupted")
    assert details["entries"] in (50, 100), "the reply to the second batch may not have arrived"


async def at_least(client: Any, entries: int) -> bool:
    return len(await client.keys("rh:1:acme:*")) >= entries


async def test_an_import_with_an_invalid_line_is_recorded_if_it_has_stored_something(
    client: Any, own_redis: RedisServer, file: Path
) -> None:
    (line,) = await exported(1, client, file)
    assert (await run_cli("cache", "import", "--config", file, stdin=b"nonsense\n" + line)).code == 1
    assert await audited(own_redis) == []
    assert (await run_cli("cache", "import", "--config", file, stdin=line + b"nonsense\n")).code == 1
    ((action, subject, details),) = await audited(own_redis)
    assert (action, subject, details["entries"]) == ("import", "-", 1)
    assert details["result"].startswith("failed: line 2: not an entry: ")


async def test_a_purge_that_fails_half_way_is_recorded(client: Any, own_redis: RedisServer, file: Path) -> None:
    await store_entry(client, entry_key(1))
    await client.execute_command("ACL", "SETUSER", "default", "-unlink")
    failed = await run_cli("cache", "purge", "--all", "--config", file)
    assert (failed.code, "Redis refuses a command" in failed.stderr) == (1, True)
    ((action, subject, details),) = await audited(own_redis)
    assert (action, subject, details["entries"]) == ("purge", "all", 0)
    assert details["result"].startswith("failed: this user has no permissions")


async def test_a_purge_that_a_signal_ends_is_recorded(client: Any, own_redis: RedisServer, file: Path) -> None:
    await store_entry(client, entry_key(1))
    await client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
    async with running("cache", "purge", "--all", "--config", file) as process:
        await eventually(lambda: is_paused(own_redis))
        process.send_signal(signal.SIGTERM)
        await client.execute_command("CLIENT", "UNPAUSE")
        out, err = await process.communicate()
    assert (process.returncode, out, err) == (143, b"", b"")
    assert await audited(own_redis) == [("purge", "all", {"entries": 0, "result": "interrupted"})]


async def test_a_purge_that_a_signal_ends_does_not_wait_long_for_a_redis_that_hangs(
    client: Any, own_redis: RedisServer, file: Path
) -> None:
    await store_entry(client, entry_key(1))
    await client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
    async with running("cache", "purge", "--all", "--config", file) as process:
        await eventually(lambda: is_paused(own_redis))
        own_redis.freeze()
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(8):  # it takes 2 s; Redis has 10 s for each reply of the purge
            out, err = await process.communicate()
    own_redis.thaw()
    assert (process.returncode, out) == (130, b"")
    assert err.startswith(b"roundhouse: not recorded in the audit: ")


@pytest.mark.parametrize(
    "words", [("engines", "drain", "llama-chat"), ("engines", "resume", "llama-chat"), ("cache", "purge", "--all")]
)
async def test_a_command_that_a_replica_refuses_says_so_in_one_line(
    client: Any, own_redis: RedisServer, file: Path, words: tuple[str, ...]
) -> None:
    await store_entry(client, entry_key(1))
    await client.execute_command("REPLICAOF", "127.0.0.1", 9)
    refused = await run_cli(*words, "--config", file)
    told = f"roundhouse: {file}: cache.url: Redis is a read-only replica: nothing was changed\n"
    assert (refused.code, refused.stdout, refused.stderr) == (1, "", told)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_key_is_recorded_before_the_routers_confirm_it(
    client: Any, own_redis: RedisServer, file: Path, number: signal.Signals
) -> None:
    """A router that does not confirm it is waited for, for seconds."""
    seconds, _ = await client.time()
    await client.hset(KEYS_APPLIED_KEY, "other:1", json.dumps({"host": "other", "pid": 1, "at": seconds, "version": 0}))
    async with running("keys", "new", "--tenant", "acme", "--name", "ci", "--config", file) as process:
        await eventually(lambda: client.exists(AUDIT_KEY))
        process.send_signal(number)
        out, err = await process.communicate()
    ((action, made, details),) = await audited(own_redis)
    undo = f"roundhouse keys revoke {made} --config {file}"
    told = f"roundhouse: the key {made} is made, and cannot be shown again; revoke it: {undo}\n"
    assert (process.returncode, out, err.decode()) == (128 + number, b"", told)
    assert (action, details) == ("key_created", {"name": "ci", "tenant": "acme"})


async def test_a_purge_whose_client_leaves_is_done_and_recorded(
    client: Any, own_redis: RedisServer, make_router: MakeRouter
) -> None:
    router = await make_router(config_text(own_redis))
    await store_entry(client, entry_key(1))
    await client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
    leaving = asyncio.ensure_future(router.http.post("/admin/cache/purge", json={"all": True}, headers=ADMIN))
    await eventually(lambda: is_paused(own_redis))
    leaving.cancel()
    await asyncio.wait([leaving])
    await client.execute_command("CLIENT", "UNPAUSE")
    await eventually(lambda: client.exists(AUDIT_KEY))
    assert await audited(own_redis) == [("purge", "all", {"entries": 1, "generations": 0, "result": "done"})]


async def test_a_change_whose_record_redis_refuses_is_made_and_counted(
    client: Any, own_redis: RedisServer, make_router: MakeRouter
) -> None:
    router = await make_router(config_text(own_redis))
    await client.execute_command("ACL", "SETUSER", "default", "-xadd")
    answer = await router.http.post("/admin/engines/llama-chat/drain", headers=ADMIN)
    assert (answer.status_code, answer.json()["everywhere"]) == (200, True)
    assert (await router.metrics())["roundhouse_audit_lost_total"] == 1.0
    await client.execute_command("ACL", "SETUSER", "default", "+xadd")
    assert (await router.http.post("/admin/engines/llama-chat/resume", headers=ADMIN)).status_code == 200
    assert await audited(own_redis) == [("resume", "llama-chat", {"everywhere": True})]
