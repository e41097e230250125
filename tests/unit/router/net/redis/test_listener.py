"""The promises of Listener: a callback receives every change, or learns that changes were missed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pytest
import pytest_asyncio
import redis.asyncio as aioredis

from router.core.cache.redis_keys import PURGE_LOG_KEY, tracked_prefixes
from router.net.redis.backend import RedisBackend
from router.net.redis.connection import RedisConnection
from router.net.redis.handshake import Handshake
from router.net.redis.listener import Listener, _Link
from router.net.redis.liveness import PING_INTERVAL, PING_TIMEOUT
from router.net.redis.standalone import StandaloneBackend
from router.net.tasks import cancel_and_wait
from router.shared.connection.redis import open_backend
from tests.support.redis_deployments import Deployment
from tests.support.redis_process import RedisServer
from tests.support.waiting import TEST_TIMEOUT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

PREFIXES = tracked_prefixes(["acme", "beta"])
MORE = tracked_prefixes(["acme", "beta", "gamma"])
CHANNEL = "rh:1:process:me"


class RecordingCallbacks:
    """The events in order: the words `listening`, `deaf` and `all`, and the names of keys and messages."""

    listener: Listener

    def __init__(self) -> None:
        self.events: list[str] = []
        self.defects: list[Exception] = []

    def on_connected(self) -> None:
        self.events.append("listening")

    def on_disconnected(self) -> None:
        self.events.append("deaf")

    def on_keys_changed(self, keys: Sequence[bytes] | None) -> None:
        if self.defects:
            raise self.defects.pop()
        self.events += ["all"] if keys is None else [key.decode() for key in keys]

    def on_message(self, channel: bytes, payload: bytes) -> None:
        self.events.append(f"message {payload.decode()}")

    async def wait_for(self, what: str) -> list[str]:
        """Waits for an event; returns all events up to it, and removes them."""
        await eventually(lambda: what in self.events)
        at = self.events.index(what)
        so_far, self.events = self.events[:at], self.events[at + 1 :]
        return so_far


def make(
    link: RedisBackend,
    callbacks: RecordingCallbacks,
    *,
    kind: type[Listener] = Listener,
    ping_timeout: float = TEST_TIMEOUT,  # a busy machine may pause Redis for longer than PING_TIMEOUT
) -> Listener:
    return kind(
        link,
        prefixes=PREFIXES,
        channels=[CHANNEL],
        callbacks=callbacks,
        retry_interval=0.02,
        ping_timeout=ping_timeout,
    )


Listen = Callable[..., "asyncio.Task[None]"]


@pytest_asyncio.fixture(loop_scope="session")
async def listen() -> AsyncIterator[Listen]:
    """Listens to the events of a Redis."""
    async with AsyncExitStack() as stack:

        def make_listener(
            server: RedisServer,
            callbacks: RecordingCallbacks,
            link: RedisBackend | None = None,
            *,
            ping_timeout: float = TEST_TIMEOUT,
        ) -> "asyncio.Task[None]":
            link = link or open_backend(server.url, timeout=2.5)
            callbacks.listener = make(link, callbacks, ping_timeout=ping_timeout)
            task = asyncio.create_task(callbacks.listener.run())
            stack.push_async_callback(link.aclose)
            stack.push_async_callback(cancel_and_wait, task)
            return task

        yield make_listener


@pytest_asyncio.fixture(loop_scope="session")
async def callbacks(redis_server: RedisServer, redis: Any, listen: Listen) -> RecordingCallbacks:
    """The callbacks of a listener on the shared Redis."""
    callbacks = RecordingCallbacks()
    listen(redis_server, callbacks)
    await callbacks.wait_for("listening")
    return callbacks


async def listeners_at(client: Any) -> list[dict[str, str]]:
    return [each for each in await client.client_list() if "B" in each["flags"]]


# -- changes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", ["rh:1:acme:llama:0:0:1", "rh:1:beta:x", "rh:1:flight:acme:llama:0:0:1:7", PURGE_LOG_KEY]
)
async def test_every_change_of_a_tracked_key_is_reported(callbacks: RecordingCallbacks, redis: Any, key: str) -> None:
    for change in (redis.set(key, "x"), redis.pexpire(key, 60_000), redis.delete(key)):
        await change
        assert await callbacks.wait_for(key) == []


async def test_an_expiry_is_reported(callbacks: RecordingCallbacks, redis: Any) -> None:
    await redis.set("rh:1:acme:k", "x", px=200)
    await callbacks.wait_for("rh:1:acme:k")
    await callbacks.wait_for("rh:1:acme:k")


async def test_changes_outside_the_prefixes_are_not_reported(callbacks: RecordingCallbacks, redis: Any) -> None:
    for key in ("other", "rh:1:gamma:k", "rh:1:acmeish:k", "rh:1:claim:acme:k", "rh:1:hits:acme", "rh:2:acme:k"):
        await redis.set(key, "x")
    await redis.set("rh:1:acme:last", "x")
    assert await callbacks.wait_for("rh:1:acme:last") == []


async def test_only_the_prefixes_are_tracked(redis_server: RedisServer, redis: Any) -> None:
    link = open_backend(redis_server.url, timeout=2.5)
    (server,) = await link.servers()
    listener: Any = make(link, RecordingCallbacks())
    connection = RedisConnection()
    await listener._start_tracking(
        server, _Link(connection, 0, set()), asyncio.get_running_loop().time() + TEST_TIMEOUT, subscribe=False
    )
    (fields,) = await connection.execute([("CLIENT", "TRACKINGINFO")], TEST_TIMEOUT)
    assert set(fields[b"flags"]) == {b"on", b"bcast"}
    assert {prefix.decode() for prefix in fields[b"prefixes"]} == set(PREFIXES)
    connection.abort()
    await link.aclose()


async def test_a_flush_is_reported(callbacks: RecordingCallbacks, redis: Any) -> None:
    await redis.flushall()
    await callbacks.wait_for("all")


async def test_many_changes_at_once_are_all_reported(callbacks: RecordingCallbacks, redis: Any) -> None:
    keys = [f"rh:1:acme:{n}" for n in range(5000)]
    await redis.mset(dict.fromkeys(keys, "x"))
    await eventually(lambda: set(keys) <= set(callbacks.events))
    assert "deaf" not in callbacks.events


async def test_only_messages_on_the_channel_are_reported(callbacks: RecordingCallbacks, redis: Any) -> None:
    await redis.publish("rh:1:process:another", "not mine")
    await redis.publish(CHANNEL, "mine")
    assert await callbacks.wait_for("message mine") == []


async def test_an_idle_redis_is_not_considered_lost(redis_server: RedisServer, redis: Any, listen: Listen) -> None:
    received = RecordingCallbacks()
    listen(redis_server, received, ping_timeout=PING_TIMEOUT)

    async def ping_count() -> int:
        stats = await redis.info("commandstats")
        return int(stats.get("cmdstat_time", {}).get("calls", 0))

    async def stays_connected() -> bool:
        await received.wait_for("listening")
        enough = await ping_count() + 2 + PING_TIMEOUT / PING_INTERVAL

        async def is_decided() -> bool:
            return received.events != [] or await ping_count() >= enough

        await eventually(is_decided)
        return received.events == []

    await eventually(stays_connected)  # a busy machine may pause Redis


# -- new prefixes -----------------------------------------------------------------------------------------------------


async def test_the_first_connection_of_a_listener_does_not_change_the_topology(deployment: Deployment) -> None:
    async with aclosing(open_backend(deployment.url, timeout=TEST_TIMEOUT)) as link:
        received = RecordingCallbacks()
        servers = await link.servers()
        topology = link.topology
        task = asyncio.create_task(make(link, received).run())
        await received.wait_for("listening")
        assert (link.topology, len(servers)) == (topology, len(await link.servers()))
        await cancel_and_wait(task)


async def test_new_prefixes_are_tracked_on_each_server_and_nothing_is_missed(deployment: Deployment) -> None:
    keys = [f"rh:1:{tenant}:{number}" for tenant in ("acme", "gamma") for number in range(30)]
    async with aclosing(open_backend(deployment.url, timeout=2)) as link:
        received = RecordingCallbacks()
        listener = make(link, received)
        task = asyncio.create_task(listener.run())
        await received.wait_for("listening")
        await listener.track(MORE)
        await link.execute([("SET", key, "x", "PX", 60_000) for key in keys], TEST_TIMEOUT)
        await eventually(lambda: set(keys) <= set(received.events) or "deaf" in received.events)
        assert "deaf" not in received.events
        await cancel_and_wait(task)


async def test_prefixes_may_go_and_return(callbacks: RecordingCallbacks, redis: Any) -> None:
    for prefixes in (MORE, tracked_prefixes(["acme"]), MORE):
        await callbacks.listener.track(prefixes)
    for key in ("rh:1:acme:k", "rh:1:beta:k", "rh:1:gamma:k"):
        await redis.set(key, "x")
        assert await callbacks.wait_for(key) == []


async def test_two_that_add_prefixes_both_wait_for_them(callbacks: RecordingCallbacks, redis: Any) -> None:
    await asyncio.gather(*(callbacks.listener.track(tracked_prefixes([name])) for name in ("gamma", "delta", "acme")))
    await redis.set("rh:1:acme:k", "x")
    assert await callbacks.wait_for("rh:1:acme:k") == []


async def test_a_prefix_that_comes_while_it_connects_is_tracked_before_it_reports(
    redis_server: RedisServer, redis: Any
) -> None:
    class SlowListener(Listener):
        async def _start_tracking(self, *args: Any, **options: Any) -> None:
            await super()._start_tracking(*args, **options)
            await self.track(MORE)

    async with aclosing(open_backend(redis_server.url, timeout=2)) as link:
        received = RecordingCallbacks()
        task = asyncio.create_task(make(link, received, kind=SlowListener).run())
        assert await received.wait_for("listening") == ["deaf"]
        await redis.set("rh:1:gamma:k", "x")
        assert await received.wait_for("rh:1:gamma:k") == []
        await cancel_and_wait(task)


async def test_prefixes_that_redis_refuses_are_tried_with_new_connections(
    callbacks: RecordingCallbacks, redis: Any
) -> None:
    await callbacks.listener.track([*PREFIXES, "rh:1:"])  # it overlaps with all others
    assert await callbacks.wait_for("deaf") == []
    await callbacks.listener.track(MORE)
    await callbacks.wait_for("listening")
    await redis.set("rh:1:gamma:k", "x")
    assert await callbacks.wait_for("rh:1:gamma:k") == []


async def test_a_frozen_redis_delays_nobody_who_adds_prefixes_for_long(own_redis: RedisServer, listen: Listen) -> None:
    await own_redis.start()
    received = RecordingCallbacks()
    listen(own_redis, received, ping_timeout=PING_TIMEOUT)
    await received.wait_for("listening")
    own_redis.freeze()
    await received.listener.track(MORE)
    assert received.events[-1] == "deaf"
    own_redis.thaw()
    await received.wait_for("listening")


async def test_without_a_connection_nobody_waits_for_new_prefixes(own_redis: RedisServer, listen: Listen) -> None:
    received = RecordingCallbacks()
    listen(own_redis, received)
    await received.wait_for("deaf")
    await received.listener.track(MORE)
    await own_redis.start()
    await received.wait_for("listening")
    client: Any = aioredis.Redis.from_url(own_redis.url, decode_responses=True)
    async with client:
        await client.set("rh:1:gamma:k", "x")
        assert await received.wait_for("rh:1:gamma:k") == []


# -- lost connections -------------------------------------------------------------------------------------------------


async def test_a_lost_connection_is_reported_and_opened_again(own_redis: RedisServer, listen: Listen) -> None:
    await own_redis.start()
    received = RecordingCallbacks()
    listen(own_redis, received)
    await received.wait_for("listening")
    client: Any = aioredis.Redis.from_url(own_redis.url, decode_responses=True)
    async with client:
        (listening,) = await listeners_at(client)
        await client.client_kill_filter(_id=listening["id"])
        assert await received.wait_for("deaf") == []
        assert await received.wait_for("listening") == []
        await client.set("rh:1:acme:k", "x")
        assert await received.wait_for("rh:1:acme:k") == []
        assert len(await listeners_at(client)) == 1


async def test_a_frozen_redis_is_detected_after_too_long_a_silence(own_redis: RedisServer, listen: Listen) -> None:
    await own_redis.start()
    received = RecordingCallbacks()
    listen(own_redis, received, ping_timeout=PING_TIMEOUT)
    await received.wait_for("listening")
    own_redis.freeze()
    loop = asyncio.get_running_loop()
    started = loop.time()
    await received.wait_for("deaf")
    # Nothing else would notice it for minutes, so the bound leaves room for a machine that pauses.
    assert PING_TIMEOUT / 2 < loop.time() - started < PING_TIMEOUT + 10
    own_redis.thaw()
    await received.wait_for("listening")


async def test_a_killed_redis_is_detected_and_listened_to_when_it_is_back(
    own_redis: RedisServer, listen: Listen
) -> None:
    await own_redis.start()
    received = RecordingCallbacks()
    listen(own_redis, received)
    await received.wait_for("listening")
    own_redis.kill()
    await received.wait_for("deaf")
    await own_redis.start()
    await received.wait_for("listening")


async def test_a_redis_that_starts_later_is_listened_to(own_redis: RedisServer, listen: Listen) -> None:
    received = RecordingCallbacks()
    listen(own_redis, received)
    await received.wait_for("deaf")
    await own_redis.start()
    await received.wait_for("listening")


async def test_other_servers_mean_that_changes_may_have_been_missed(own_redis: RedisServer, listen: Listen) -> None:
    class MovingBackend(StandaloneBackend):
        now = "these"

        @property
        def topology(self) -> object:
            return self.now

    await own_redis.start()
    handshake = Handshake(None, None, 0, None)
    received, link = RecordingCallbacks(), MovingBackend(str(own_redis.socket), lambda: handshake)
    listen(own_redis, received, link)
    await received.wait_for("listening")
    link.now = "those"
    assert await received.wait_for("deaf") == []
    await received.wait_for("listening")


async def test_an_exception_in_a_callback_does_not_end_the_listener(
    callbacks: RecordingCallbacks, redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    callbacks.defects.append(ZeroDivisionError())
    await redis.set("rh:1:acme:k", "x")
    await callbacks.wait_for("deaf")
    await callbacks.wait_for("listening")
    assert "the Redis listener failed" in caplog.text


async def test_a_stopped_listener_reports_nothing_and_leaves_no_connection(
    own_redis: RedisServer, listen: Listen
) -> None:
    await own_redis.start()
    received = RecordingCallbacks()
    task = listen(own_redis, received)
    await received.wait_for("listening")
    await cancel_and_wait(task)
    assert received.events == ["deaf"]
    client: Any = aioredis.Redis.from_url(own_redis.url, decode_responses=True)
    async with client:

        async def has_no_listener() -> bool:
            return await listeners_at(client) == []

        await eventually(has_no_listener)
