"""In-memory connections between simulated processes.

Theory of operation. A wire has two ends and two directions. Each direction delivers data in the order in which they
were written, each after a delay. A fault affects one direction (data are held or lost) or the whole wire (it is cut).
Each end learns of a cut after a delay of its own, so for a while each side may take the other for connected. Data
written before a cut are delivered or lost.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Final, Protocol

from tests.simulation.clock import CLOCK
from tests.simulation.loop import SimulatedProcess, VirtualLoop

Address = tuple[str, int] | str
CLIENT: Final = 0
SERVER: Final = 1
_MAX_READ: Final = 256 * 1024  # bytes that asyncio reads from a socket at once


class SimulatedServer(Protocol):
    """Accepts connections; returns a protocol for each."""

    process: SimulatedProcess

    def accept(self) -> asyncio.BaseProtocol: ...


class SimulatedNetwork:
    """All servers, and the wires to them. `trace` is called with each event of a wire."""

    def __init__(self, loop: VirtualLoop, random: Random, trace: Callable[[str], object] = lambda _: None) -> None:
        self.loop = loop
        self.random = random
        self.trace = trace
        self.servers: dict[Address, SimulatedServer] = {}
        self.wires: dict[int, Wire] = {}
        self.slow = 1.0
        """By how much delays are longer than usual."""
        self.resets_lose = True
        """Whether the connections of a killed process, and aborted ones, may lose what was written before."""
        self.unreachable: dict[str, float] = {}
        """Until when a process can open no connection, by its name."""
        self._number = 0
        self._last_port = 10_000

    def delay(self) -> float:
        """Random delay of a message in seconds."""
        draw = self.random.random()
        base = 0.0002 + 0.0006 * draw if draw < 0.97 else 0.001 + 0.02 * self.random.random()
        return base * self.slow

    async def connect(self, factory: Callable[[], Any], place: Address) -> tuple[Any, Any]:
        """Raises ConnectionRefusedError if no server has this address."""
        loop = self.loop
        process = loop.process
        connected: asyncio.Future[None] = loop.create_future()

        def on_connected() -> None:
            if connected.done():
                return
            if place in self.servers:
                connected.set_result(None)
            else:
                connected.set_exception(ConnectionRefusedError(f"nobody listens at {place}"))

        start = max(CLOCK.now, self.unreachable.get(process.name, 0.0))
        loop.deliver(process, start + 2 * self.delay(), on_connected)
        await connected
        server = self.servers.get(place)
        if server is None:
            raise ConnectionRefusedError(f"nobody listens at {place}")
        self._number += 1
        # The server may be gone by now, although it was there when the connection was established.
        wire = Wire(self, self._number, process, server.process)
        self.wires[wire.number] = wire
        protocol = factory()
        near, far = wire.ends
        near.begin(protocol)
        loop.deliver(server.process, CLOCK.now + self.delay(), lambda: far.begin(server.accept()))
        protocol_ready = loop.create_future()
        loop.call_soon(_resolve, protocol_ready)
        try:
            await protocol_ready
        except BaseException:
            near.close()
            raise
        return near, protocol

    def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], process: SimulatedProcess, host: str, port: int
    ) -> "Listener":
        """As a server of asyncio. Port 0 is a free one."""
        while not port or (host, port) in self.servers:
            self._last_port += 1
            port = self._last_port
        self.servers[host, port] = listener = Listener(self, factory, process, (host, port))
        return listener

    def wires_of(self, process: SimulatedProcess) -> "list[Wire]":
        return [wire for wire in self.wires.values() if any(end.process is process for end in wire.ends)]

    def kill(self, process: SimulatedProcess) -> None:
        """End a process. What it has written may still arrive; then the other side sees the connection close."""
        process.dead = True
        for wire in self.wires_of(process):
            gone = wire.ends[CLIENT] if wire.ends[CLIENT].process is process else wire.ends[SERVER]
            gone.lost = True
            wire.close_from(gone.side, reset=self.random.random() < 0.5 and self.resets_lose)


class Listener:
    """A server of this address, until it is closed; its interface is that of asyncio.Server."""

    def __init__(
        self, network: SimulatedNetwork, factory: Callable[[], asyncio.BaseProtocol], process: SimulatedProcess,
        address: tuple[str, int],
    ) -> None:  # fmt: skip
        self.process = process
        self.accept = factory
        self.sockets = [_Socket(address, address)]
        self._network = network
        self._address = address

    def close(self) -> None:
        self._network.servers.pop(self._address, None)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class Wire:
    """One connection. `hold` delays one direction until an instant; `cut` ends the connection."""

    def __init__(
        self, network: SimulatedNetwork, number: int, client: SimulatedProcess, server: SimulatedProcess
    ) -> None:
        self.network = network
        self.number = number
        self.ends = (WireEnd(self, CLIENT, client), WireEnd(self, SERVER, server))
        self.is_cut = False
        self.fault: Callable[[Wire, bytes], bool] | None = None
        """Called with the next that the client writes; whether this is to be sent in the usual way."""
        self._held = [0.0, 0.0]
        self._last = [0.0, 0.0]
        self._on_way: tuple[deque[bytes | None], deque[bytes | None]] = (deque(), deque())

    def __repr__(self) -> str:
        return f"wire {self.number} {self.ends[CLIENT].process}-{self.ends[SERVER].process}"

    def send(self, side: int, data: bytes) -> None:
        """Send from a side to the other."""
        if self.is_cut:
            return
        if side == CLIENT and self.fault is not None:
            fault, self.fault = self.fault, None
            if not fault(self, data):
                return
        for start in range(0, max(1, len(data)), _MAX_READ):
            self.transmit(side, data[start : start + _MAX_READ])

    def transmit(self, side: int, data: bytes | None) -> None:
        """Send regardless of `fault`; None is the end of the stream."""
        network = self.network
        # `_last`: as in TCP, no message overtakes the one before it.
        arrival = max(CLOCK.now + network.delay(), self._held[side], self._last[side])
        self._last[side] = arrival
        self._on_way[side].append(data)
        network.loop.deliver(self.ends[1 - side].process, arrival, self._arrive, side)

    def _arrive(self, side: int) -> None:
        on_way = self._on_way[side]
        if on_way:  # else it is lost
            data = on_way.popleft()
            end = self.ends[1 - side]
            if data is None:
                end.peer_closed()
            else:
                end.receive(data)

    def hold(self, side: int, until: float) -> None:
        """Data written by a side from now on arrive at `until` at the earliest."""
        self._held[side] = max(self._held[side], until)

    def lose(self, side: int) -> None:
        """Drop the data that a side has written and that have not arrived."""
        self._on_way[side].clear()

    def close_from(self, side: int, *, reset: bool) -> None:
        """A side closes. With `reset`, its data that have not arrived are lost."""
        if self.is_cut:
            return
        if reset:
            self.lose(side)
        self.transmit(side, None)

    def cut(self, notice: tuple[float, float]) -> None:
        """Stop all data; each side learns of it after its delay in seconds."""
        if self.is_cut:
            return
        self.is_cut = True
        for end, after in zip(self.ends, notice, strict=True):
            self.network.loop.deliver(end.process, CLOCK.now + after, end.wire_cut)

    def remove_if_closed(self) -> None:
        if all(end.lost for end in self.ends):
            self.network.wires.pop(self.number, None)


class WireEnd(asyncio.Transport):
    """One end of a wire, as an asyncio transport."""

    def __init__(self, wire: Wire, side: int, process: SimulatedProcess) -> None:
        super().__init__()
        self.wire = wire
        self.side = side
        self.process = process
        self.lost = False
        self._protocol: Any = None
        self._closing = False
        self._paused = False
        self._unread: deque[bytes | None] = deque()
        """What has arrived while it was paused; None is the end of the stream."""
        self._early: list[Callable[[], object]] = []

    def begin(self, protocol: Any) -> None:
        self.wire.network.loop.call_soon(self._begin, protocol)

    def _begin(self, protocol: Any) -> None:
        self._protocol = protocol
        protocol.connection_made(self)
        early, self._early = self._early, []
        for event in early:
            event()

    def receive(self, data: bytes) -> None:
        self._arrive(lambda: self.receive(data), data)

    def peer_closed(self) -> None:
        self._arrive(self.peer_closed, None)

    def _arrive(self, event: Callable[[], object], data: bytes | None) -> None:
        if self.lost:
            return
        if self._protocol is None:
            self._early.append(event)
        elif self._paused or self._unread:
            self._unread.append(data)
        else:
            self._read(data)

    def _read(self, data: bytes | None) -> None:
        if self._closing or self.lost:
            return
        if data is not None:
            self._protocol.data_received(data)
        else:
            self._protocol.eof_received()
            self._closing = True
            self._close(None)

    def wire_cut(self) -> None:
        if self._protocol is None:
            self._early.append(self.wire_cut)
        elif not self.lost:
            self._closing = True
            self._close(ConnectionResetError("the connection was cut"))

    def _close(self, error: Exception | None) -> None:
        if not self.lost:
            self.lost = True
            self.wire.network.loop.call_soon(self._connection_lost, error)

    def _connection_lost(self, error: Exception | None) -> None:
        self._protocol.connection_lost(error)
        self.wire.remove_if_closed()

    # -- asyncio.Transport --------------------------------------------------------------------------------------------

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def write(self, data: bytes) -> None:  # type: ignore[override]
        if not self._closing:
            self.wire.send(self.side, bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.wire.close_from(self.side, reset=False)
            self._close(None)

    def abort(self) -> None:
        if not self._closing:
            self._closing = True
            network = self.wire.network
            self.wire.close_from(self.side, reset=network.resets_lose and network.random.random() < 0.2)
            self._close(None)

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._read_next()

    def _read_next(self) -> None:
        # As asyncio: not within resume_reading, and one read at a time.
        if self._unread:
            self.wire.network.loop.call_soon(self._read_unread)

    def _read_unread(self) -> None:
        if self._unread and not self._paused:
            self._read(self._unread.popleft())
            self._read_next()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        own, peer = (self.process.name, 0), (self.wire.ends[1 - self.side].process.name, 0)
        return {"socket": _Socket(own, peer), "sockname": own, "peername": peer}.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass  # a write never waits


class _Socket:
    """The part of a socket that setting keep-alive and uvicorn need."""

    def __init__(self, own: tuple[str, int], peer: tuple[str, int]) -> None:
        self._own = own
        self._peer = peer

    def setsockopt(self, *_: object) -> None:
        pass

    def getsockname(self) -> tuple[str, int]:
        return self._own

    def getpeername(self) -> tuple[str, int]:
        return self._peer

    def fileno(self) -> int:
        return -1
