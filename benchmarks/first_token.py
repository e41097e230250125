"""The time that a router adds to the first token of a stream, compared with a direct connection to the engine.

    .venv/bin/python -m benchmarks.first_token [--streams 256 64] [--interval 20]

The given number of streams is open at once, each of 66 events `--interval` milliseconds apart. They start one after the
other at a constant rate, independent of the earlier ones (an open loop), and no two requests are equal. The engine
sends the role first and the first token an interval later; the time runs from the instant at which a request was due
until two events have arrived. The same is measured with a bare router (`bare_router.py`), which queries Redis twice as
Roundhouse does and does nothing else: any router in Python that does so adds at least this time. One router process,
its Redis, the engine and the clients share this machine.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import cast

from benchmarks.bare_engine import EVENTS
from benchmarks.load import bodies
from benchmarks.processes import bare_engine, bare_router, cpu_seconds, running_routers

ROUNDS = 4  # consecutive streams per open stream; the first is not counted


class Client(asyncio.Protocol):
    """One connection; reports the time of the first token of each request."""

    transport: asyncio.Transport

    def __init__(self, on_first_token: Callable[[float], None], on_end: Callable[["Client"], None]) -> None:
        """`on_first_token` is called with the seconds to each first token."""
        self._on_first_token = on_first_token
        self._on_end = on_end
        self._due = 0.0
        self._events = 0
        self._has_token = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def ask(self, body: bytes, due: float) -> None:
        self._due, self._events, self._has_token = due, 0, False
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\n"
        self.transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))

    def data_received(self, data: bytes) -> None:
        if not self._has_token:
            self._events += data.count(b"data: ")
            self._has_token = self._events > 1
            if self._has_token:
                self._on_first_token(time.perf_counter() - self._due)
        if data.endswith(b"0\r\n\r\n"):
            self._on_end(self)


async def first_token_times(port: int, bodies_: Iterator[bytes], streams: int, rate: float) -> list[float]:
    """Seconds to the first token of each request, in the order in which the tokens arrived."""
    idle: list[Client] = []
    seconds: list[float] = []
    all_idle = asyncio.Event()
    count = 2 * streams

    def on_end(client: Client) -> None:
        idle.append(client)
        if len(idle) == count:
            all_idle.set()

    for _ in range(count):
        _, client = await asyncio.get_running_loop().create_connection(
            lambda: Client(seconds.append, on_end), "127.0.0.1", port
        )
        idle.append(client)
    started = time.perf_counter()
    for number in range(streams * ROUNDS):
        due = started + number / rate
        await asyncio.sleep(due - time.perf_counter())
        if not idle:
            raise RuntimeError("twice as many streams are open as expected: the router cannot keep up")
        all_idle.clear()
        idle.pop().ask(next(bodies_), due)
    await all_idle.wait()
    for client in idle:
        client.transport.close()
    return seconds[streams:]


async def measure(streams: int, interval: float) -> dict[str, object]:
    rate = streams / (EVENTS * interval / 1000)
    async with bare_engine(interval) as port:
        direct = sorted(await first_token_times(port, bodies(stream=True), streams, rate))
    async with bare_router(interval) as (port, pid):
        bare, bare_cpu = await measure_router(port, pid, streams, rate)
    async with running_routers(interval=interval) as (router,):
        ours, cpu = await measure_router(router.port, router.process.pid, streams, rate)
    result: dict[str, object] = {"streams": streams, "streams_a_second": round(rate, 1)}
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        mine, least, engines = (round(times[int(share * len(times))] * 1000, 2) for times in (ours, bare, direct))
        result |= {f"{name}_ms": mine, f"engine_{name}_ms": engines}
        result |= {f"added_{name}_ms": round(mine - engines, 2), f"bare_added_{name}_ms": round(least - engines, 2)}
    return {**result, "cpu_ms_a_stream": cpu, "bare_cpu_ms_a_stream": bare_cpu}


async def measure_router(port: int, pid: int, streams: int, rate: float) -> tuple[list[float], float]:
    """Seconds to the first tokens, sorted, and milliseconds of CPU time of the process per stream."""
    before = cpu_seconds(pid)
    seconds = sorted(await first_token_times(port, bodies(stream=True), streams, rate))
    return seconds, round((cpu_seconds(pid) - before) / (streams * ROUNDS) * 1000, 3)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[256, 64])
    parser.add_argument("--interval", type=float, default=20.0)
    arguments = parser.parse_args()
    for streams in arguments.streams:
        print(json.dumps(await measure(streams, arguments.interval)), flush=True)


asyncio.run(main())
