"""A simulated engine in its own process: uvicorn, with access to the connection for faults."""

import asyncio
import signal
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager

from uvicorn import Config, Server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from engines.simulator.app import create_app
from engines.simulator.settings import SimulatorSettings
from engines.simulator.wire import TRANSPORT_EXTENSION

READY = "simulator ready at "
"""Start of the line on stdout that reports that the server accepts connections; the URL follows."""


class TransportProtocol(HttpToolsProtocol):
    """Puts the connection's transport into the ASGI scope, for faults that break the connection."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {TRANSPORT_EXTENSION: self.transport}  # type: ignore[dict-item]  # ASGI does not type the value


class _SimulatorServer(Server):
    """Prints a line on stdout when it is ready, and exits with code 0 on SIGTERM and SIGINT."""

    def __init__(self, config: Config, url: str) -> None:
        super().__init__(config)
        self._url = url

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handles the signals without raising them again at the end, as uvicorn would; vLLM exits with code 0."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            # Handlers of the event loop run between callbacks, so _stop may use transports.
            loop.add_signal_handler(number, self._stop)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        sys.stdout.write(f"{READY}{self._url}\n")
        sys.stdout.flush()

    def _stop(self) -> None:
        # As vLLM without --shutdown-timeout, generation is aborted. Requests end as if the client had disconnected.
        for connection in list(self.server_state.connections):
            # A copy: connections remove themselves from the set.
            connection.transport.abort()
        self.should_exit = self.force_exit = True


def run(settings: SimulatorSettings, host: str, port: int, log_level: str) -> None:
    """Serves until a signal arrives; port 0 takes a free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Bound here rather than by uvicorn, so that the port is known for the line on stdout.
        listener.bind((host, port))
        name = f"[{host}]" if ":" in host else host
        config = Config(
            create_app(settings),
            http=TransportProtocol,
            ws="none",
            lifespan="off",
            loop="uvloop",
            log_level=log_level,
            access_log=log_level in ("debug", "trace"),
            backlog=4096,
        )
        _SimulatorServer(config, f"http://{name}:{listener.getsockname()[1]}").run(sockets=[listener])
