"""An engine of minimal cost: a bare protocol that answers every chat with the same text.

    python benchmarks/bare_engine.py PORT [--interval 5] [--events 500]

A streamed chat gets 66 events, or the number given by `--events` (the role, pieces of text, `[DONE]`), each in its own
write and `--interval` milliseconds apart. Any other request with a body gets 1.2 KB of JSON, and a request without a
body an empty page.
"""

import argparse
import asyncio
import json
from typing import Final, cast

import uvloop

EVENTS: Final = 66
"""The default number of events of a stream."""

CHUNK: Final = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 1, "model": "bare"}
USAGE: Final = {"prompt_tokens": 400, "total_tokens": 464, "completion_tokens": 64}


def _pieces(count: int) -> list[str]:
    return [f" answer piece {number:03d} ok" for number in range(count)]


def _event(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    data = json.dumps({**CHUNK, "choices": [choice]}, separators=(",", ":")).encode()
    return _framed(b"data: %b\n\n" % data)


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def events(count: int) -> list[bytes]:
    """A stream of `count` events, as HTTP/1.1 chunks."""
    *content, last = _pieces(count - 2)
    return [
        _event({"role": "assistant", "content": ""}),
        *[_event({"content": piece}) for piece in content],
        _event({"content": last}, "stop"),
        _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n",
    ]


STREAM_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _chat_response() -> bytes:
    message = {"role": "assistant", "content": "".join(_pieces(64))}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    body = {**CHUNK, "object": "chat.completion", "choices": [choice], "usage": USAGE}
    return _json_response(json.dumps(body).encode())


def _json_response(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


JSON: Final = _chat_response()
EMPTY: Final = _json_response(b"")


class BareEngine(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, interval: float, events: list[bytes]) -> None:
        """`interval` in seconds; `events`: the events of every stream."""
        self._interval = interval
        self._events = events
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
        if len(body) < int(length or 0):
            return
        self._received = b""
        if not body:
            self._transport.write(EMPTY)
        elif b'"stream":true' in body or b'"stream": true' in body:
            self._transport.write(STREAM_HEAD)
            self._send_event(0)
        else:
            self._transport.write(JSON)

    def _send_event(self, number: int) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(self._events[number])
        if number + 1 < len(self._events):
            asyncio.get_running_loop().call_later(self._interval, self._send_event, number + 1)


async def serve(port: int, interval: float, events: list[bytes]) -> None:
    server = await asyncio.get_running_loop().create_server(
        lambda: BareEngine(interval, events), "127.0.0.1", port, backlog=4096
    )
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--interval", type=float, default=0.0, help="milliseconds between two events")
    parser.add_argument("--events", type=int, default=EVENTS, help="events of a stream, at least 3")
    arguments = parser.parse_args()
    uvloop.run(serve(arguments.port, arguments.interval / 1000, events(arguments.events)))
