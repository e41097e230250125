"""A TCP proxy between routers and Redis, in its own process, that holds, delays and cuts connections on command.

`python tcp_proxy.py NAME PORT:TARGET …` listens on each PORT of this machine and forwards to TARGET. It reads a
ConnectionFault as JSON from each line of its standard input, and prints the number of affected connections for each.

A connection belongs to a router if it has set NAME as its client name. If it has also sent CLIENT TRACKING, it is a
listening connection. Other connections (of a Sentinel, a replica, a test) are never affected.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

_READY: Final = "ready"
_PREFIX_SIZE: Final = 4096  # bytes; a router's handshake fits into them
_READ_SIZE: Final = 65536

ConnectionKind = Literal["listening", "commands", "any"]
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
    kind: ConnectionKind = "any"
    seconds: float = 0.0
    late: float = 0.0
    pick: float | None = None


class ProxiedConnection:
    """One connection: bytes pass in each direction while its gate is open."""

    def __init__(self, named: re.Pattern[bytes], client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.delay = 0.0
        self.is_cut = False
        self.commands, self.replies = asyncio.Event(), asyncio.Event()
        self.commands.set()
        self.replies.set()
        self._named = named
        self._writers = (client, server)
        self._begun = b""

    def kind(self) -> ConnectionKind | None:
        """None for a connection that is not a router's."""
        if self._named.search(self._begun) is None:
            return None
        return "listening" if b"TRACKING" in self._begun else "commands"

    async def forward(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        """Forwards everything from the source, until it ends or the connection is cut."""
        while piece := await source.read(_READ_SIZE):
            # Only the client's first bytes name the connection and its kind.
            if gate is self.commands and len(self._begun) < _PREFIX_SIZE:
                self._begun += piece
            if self.delay:
                await asyncio.sleep(self.delay)
            # After the read, so that one piece per direction is in the proxy while the gate is closed.
            await gate.wait()
            target.write(piece)
            await target.drain()

    async def apply_fault(self, order: ConnectionFault) -> None:
        match order.what:
            case "hold":
                self.commands.clear()
                self.replies.clear()
                await asyncio.sleep(order.seconds)
                self.commands.set()
                self.replies.set()
            case "lose":
                self.replies.clear()
                await asyncio.sleep(order.seconds)
                self.cut()
            case "delay":
                self.delay = order.late
                await asyncio.sleep(order.seconds)
                self.delay = 0.0
            case "cut":
                self.cut()

    def cut(self) -> None:
        self.is_cut = True
        for writer in self._writers:
            writer.transport.abort()


class TcpProxy:
    """The connections of all ports."""

    def __init__(self, name: str) -> None:
        # A RESP array, in which each word follows its length, or an inline command.
        self._named = re.compile(rb"SETNAME(\r\n\$\d+\r\n| )%b\r\n" % re.escape(name.encode()))
        self._connections: list[ProxiedConnection] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, port: int, target: int) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(reader, writer, target)

        await asyncio.start_server(serve, "127.0.0.1", port)

    def apply_fault(self, order: ConnectionFault) -> int:
        """Returns the number of affected connections."""
        kinds = ("listening", "commands") if order.kind == "any" else (order.kind,)
        matching = [
            connection for connection in self._connections if connection.kind() in kinds and not connection.is_cut
        ]
        if order.pick is not None and matching:
            matching = [matching[min(int(order.pick * len(matching)), len(matching) - 1)]]
        for connection in matching:
            task = asyncio.create_task(connection.apply_fault(order))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return len(matching)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int) -> None:
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", target)
        except OSError:
            writer.transport.abort()
            return
        proxied = ProxiedConnection(self._named, writer, to_server)
        self._connections.append(proxied)
        forwarders = [
            asyncio.ensure_future(proxied.forward(reader, to_server, proxied.commands)),
            asyncio.ensure_future(proxied.forward(from_server, writer, proxied.replies)),
        ]
        try:
            await asyncio.wait(forwarders, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._connections.remove(proxied)
            for forwarder in forwarders:
                forwarder.cancel()
            await asyncio.gather(*forwarders, return_exceptions=True)  # broken connections are expected here
            proxied.cut()


async def _run(name: str, ports: Mapping[int, int]) -> None:
    proxy = TcpProxy(name)
    for port, target in ports.items():
        await proxy.listen(port, target)
    sys.stdout.write(f"{_READY}\n")
    sys.stdout.flush()
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():  # ends when the parent process closes the pipe
        sys.stdout.write(f"{proxy.apply_fault(ConnectionFault(**json.loads(line)))}\n")
        sys.stdout.flush()
    os._exit(0)  # without cleanup: its clients are gone too


class ProxyProcess:
    """A proxy in its own process, so that a busy test does not slow Redis down. `ports`: target by port."""

    def __init__(self, name: str, ports: Mapping[int, int]) -> None:
        self._arguments = [name, *(f"{port}:{target}" for port, target in ports.items())]
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Raises RuntimeError if it does not start, since a port is in use."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, str(Path(__file__)), *self._arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE
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
        return (await self._process.stdout.readline()).decode().strip()


def main() -> None:
    name, *ports = sys.argv[1:]
    asyncio.run(_run(name, {int(port): int(target) for port, _, target in (pair.partition(":") for pair in ports)}))


if __name__ == "__main__":
    main()
