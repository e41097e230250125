"""Publishes KV events over ZMQ as vLLM's ZmqEventPublisher. Needs pyzmq, so it is imported only if it is used.

- PUB socket: each batch is the three frames topic, number (8 bytes, big endian, from 0) and payload.
- ROUTER socket for replays: a request is an empty frame and the first number that is missing. The answers are an empty
  frame and the frames of a batch each; the last one has no topic, the number -1 and no payload.
- As in vLLM, an endpoint with a wildcard (`tcp://*:5557`) or of ipc or inproc is bound, and any other one is connected.
  The replay endpoint is always bound.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Iterator

import zmq

from engines.simulator.kv_cache.kv_events import KvEndpointError
from engines.simulator.kv_cache.kv_events_config import KvEventsConfig

END = (-1).to_bytes(8, "big", signed=True)


class ZmqKvPublisher:
    """Raises KvEndpointError if an endpoint cannot be used."""

    def __init__(self, config: KvEventsConfig) -> None:
        self._topic = config.topic.encode()
        self._number = 0
        self._batches: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        # The replays are served by a thread of their own, and sockets must not be shared by threads.
        self._lock = threading.Lock()
        self._context = zmq.Context()
        try:
            self._publishing = self._open_publishing(config)
            if config.replay_endpoint is not None:
                replaying = self._open_replaying(config.replay_endpoint)
                threading.Thread(target=self._serve_replays, args=(replaying,), daemon=True).start()
        except KvEndpointError:
            self._context.destroy()
            raise

    def send(self, payload: bytes) -> None:
        """Publishes one batch. Never waits."""
        with self._lock:
            self._batches.append((self._number, payload))
        self._publishing.send_multipart((self._topic, self._number.to_bytes(8, "big"), payload))
        self._number += 1

    def close(self) -> None:
        """Ends the thread too, whose socket belongs to the context."""
        self._publishing.close()
        # Waits until the thread has closed its socket.
        self._context.term()

    def _open_publishing(self, config: KvEventsConfig) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.PUB)
        socket.set(zmq.LINGER, 0)
        socket.set_hwm(config.hwm)
        with _naming(config.endpoint):
            open_endpoint = socket.bind if _is_bound(config.endpoint) else socket.connect
            open_endpoint(config.endpoint)
        return socket

    def _open_replaying(self, endpoint: str) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.ROUTER)
        socket.set(zmq.LINGER, 0)
        with _naming(endpoint):
            socket.bind(endpoint)
        return socket

    def _serve_replays(self, socket: "zmq.Socket[bytes]") -> None:
        with contextlib.suppress(zmq.ContextTerminated), socket:
            while True:
                frames = socket.recv_multipart()
                if len(frames) == 3:
                    client, _, start = frames
                    for answer in self._replay(start):
                        socket.send_multipart((client, b"", *answer))

    def _replay(self, start: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
        with self._lock:
            batches = list(self._batches)
        first = int.from_bytes(start, "big")
        for number, payload in batches:
            if number >= first:
                yield self._topic, number.to_bytes(8, "big"), payload
        yield b"", END, b""


def _is_bound(endpoint: str) -> bool:
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


@contextlib.contextmanager
def _naming(endpoint: str) -> Iterator[None]:
    try:
        yield
    except zmq.ZMQError as error:
        raise KvEndpointError(f"--kv-events-config: {endpoint}: {error}") from error
