"""The real router on a real socket, for tests."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

import httpx
import uvicorn

from router.api.protocol_messages import render
from router.net.server.connection import BoundedHttpProtocol
from router.net.server.timeouts import ClientTimeouts
from router.process.app import build
from router.settings import parse
from router.telemetry.tracing.otlp import OpenExporter
from tests.support.http_limits import LIMITS
from tests.support.scripted_engine import ScriptedEngine
from tests.support.simulated_engine import SimulatedEngine
from tests.support.waiting import TEST_TIMEOUT

LLAMA, LLAMA_ALIAS = "meta-llama/Llama-Simulated", "llama-alias"
MISTRAL = "mistralai/Mistral-Simulated"

_MODELS = {
    "llama": f'name = "llama"\naliases = ["{LLAMA_ALIAS}"]\nrevision = "1"\nauto = ["chat", "code"]',
    "mistral": 'name = "mistral"\naliases = ["mistral-alias"]\nrevision = "1"',
}
_SERVED_MODELS = {"llama": LLAMA, "mistral": MISTRAL}


def router_config(
    redis_url: str, engines: Mapping[str, tuple[str, str, str]], *, cache: str = "", router: str = "", rest: str = ""
) -> str:
    """A configuration in TOML. `engines`: by name, the model, task and URL; other texts are inserted verbatim."""
    models = dict.fromkeys(model for model, _, _ in engines.values())
    tables = [
        f"[router]\n{router}" if "drain" in router else f'[router]\ndrain = "0s"\n{router}',
        f'[cache]\nurl = "{redis_url}"\ntimeout = "2500ms"\nretry = "20ms"\n{cache}',
    ]
    tables += [f"[[model]]\n{_MODELS[model]}" for model in models]
    for name, (model, task, url) in engines.items():
        tables.append(
            f'[[engine]]\nname = "{name}"\nmodel = "{model}"\ntask = "{task}"\nurl = "{url}"\n'
            f'served_model = "{_SERVED_MODELS[model]}"'
        )
    return "\n\n".join([*tables, rest])


def with_fallback(text: str, model: str = "llama", fallback: str = "mistral") -> str:
    return text.replace(f'name = "{model}"\naliases', f'name = "{model}"\nfallback = "{fallback}"\naliases')


class RouterClient:
    """Requests to one router; `http` is a client for it, `url` its address."""

    url = ""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        """Sends a body, as JSON unless it is bytes; underscores in header names become hyphens."""
        content = body if isinstance(body, bytes) else None
        renamed = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post(path, json=None if content is not None else body, content=content, headers=renamed)

    async def chat(self, prompt: str, *, headers: Mapping[str, str] | None = None, **fields: Any) -> httpx.Response:
        """Sends a chat request, for the model llama by default, and reads the complete response."""
        return await self.http.post("/v1/chat/completions", json=chat_body(prompt, **fields), headers=headers)

    async def metrics(self) -> dict[str, float]:
        """The samples of /metrics by name and labels, as written there."""
        text = (await self.http.get("/metrics")).raise_for_status().text
        samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}


class RouterServer(RouterClient):
    """The real application, served by uvicorn on a free local port; `http` is a client for it."""

    def __init__(
        self, text: str, *, random: Callable[[], float] = lambda: 0.5, open_exporter: OpenExporter | None = None
    ) -> None:
        """`text` is the configuration; with the default `random`, the median, only the best engine is tried."""
        super().__init__(_client(""))
        settings = parse(text, {})
        self.application = build(settings, random=random, open_exporter=open_exporter)
        protocol = partial(
            BoundedHttpProtocol,
            timeouts=ClientTimeouts(settings.router.receive, settings.router.send, settings.router.keep_alive),
            render_error=render,
            error_headers=self.application.error_headers,
        )
        options: dict[str, Any] = {"http": protocol, "ws": "none", "lifespan": "on", "log_config": None}
        self._config = uvicorn.Config(self.application, access_log=False, server_header=False, **options)
        self._server = uvicorn.Server(self._config)
        self._error_log = _ErrorLog()

    async def start(self) -> None:
        logging.getLogger("uvicorn.error").addHandler(self._error_log)
        # asyncio sets TCP_NODELAY only with an explicit protocol number; without it every response takes 40 ms.
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        # The steps of uvicorn's serve() without its signal handlers and its main loop.
        self._config.load()
        self._server.lifespan = self._config.lifespan_class(self._config)
        await self._server.startup(sockets=[listening])
        # uvicorn renders its default headers in a tick; without the main loop there is none.
        await self._server.on_tick(0)
        self.http = _client(self.url)

    async def stop(self) -> None:
        """Stops it; fails if a request ended in a traceback."""
        await self.http.aclose()
        async with asyncio.timeout(TEST_TIMEOUT):
            for server in self._server.servers:
                server.close()
            for connection in list(self._server.server_state.connections):
                connection.transport.close()
            while tasks := self._server.server_state.tasks:
                await asyncio.wait(tasks)
            await self._server.lifespan.shutdown()
        logging.getLogger("uvicorn.error").removeHandler(self._error_log)
        assert self._error_log.seen == []
        # Every request has released its part of the body budget.
        assert self.application._process_state.body_budget.allocated == 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def _client(url: str) -> httpx.AsyncClient:
    # verify=False: loading the machine's certificates takes longer than most tests.
    return httpx.AsyncClient(base_url=url, timeout=TEST_TIMEOUT, trust_env=False, verify=False, limits=LIMITS)


class _ErrorLog(logging.Handler):
    """Collects what uvicorn logs for applications that raise."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(self.format(record))


def chat_body(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"model": "llama", "messages": [{"role": "user", "content": prompt}], **fields}


class EngineSet(NamedTuple):
    """The engines of the default configuration."""

    chat: SimulatedEngine
    code: SimulatedEngine
    mistral: SimulatedEngine

    def as_config(self) -> dict[str, tuple[str, str, str]]:
        return engine_tables(*(engine.url for engine in self))


def engine_tables(chat: str, code: str, mistral: str) -> dict[str, tuple[str, str, str]]:
    """The engines of the default configuration, by their URLs."""
    return {
        "llama-chat": ("llama", "chat", chat),
        "llama-code": ("llama", "code", code),
        "mistral": ("mistral", "any", mistral),
    }


MakeRouter = Callable[[str], Awaitable[RouterServer]]
ScriptedRouter = Callable[..., Awaitable[tuple[RouterServer, ScriptedEngine]]]
