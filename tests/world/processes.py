"""Routers and engines of a scenario. Each is a process of its own, reached over the network alone."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, NamedTuple

from engines.simulator.app import create_app
from engines.simulator.server import TransportProtocol
from engines.simulator.settings import SimulatorSettings
from router.api.protocol_messages import render
from router.net.client.transport import HTTPTransport
from router.net.server.connection import BoundedHttpProtocol
from router.net.server.timeouts import ClientTimeouts
from router.process.app import build
from router.process.application import Application
from router.settings import parse
from tests.simulation.clock import CLOCK
from tests.simulation.loop import SimulatedProcess, VirtualLoop
from tests.simulation.network import SimulatedNetwork
from tests.support.router_server import RouterClient, engine_tables
from tests.support.simulated_engine import EngineControls
from tests.world.http import PORT, HttpServer, open_client
from tests.world.kv_events import WorldKvEvents

_TICK: Final = 0.0005  # seconds until one process knows what another one tells it


class HostedProcess:
    """A process with a server at http://NAME:PORT."""

    def __init__(self, loop: VirtualLoop, network: SimulatedNetwork, name: str, port: int = PORT) -> None:
        self.name = name
        self.address = (name, port)
        self.url = f"http://{name}:{port}"
        self.process = SimulatedProcess(name)
        self.processes = [self.process]  # with those before a restart
        self._loop = loop
        self._network = network
        self._server: HttpServer

    def freeze(self) -> None:
        """As SIGSTOP: connections are accepted, and nothing is answered."""
        self._loop.freeze(self.process)

    def thaw(self) -> None:
        self._loop.thaw(self.process)

    def kill(self) -> None:
        """As SIGKILL: connections close, and new ones are refused."""
        self._network.servers.pop(self.address, None)
        self._network.kill(self.process)
        self._loop.freeze(
            self.process
        )  # keeps what its tasks wait for, so that the end of the scenario can cancel them

    async def run_inside(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Runs it in this process. Code outside must await it in this way: a future runs on where it is resolved."""
        outside, done = self._loop.process, asyncio.Event()
        task = self._loop.spawn(self.process, coroutine)
        task.add_done_callback(lambda _: self._loop.deliver(outside, CLOCK.now + _TICK, done.set))
        await done.wait()
        return task.result()

    def _renew_process(self) -> None:
        """Once killed, it is a new process."""
        if self.process.dead:
            self.process = SimulatedProcess(self.name)
            self.processes.append(self.process)


class WorldEngine(HostedProcess, EngineControls):
    """engines/simulator with these settings. Once killed, it can be started again."""

    def __init__(
        self, loop: VirtualLoop, network: SimulatedNetwork, name: str, settings: SimulatorSettings, port: int = PORT,
        kv_events: WorldKvEvents | None = None,
    ) -> None:  # fmt: skip
        EngineControls.__init__(self, open_client(""), settings.model, settings.served_names)
        HostedProcess.__init__(self, loop, network, name, port)
        self._settings = settings
        self._kv_events = kv_events if kv_events is not None else WorldKvEvents(loop)

    async def start(self) -> None:
        self._renew_process()
        await self.run_inside(self._listen())

    async def _listen(self) -> None:
        app = create_app(self._settings, partial(self._kv_events.publisher, self.name))
        self._server = HttpServer(self.name, app, TransportProtocol, self.address[1])
        await self._server.listen()


class WorldEngines(NamedTuple):
    """The engines of the default configuration; see EngineSet."""

    chat: WorldEngine
    code: WorldEngine
    mistral: WorldEngine

    def as_config(self) -> dict[str, tuple[str, str, str]]:
        return engine_tables(*(engine.url for engine in self))


class WorldRouter(HostedProcess, RouterClient):
    """A router with this configuration, in TOML. With the default `random`, the median, only the best engine is tried.

    Once killed, it can be started again, with an empty memory.
    """

    application: Application

    def __init__(
        self, loop: VirtualLoop, network: SimulatedNetwork, name: str, text: str,
        random: Callable[[], float] = lambda: 0.5, clock: float = 0.0, kv_events: WorldKvEvents | None = None,
    ) -> None:  # fmt: skip
        """`clock`: by how many seconds its wall clock is fast."""
        HostedProcess.__init__(self, loop, network, name)
        RouterClient.__init__(self, open_client(self.url))
        self._settings = parse(text, {})
        self._random = random
        self._clock = clock
        self._kv_events = kv_events if kv_events is not None else WorldKvEvents(loop)
        self._messages: asyncio.Queue[dict[str, Any]]

    async def start(self) -> None:
        self._renew_process()
        self.process.offset = self._clock
        await self.run_inside(self._start())

    async def stop(self) -> None:
        """As RouterServer: closes connections, waits for requests, and ends the application."""
        if self.process.is_running:
            await self.run_inside(self._stop())

    async def set_clients_read(self, is_reading: bool) -> None:
        """Whether the clients that are connected read what it sends."""
        await self.run_inside(self._server.set_writable(is_reading))

    async def reload(self, text: str) -> None:
        self._settings = parse(text, {})
        await self.run_inside(self.application.reload(self._settings))

    async def _start(self) -> None:
        settings = self._settings
        self.application = build(
            settings, transport=HTTPTransport(), random=self._random, subscribe=self._kv_events.subscribe
        )
        self._messages = asyncio.Queue()
        self._messages.put_nowait({"type": "lifespan.startup"})
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def send(message: Any) -> None:
            assert message["type"] in ("lifespan.startup.complete", "lifespan.shutdown.complete"), message
            if not started.done():
                started.set_result(None)

        self._lifespan = asyncio.ensure_future(self.application({"type": "lifespan"}, self._messages.get, send))
        await started
        protocol = partial(
            BoundedHttpProtocol,
            timeouts=ClientTimeouts(settings.router.receive, settings.router.send, settings.router.keep_alive),
            render_error=render,
            error_headers=self.application.error_headers,
        )
        self._server = HttpServer(self.name, self.application, protocol)
        await self._server.listen()

    async def _stop(self) -> None:
        await self._server.close()
        self._messages.put_nowait({"type": "lifespan.shutdown"})
        await self._lifespan
        # Every request has released its part of the body budget.
        assert self.application._process_state.body_budget.allocated == 0
