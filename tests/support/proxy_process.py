"""A TcpProxy between routers and Redis, in its own process, with faults on command.

`python -m tests.support.proxy_process NAME PORT:TARGET …` listens on each PORT of this machine and forwards to TARGET.
It reads a ConnectionFault as JSON from each line of its standard input, and prints the number of affected connections
for each.

A connection belongs to a router if it has set NAME as its client name. Other connections (of a Sentinel, a replica, a
test) are never affected.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final, Literal

from tests.support.paths import ROOT
from tests.support.tcp_proxy import ConnectionKind, ProxiedConnection, TcpProxy
from tests.support.waiting import next_line

_READY: Final = "ready"

FaultAction = Literal["hold", "lose", "delay", "cut"]


@dataclass(frozen=True, slots=True)
class ConnectionFault:
    """A fault, and the connections that it affects.

    - `what`: `hold` forwards nothing in either direction, and then everything. `lose` forwards commands and holds the
      replies, and then cuts: the commands are executed but their replies are lost. `delay` forwards each piece `late`
      seconds later. `cut` breaks the connections at once.
    - `pick`: of the connections of this kind, the one at this share (0 to 1) of the list; None: all of them.
    """

    what: FaultAction
    kind: ConnectionKind | Literal["any"] = "any"
    seconds: float = 0.0
    late: float = 0.0
    pick: float | None = None

    def select(self, connections: list[ProxiedConnection]) -> list[ProxiedConnection]:
        routers = [each for each in connections if each.is_named and not each.is_cut]
        matching = [each for each in routers if self.kind in ("any", each.kind or "commands")]
        if self.pick is not None and matching:
            matching = [matching[min(int(self.pick * len(matching)), len(matching) - 1)]]
        return matching

    async def apply(self, connection: ProxiedConnection) -> None:
        match self.what:
            case "hold":
                connection.hold()
                await asyncio.sleep(self.seconds)
                connection.open()
            case "lose":
                connection.replies.clear()
                await asyncio.sleep(self.seconds)
                connection.cut()
            case "delay":
                connection.delay = self.late
                await asyncio.sleep(self.seconds)
                connection.delay = 0.0
            case "cut":
                connection.cut()


async def _run(name: str, ports: Mapping[int, int]) -> None:
    proxies = [TcpProxy(target, name=name) for target in ports.values()]
    for proxy, port in zip(proxies, ports, strict=True):
        await proxy.start(port)
    tasks: set[asyncio.Task[None]] = set()
    sys.stdout.write(f"{_READY}\n")
    sys.stdout.flush()
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():  # ends when the parent process closes the pipe
        fault = ConnectionFault(**json.loads(line))
        affected = fault.select([each for proxy in proxies for each in proxy.connections])
        for connection in affected:
            tasks.add(task := asyncio.create_task(fault.apply(connection)))
            task.add_done_callback(tasks.discard)
        sys.stdout.write(f"{len(affected)}\n")
        sys.stdout.flush()
    os._exit(0)  # without cleanup: its clients are gone too


class ProxyProcess:
    """A proxy in its own process, so that a busy test does not slow Redis down. `ports`: target by port."""

    def __init__(self, name: str, ports: Mapping[int, int]) -> None:
        self._arguments = [name, *(f"{port}:{target}" for port, target in ports.items())]
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Raises RuntimeError if it does not start, since a port is in use, and TimeoutError if it does neither."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", __name__, *self._arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        if await self._read_line() != _READY:
            raise RuntimeError("the proxy did not start")

    async def inject(self, order: ConnectionFault) -> int:
        """Returns the number of affected connections."""
        assert self._process is not None
        assert self._process.stdin is not None
        async with self._lock:
            self._process.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
            return int(await self._read_line())

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def _read_line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        return (await next_line(self._process.stdout)).decode().strip()


def main() -> None:
    name, *ports = sys.argv[1:]
    asyncio.run(_run(name, {int(port): int(target) for port, _, target in (pair.partition(":") for pair in ports)}))


if __name__ == "__main__":
    main()
