"""An engine of minimal cost: a bare protocol that answers every chat with the same text.

    .venv/bin/python -m benchmarks.bare_engine PORT [--interval 5] [--events 500] [--vllm]

A streamed chat gets 66 events, or the number given by `--events` (the role, pieces of text, `[DONE]`), each in its own
write and `--interval` milliseconds apart. Any other request with a body gets 1.2 KB of JSON, and a request without a
body an empty page.

With `--vllm`, its /v1/models says that it is vLLM, and its events are vLLM's: with the ids of their tokens where the
request asks for them.
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


def _event(delta: dict[str, str], finish: str | None = None, **more: object) -> bytes:
    """`more`: further fields of the choice."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, **more}
    return _framed(b"data: %b\n\n" % _json({**CHUNK, "choices": [choice]}))


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


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


def vllm_events(count: int, *, token_ids: bool) -> list[bytes]:
    """The same stream in the layout of vLLM 0.32, with a prompt of 400 tokens."""
    *content, last = _pieces(count - 2)
    role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    prompt = {"prompt_token_ids": [1000 + number for number in range(400)] if token_ids else None, "prompt_text": None}
    ids = [[10_000 + number] if token_ids else None for number in range(len(content))]
    end = {"stop_reason": None, "token_ids": [2] if token_ids else None}
    return [
        _framed(b"data: %b\n\n" % _json({**CHUNK, "choices": [role], **prompt})),
        *[_event({"content": piece}, token_ids=each) for piece, each in zip(content, ids, strict=True)],
        _event({"content": last}, "stop", **end),
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
MODELS: Final = _json_response(_json({"data": [{"id": "bare", "owned_by": "vllm", "max_model_len": 8192}]}))


class BareEngine(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, interval: float, events: list[bytes], events_with_ids: list[bytes] | None = None) -> None:
        """`interval` in seconds; `events`: the events of every stream.

        `events_with_ids`: of one that asks for token ids; None for an engine that is not vLLM.
        """
        self._interval = interval
        self._events = self._plain_events = events
        self._events_with_ids = events_with_ids
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
            is_list = self._events_with_ids is not None and head.startswith(b"GET /v1/models")
            self._transport.write(MODELS if is_list else EMPTY)
        elif b'"stream":true' in body or b'"stream": true' in body:
            self._transport.write(STREAM_HEAD)
            asks = self._events_with_ids is not None and b'"return_token_ids":true' in body
            self._events = self._events_with_ids if asks and self._events_with_ids else self._plain_events
            self._send_event(0)
        else:
            self._transport.write(JSON)

    def _send_event(self, number: int) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(self._events[number])
        if number + 1 < len(self._events):
            asyncio.get_running_loop().call_later(self._interval, self._send_event, number + 1)


async def serve(port: int, interval: float, events: list[bytes], events_with_ids: list[bytes] | None = None) -> None:
    server = await asyncio.get_running_loop().create_server(
        lambda: BareEngine(interval, events, events_with_ids), "127.0.0.1", port, backlog=4096
    )
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--interval", type=float, default=0.0, help="milliseconds between two events")
    parser.add_argument("--events", type=int, default=EVENTS, help="events of a stream, at least 3")
    parser.add_argument("--vllm", action="store_true", help="look like vLLM, with token ids where they are asked for")
    arguments = parser.parse_args()
    streams: tuple[list[bytes], list[bytes] | None] = (events(arguments.events), None)
    if arguments.vllm:
        streams = vllm_events(arguments.events, token_ids=False), vllm_events(arguments.events, token_ids=True)
    uvloop.run(serve(arguments.port, arguments.interval / 1000, *streams))
