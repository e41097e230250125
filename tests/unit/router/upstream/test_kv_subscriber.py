"""Reading KV events over ZMQ: what arrives, and what is said of it."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

pytest.importorskip("zmq", reason="pip install 'roundhouse-router[kv-events]'")

import zmq.asyncio

from router.core.routing.prefix_cache.kv_blocks import BlockPieces, KvBlocks
from router.core.routing.prefix_cache.kv_event_batches import KvEventBatches
from router.core.routing.prefix_cache.prefix_index import PrefixIndex
from router.core.routing.prefix_cache.prompt_chain import PromptChain
from router.upstream import kv_subscriber
from router.upstream.kv_feeds import KvFeed
from tests.support.ports import free_port
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

EMPTY = msgspec.msgpack.encode([1.0, [], 0])


def number(value: int) -> bytes:
    return value.to_bytes(8, "big")


def reader() -> KvEventBatches:
    return KvEventBatches(KvBlocks(PrefixIndex(1 << 20), BlockPieces()))


@asynccontextmanager
async def subscribed(endpoint: str, batches: KvEventBatches, replay: str | None = None) -> AsyncIterator[None]:
    feed = KvFeed("one", "http://one", "m", endpoint, replay)
    task = asyncio.ensure_future(kv_subscriber.subscribe(feed, batches))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def publisher(endpoint: str) -> AsyncIterator["zmq.asyncio.Socket"]:
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.PUB)
    if "*" in endpoint:
        socket.bind(endpoint)
    else:
        socket.connect(endpoint)
    try:
        yield socket
    finally:
        context.destroy(linger=0)


async def send_until_heard(socket: "zmq.asyncio.Socket", batches: KvEventBatches) -> int:
    """The number of the next batch."""
    sent = 0

    async def is_heard() -> bool:
        nonlocal sent
        await socket.send_multipart((b"", number(sent), EMPTY))
        sent += 1
        return batches.received > 0

    await eventually(is_heard)
    return sent


async def test_messages_of_another_form_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    port, batches = free_port(), reader()
    with caplog.at_level(logging.INFO, "roundhouse.engines"):
        async with publisher(f"tcp://*:{port}") as socket, subscribed(f"tcp://127.0.0.1:{port}", batches):
            await send_until_heard(socket, batches)
            for frames in ((b"",), (b"", b"7", EMPTY), (b"", number(1), EMPTY, b""), (b"", number(1 << 40), b"\xc1")):
                await socket.send_multipart(frames)
            await eventually(lambda: batches.unreadable == 4)
            await eventually(lambda: "some KV events cannot be read" in caplog.text)
    said = [record.getMessage() for record in caplog.records]
    assert sum("reading its KV events" in line for line in said) == 1
    assert sum("cannot be read" in line for line in said) == 1


async def test_a_replay_that_nobody_answers_ends_and_what_follows_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_subscriber, "REPLAY_TIMEOUT", 0.05)
    port, batches = free_port(), reader()
    async with (
        publisher(f"tcp://*:{port}") as socket,
        subscribed(f"tcp://127.0.0.1:{port}", batches, f"tcp://127.0.0.1:{free_port()}"),
    ):
        sent = await send_until_heard(socket, batches)
        await eventually(lambda: batches.received > 0)
        await socket.send_multipart((b"", number(sent + 5), EMPTY))
        await eventually(lambda: batches.lost >= 5)
        await socket.send_multipart((b"", number(sent + 6), EMPTY))
        await eventually(lambda: batches._next == sent + 7)


async def test_an_endpoint_that_another_process_has_bound_is_bound_when_it_is_free(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_subscriber, "_RETRY", 0.01)
    tries, run = 0, kv_subscriber._Subscription.run

    async def count(subscription: kv_subscriber._Subscription) -> None:
        nonlocal tries
        tries += 1
        await run(subscription)

    monkeypatch.setattr(kv_subscriber._Subscription, "run", count)
    endpoint = f"tcp://*:{free_port()}"
    first, second = reader(), reader()
    async with publisher(endpoint.replace("*", "127.0.0.1")) as socket:
        async with subscribed(endpoint, first):
            await send_until_heard(socket, first)
            async with subscribed(endpoint, second):
                await eventually(lambda: tries > 5)
        async with subscribed(endpoint, second):
            await send_until_heard(socket, second)
    assert caplog.text.count("Address already in use") == 1


async def test_the_log_says_if_an_engine_computes_prompts_and_publishes_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_subscriber, "QUIET_INTERVAL", 0.01)
    batches = reader()
    async with subscribed(f"tcp://127.0.0.1:{free_port()}", batches):
        for prompt in range(kv_subscriber.MANY_PROMPTS):
            assert "no KV events" not in caplog.text
            batches.blocks.learn(PromptChain([1], [64]), ",".join(str(prompt * 100 + n) for n in range(16)).encode())
        await eventually(lambda: "no KV events at tcp://127.0.0.1" in caplog.text)
    assert "exactly one side must bind" in caplog.text


async def test_the_log_says_if_two_engines_publish_at_one_endpoint(caplog: pytest.LogCaptureFixture) -> None:
    endpoint, batches = f"tcp://*:{free_port()}", reader()
    connected = endpoint.replace("*", "127.0.0.1")
    with caplog.at_level(logging.INFO, "roundhouse.engines"):
        async with subscribed(endpoint, batches), publisher(connected) as one, publisher(connected) as two:

            async def is_said() -> bool:
                for socket in (one, two):
                    await socket.send_multipart((b"", number(7), EMPTY))
                return "only one engine may publish at tcp://" in caplog.text

            await eventually(is_said)
    assert caplog.text.count("only one engine may publish") == 1
