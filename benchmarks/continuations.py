"""The delay that a client sees where another engine goes on with its stream, and how many streams are what they were.

    .venv/bin/python -m benchmarks.continuations [--streams 200] [--at-once 10] [--after 20] [--json FILE]
    .venv/bin/python -m benchmarks.continuations --model NAME \\
        --engine http://127.0.0.1:8001 --engine http://127.0.0.1:8002

It starts a Redis, a router and two simulated engines that generate 100 tokens per second, or takes two running vLLM
servers (`--engine`). Between the router and each engine is a proxy, which resets the connection of every stream after
some events: what a router sees of an engine that is killed. A continuation is not cut. First each prompt is asked for
without a cut, then with one, where the next engine goes on by token ids, and then by text (a field that completions may
not know rules the ids out).

- gap: the time between two events at the client, where the first engine's are followed by the next one's. In it, the
  router notices the reset and sends a request; the next engine queues it, computes its prompt and generates a token.
- added: this gap less the median gap between two events of the unbroken streams.

The measured time is that of the clients, which run in this process with the proxies; the router and the engines do not.
"""

import argparse
import asyncio
import json
import socket
import statistics
import struct
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess
from tests.support.simulated_engine import SimulatedEngine

CONFIGURATION: Final = """
[router]
[cache]
url = "unix://{redis}"
[breaker]
failures = 1000000
[[model]]
name = "{model}"
"""
ENGINE: Final = """
[[engine]]
name = "{name}"
model = "{model}"
url = "http://127.0.0.1:{port}"
max_model_len = {length}
"""
WAYS: Final = {"by token ids": {}, "by text": {"a_field_of_chats": 1}}
RATE: Final = 100  # tokens per second of a simulated engine
TIMEOUT: Final = 120.0


class CuttingProxy:
    """A TCP proxy to an engine. `after`: events after which it resets the connection of a stream; 0: never.

    `passed`: the events with text that it let through before the reset, by the number in the prompt.
    """

    def __init__(self, engine: str) -> None:
        self.after = 0
        self.port = 0
        self.passed: dict[int, int] = {}
        address = urlsplit(engine)
        self._address = (address.hostname or "127.0.0.1", address.port or 80)

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine_reader, engine_writer = await asyncio.open_connection(*self._address)
        number: list[int] = []
        try:
            await asyncio.wait(
                [
                    asyncio.ensure_future(self._to_engine(reader, engine_writer, number)),
                    asyncio.ensure_future(self._to_router(engine_reader, writer, number)),
                ],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            engine_writer.close()
            writer.close()

    async def _to_engine(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: list[int]) -> None:
        while data := await reader.read(65536):
            # One read: the head and the body of these requests are small.
            if data.startswith(b"POST /v1/chat/completions") and b"continue_final_message" not in data:
                number[:] = [int(data.partition(b"Number ")[2].partition(b"?")[0])]
            elif data.startswith((b"POST", b"GET")):
                number.clear()
            writer.write(data)

    async def _to_router(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: list[int]) -> None:
        events = 0
        while data := await reader.read(65536):
            if not number:  # the response to something else
                events = 0
                writer.write(data)
                continue
            count = data.count(b"data: ")
            if self.after and events + count > self.after:
                self.passed[number[0]] = events - 1  # without that of the role
                # A reset and not an orderly close.
                options = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, options)
                writer.transport.abort()
                return
            events += count
            writer.write(data)


class Stream:
    """What a client got: the text, the instants of its events, and whether it ended well."""

    def __init__(self) -> None:
        self.text = ""
        self.at: list[float] = []
        self.ended_well = False


async def read_stream(http: httpx.AsyncClient, url: str, body: dict[str, Any]) -> Stream:
    stream = Stream()
    async with http.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                stream.ended_well = True
            elif line.startswith("data: {"):
                choices = json.loads(line[6:]).get("choices") or [{"delta": {}}]
                if text := choices[0]["delta"].get("content"):
                    stream.text += text
                    stream.at.append(time.perf_counter())
    return stream


async def run(url: str, options: argparse.Namespace, way: str, **fields: object) -> list[Stream]:
    gate = asyncio.Semaphore(options.at_once)
    limits = httpx.Limits(max_connections=None)

    async def one(number: int) -> Stream:
        messages = [{"role": "user", "content": f"Number {number}? Tell me about the sea."}]
        body = {"model": options.model, "messages": messages, "stream": True, "temperature": 0, **fields}
        body |= {"max_tokens": options.tokens, "ignore_eos": True}
        async with gate:
            return await read_stream(http, url, body)

    async with httpx.AsyncClient(
        timeout=TIMEOUT, limits=limits, headers={"cache-control": "no-store", "x-request-id": way.replace(" ", "-")}
    ) as http:
        return list(await asyncio.gather(*(one(number) for number in range(options.streams))))


def measure(streams: list[Stream], whole: list[Stream], passed: dict[int, int]) -> dict[str, Any]:
    usual = statistics.median([gap for stream in whole for gap in gaps(stream)])
    # A reset can discard what the router has not read yet, so the seam may be some events before.
    seams = sorted(_seam(gaps(streams[number]), count) for number, count in passed.items())
    equal = sum(one.text == other.text for one, other in zip(streams, whole, strict=True))
    result: dict[str, Any] = {"cut": len(passed), "ended_well": sum(stream.ended_well for stream in streams)}
    result |= {"equal": equal, "usual_gap_ms": round(usual * 1000, 1)}
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        gap = seams[min(len(seams) - 1, int(share * len(seams)))]
        result |= {f"gap_{name}_ms": round(gap * 1000, 1), f"added_{name}_ms": round((gap - usual) * 1000, 1)}
    return result


def _seam(between: list[float], count: int) -> float:
    # An engine's events without text count for the proxy and not for the client, so there may be fewer.
    return max(between[max(0, count - 3) : count + 1], default=max(between, default=0.0))


def gaps(stream: Stream) -> list[float]:
    return [later - at for at, later in zip(stream.at, stream.at[1:], strict=False)]


async def benchmark(options: argparse.Namespace) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        engines = list(options.engine)
        for _ in range(0 if engines else 2):
            simulated = SimulatedEngine(model=options.model, tokens_per_second=RATE, ttft_ms=20)
            engines.append((await stack.enter_async_context(simulated)).url)
        proxies = [CuttingProxy(engine) for engine in engines]
        for proxy in proxies:
            server = await proxy.start()
            stack.callback(server.close)
        redis = RedisServer()
        await redis.start()
        stack.callback(redis.remove)
        text = CONFIGURATION.format(redis=redis.socket, model=options.model)
        text += "".join(
            ENGINE.format(name=f"e{number}", model=options.model, port=proxy.port, length=options.max_model_len)
            for number, proxy in enumerate(proxies)
        )
        router = RouterProcess(Path(stack.enter_context(tempfile.TemporaryDirectory())), text)
        router.start()
        stack.callback(router.kill)
        await router.wait_until_ready()
        whole = await run(router.url, options, "unbroken")
        results: dict[str, Any] = {}
        for way, fields in WAYS.items():
            for proxy in proxies:
                proxy.after, proxy.passed = options.after, {}
            streams = await run(router.url, options, way, **fields)
            results[way] = measure(streams, whole, {**proxies[0].passed, **proxies[1].passed})
        return {"engines": "vLLM" if options.engine else "simulated", "streams": options.streams, "ways": results}


def main() -> None:
    parser = argparse.ArgumentParser(description="The delay where another engine goes on with a stream.")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=60, help="of each stream")
    parser.add_argument("--after", type=int, default=20, help="events after which a stream is cut")
    parser.add_argument("--engine", action="append", default=[], help="the URL of a running vLLM server; twice")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    if len(options.engine) not in (0, 2):
        parser.error("two engines are needed")
    result = asyncio.run(benchmark(options))
    lines = [
        "| way | cut | ended well | equal | usual gap | gap at the seam, p50 | p99 | added, p50 | p99 |",
        "|" + " --- |" * 9,
    ]
    for way, one in result["ways"].items():
        cells = [way, one["cut"], one["ended_well"], one["equal"], f"{one['usual_gap_ms']} ms"]
        cells += [f"{one[name]} ms" for name in ("gap_p50_ms", "gap_p99_ms", "added_p50_ms", "added_p99_ms")]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    sys.stdout.write("\n".join(lines) + "\n")
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
