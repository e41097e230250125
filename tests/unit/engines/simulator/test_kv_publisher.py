"""KV events over ZMQ, as a subscriber of vLLM reads them."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

zmq = pytest.importorskip("zmq", reason="pip install 'roundhouse-simulator[kv-events]'")

from engines.simulator.kv_cache.kv_events import KvEndpointError  # noqa: E402 - after the check
from engines.simulator.kv_cache.kv_events_config import KvEventsConfig  # noqa: E402
from engines.simulator.kv_cache.kv_publisher import ZmqKvPublisher  # noqa: E402
from tests.support.ports import free_port  # noqa: E402
from tests.support.simulated_engine import SimulatedEngine  # noqa: E402
from tests.support.waiting import TEST_TIMEOUT  # noqa: E402

Frames = list[bytes]
WAIT = 10_000  # milliseconds until a test fails


class Subscriber:
    """Sockets on loopback: `endpoint` is where the publisher connects, `replay` where it listens."""

    def __init__(self, topic: bytes = b"") -> None:
        self._context = zmq.Context()
        self._events = self._context.socket(zmq.SUB)
        self._events.set(zmq.SUBSCRIBE, topic)
        self.endpoint = f"tcp://127.0.0.1:{self._events.bind_to_random_port('tcp://127.0.0.1')}"
        self.replay = f"tcp://127.0.0.1:{free_port()}"

    @property
    def config(self) -> dict[str, Any]:
        endpoints = {"endpoint": self.endpoint, "replay_endpoint": self.replay}
        return {"enable_kv_cache_events": True, "topic": "kv@m", **endpoints}

    def poll(self, milliseconds: int = WAIT) -> bool:
        return bool(self._events.poll(milliseconds))

    def receive(self) -> Frames:
        assert self.poll()
        received: Frames = self._events.recv_multipart()
        return received

    def replay_from(self, number: int) -> list[Frames]:
        """The answers up to the last one."""
        with self._context.socket(zmq.DEALER) as socket:
            socket.connect(self.replay)
            socket.send_multipart((b"", number.to_bytes(8, "big")))
            answers: list[Frames] = []
            while not answers or answers[-1][2] != b"\xff" * 8:
                assert socket.poll(WAIT)
                answers.append(socket.recv_multipart())
            return answers

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
def subscriber() -> Iterator[Subscriber]:
    opened = Subscriber()
    yield opened
    opened.close()


@pytest.fixture
def publisher(subscriber: Subscriber) -> Iterator[ZmqKvPublisher]:
    opened = ZmqKvPublisher(KvEventsConfig(**subscriber.config))
    yield opened
    opened.close()


def subscribe(subscriber: Subscriber, publisher: ZmqKvPublisher) -> int:
    """Publishes until the publisher knows the subscriber; the number of the next batch."""
    while not subscriber.poll(20):
        publisher.send(b"early")
    publisher.send(b"last")
    while (frames := subscriber.receive())[2] != b"last":
        pass
    return int.from_bytes(frames[1], "big") + 1


def test_a_batch_has_its_topic_and_a_number_that_counts_up(subscriber: Subscriber, publisher: ZmqKvPublisher) -> None:
    number = subscribe(subscriber, publisher)
    publisher.send(b"one")
    publisher.send(b"two")
    assert subscriber.receive() == [b"kv@m", number.to_bytes(8, "big"), b"one"]
    assert subscriber.receive() == [b"kv@m", (number + 1).to_bytes(8, "big"), b"two"]


def test_missed_batches_are_replayed(subscriber: Subscriber, publisher: ZmqKvPublisher) -> None:
    for payload in (b"zero", b"one", b"two"):
        publisher.send(payload)
    numbers = [number.to_bytes(8, "big") for number in range(3)]
    end = [b"", b"", b"\xff" * 8, b""]
    missed = [[b"", b"kv@m", numbers[1], b"one"], [b"", b"kv@m", numbers[2], b"two"], end]
    assert subscriber.replay_from(1) == missed
    assert subscriber.replay_from(7) == [end]


def test_only_the_last_batches_can_be_replayed(subscriber: Subscriber) -> None:
    publisher = ZmqKvPublisher(KvEventsConfig(**subscriber.config, buffer_steps=2))
    for payload in (b"zero", b"one", b"two"):
        publisher.send(payload)
    assert [frames[3] for frames in subscriber.replay_from(0)] == [b"one", b"two", b""]
    publisher.close()


def test_an_endpoint_that_is_taken_is_named(subscriber: Subscriber, publisher: ZmqKvPublisher) -> None:
    with pytest.raises(KvEndpointError, match=rf"--kv-events-config: {subscriber.replay}: Address already in use"):
        ZmqKvPublisher(KvEventsConfig(**subscriber.config))


async def test_an_engine_publishes_what_its_prefix_cache_holds(subscriber: Subscriber) -> None:
    options: dict[str, Any] = {"kv_events_config": json.dumps(subscriber.config), "server_dev_mode": True}
    async with (
        SimulatedEngine(**options) as engine,
        httpx.AsyncClient(base_url=engine.url, timeout=TEST_TIMEOUT) as http,
    ):

        async def complete(prompt: list[int]) -> None:
            body = {"prompt": prompt, "max_tokens": 1}
            (await http.post("/v1/completions", json=body)).raise_for_status()

        await complete(list(range(1, 41)))
        assert (await http.post("/reset_prefix_cache")).json() == {"success": True}
        await complete(list(range(1, 21)))
        answers = await asyncio.to_thread(subscriber.replay_from, 0)
    batches = [msgspec.msgpack.decode(frames[3]) for frames in answers[:-1]]
    kinds = [(event["type"], event.get("token_ids")) for _, events, _ in batches for event in events]
    assert kinds == [
        ("BlockStored", list(range(1, 33))), ("AllBlocksCleared", None), ("BlockStored", list(range(1, 17))),
    ]  # fmt: skip
    assert [frames[1] for frames in answers] == [b"kv@m", b"kv@m", b""]


async def test_an_engine_with_events_ends_at_once(subscriber: Subscriber) -> None:
    engine = SimulatedEngine(kv_events_config=json.dumps(subscriber.config))
    await engine.start()
    assert await asyncio.wait_for(engine.stop(), TEST_TIMEOUT) == 0
