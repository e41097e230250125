"""Many concurrent streams: CPU time and memory per stream, and the time to the first event.

    .venv/bin/python -m benchmarks.streams [--streams 64 256 2000] [--seconds 13]

One router process, a Redis, an engine of minimal cost, and the clients, all on this machine. Every stream has 66
events, evenly distributed over `--seconds`, so 2,000 streams are about 10,000 events per second. CPU time is the
router's, as the scheduler counts it; memory is the growth of its resident memory while all streams are open.
"""

import argparse
import asyncio
import json
import resource

from benchmarks.bare_engine import EVENTS
from benchmarks.load import bodies, load
from benchmarks.processes import cpu_seconds, memory_kb, running_routers


async def measure(streams: int, seconds: float) -> dict[str, object]:
    async with running_routers(interval=seconds / EVENTS * 1000) as (router,):
        pid = router.process.pid
        await load(router.port, bodies(stream=False, name="warm"), connections=16, requests=64)
        memory, cpu = memory_kb(pid), cpu_seconds(pid)
        running = asyncio.create_task(load(router.port, bodies(stream=True), connections=streams, requests=streams))
        await asyncio.sleep(seconds * 0.6)
        grown = memory_kb(pid) - memory
        result = await running
        return {
            "streams": streams,
            "cpu_ms_a_stream": round((cpu_seconds(pid) - cpu) / streams * 1000, 3),
            "kb_a_stream": round(grown / streams, 1),
            "first_event_p50_ms": result.first_ms(0.5),
            "first_event_p99_ms": result.first_ms(0.99),
        }


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 256, 2000])
    parser.add_argument("--seconds", type=float, default=13.0)
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The router inherits it, and needs two sockets per stream.
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for streams in arguments.streams:
        print(json.dumps(await measure(streams, arguments.seconds)), flush=True)


asyncio.run(main())
