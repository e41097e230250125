"""The requests per second at which one core of Redis is fully used, with the commands of real routers.

The commands of a hit and of a JSON miss are recorded byte for byte from a router (recording.py). Several processes
(replay_client.py) then send them, with keys of their own for misses, as routers do: one batch at a time, each with the
same phase of several requests. Some of the processes also receive notifications, as every router does.

`per_second` is by the clock, `core_share` the share of Redis' core in that time, and `per_core` = requests / CPU time.
Where `core_share` is near 1, both rates agree: Redis was saturated. Below it, the clients were the limit, and
`per_core` is what Redis could carry.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.redis_limits.costs import Cost, cost_of, pinned
from lab.redis_limits.recording import Recording, record
from lab.redis_limits.usage import read_usage
from tests.support.redis_deployments import tcp_server
from tests.support.redis_process import RedisServer


async def saturate(batches: Sequence[int], seconds: float, clients: int, routers: int) -> list[Cost]:
    """`routers`: so many of the clients receive notifications, at most all of them."""
    async with pinned(tcp_server()) as redis:
        (server,) = redis.servers
        recording = await record(server)
        return [
            await _replayed(server, recording, what, batch, seconds, clients, min(routers, clients))
            for what in ("hit", "miss")
            for batch in batches
        ]


async def _replayed(
    server: RedisServer, recording: Recording, what: str, batch: int, seconds: float, clients: int, routers: int
) -> Cost:
    phases = recording.hit if what == "hit" else recording.miss
    facts = {
        "phases": [phase.decode("latin-1") for phase in phases], "digest": recording.digest.decode(),
        "listener": recording.listener.decode("latin-1"), "renamed": what == "miss",
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recording.json"
        path.write_text(json.dumps(facts))
        started, before = time.monotonic(), await read_usage(server)
        results = await asyncio.gather(
            *(_client(server.port, path, batch, seconds, listens=number < routers) for number in range(clients))
        )
        used, took = (await read_usage(server)).minus(before), time.monotonic() - started
    requests = sum(result["sent"] for result in results)
    # Only while all clients send: they need a moment to start.
    busy = max(result["seconds"] for result in results)
    if what == "miss":
        await server.command("FLUSHALL", "SYNC")  # the memory of one measurement is free for the next
    return {
        "what": what, "batch": batch, "clients": clients, "routers": routers, "phases": len(phases),
        "per_second": round(sum(result["requests"] / result["seconds"] for result in results)),
        "commands_per_second": round(sum(result["replies"] / result["seconds"] for result in results)),
        "core_share": round(used.cpu / busy, 3), "seconds": round(took, 2), **cost_of(used, requests),
    }  # fmt: skip


async def _client(port: int, path: Path, batch: int, seconds: float, *, listens: bool) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "lab.redis_limits.replay_client", str(port), str(path),
        "--batch", str(batch), "--seconds", str(seconds), *(["--listen"] if listens else []),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"a client has failed with {process.returncode}")
    result: dict[str, Any] = json.loads(output)
    return result
