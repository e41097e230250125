"""The ASGI application: it passes requests to the current runtime, and replaces that on a reload.

Theory of operation. Everything that depends on the configuration belongs to one Runtime. A reload creates and starts a
second Runtime beside the first, then replaces it with one assignment; so a request sees either the old or the new one,
and ends with the one it began with. The old Runtime is closed after its last request and generation. What outlives it,
the metrics and the connections to engines, belongs to ProcessState.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.applications import Starlette

from router.api.inference import AsgiScope, AsgiSend, InferenceEndpoint, choose_request_id, send_error
from router.core.routing.draft_stats import DraftStats
from router.errors import ApiError
from router.flow.background import BackgroundServices
from router.flow.body_budget import BodyBudget
from router.flow.coalescer import Coalescer
from router.net.client.transport import HTTPTransport
from router.net.server.client_connection import AsgiReceive
from router.net.tasks import cancel_and_wait
from router.settings import Settings
from router.shared.breakers import Breakers
from router.shared.drains import Drains
from router.store.admin.scan import RedisClient
from router.telemetry import Telemetry
from router.upstream.catalog import Catalog
from router.upstream.probe import EngineProbe

ALLOW_POST: Final = [(b"allow", b"POST")]

_POLL_INTERVAL: Final = 0.1  # seconds between two checks whether an old runtime is idle


class ProcessState:
    """What outlives every configuration. While `draining`, the router reports that it is not ready.

    `random` returns numbers from 0 up to 1.
    """

    __slots__ = ("body_budget", "draft_stats", "draining", "random", "telemetry", "transport")

    def __init__(
        self,
        telemetry: Telemetry,
        transport: HTTPTransport,
        draft_stats: DraftStats,
        random: Callable[[], float],
    ) -> None:
        self.telemetry = telemetry
        self.transport = transport
        self.draft_stats = draft_stats
        self.random = random
        self.body_budget = BodyBudget()
        self.draining = False


class Runtime:
    """Everything that is built from one configuration. `active_requests`: those that it is answering."""

    def __init__(
        self,
        *,
        settings: Settings,
        catalog: Catalog,
        inference_endpoints: Mapping[str, InferenceEndpoint],
        starlette_app: Starlette,
        probe: EngineProbe,
        background_services: BackgroundServices,
        coalescer: Coalescer,
        drains: Drains,
        breakers: Breakers,
        admin_redis: RedisClient,
    ) -> None:
        self.settings = settings
        self.catalog = catalog
        self.inference_endpoints = inference_endpoints
        self.starlette_app = starlette_app
        self.drains = drains
        self.breakers = breakers
        self.active_requests = 0
        self._probe = probe
        self._background_services = background_services
        self._coalescer = coalescer
        self._admin_redis = admin_redis
        self._probe_task: asyncio.Task[None] | None = None
        self._background_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns after the first contact with Redis and every engine, whether they answer or not."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._background_services.start())
            group.create_task(self._probe.check())
        loop = asyncio.get_running_loop()
        # The first check is over before the application reports that it has started: it can route at once.
        self._probe_task, self._background_task = (
            loop.create_task(self._probe.run()),
            loop.create_task(self._background_services.run()),
        )

    async def stop_probing(self) -> None:
        """The runtime that replaces this one probes the engines from now on."""
        await cancel_and_wait(self._probe_task)

    @property
    def is_idle(self) -> bool:
        return not self.active_requests and not self._coalescer.active

    @property
    def has_followers(self) -> bool:
        """Whether clients of other processes read a generation of this one."""
        return self._coalescer.has_followers

    async def aclose(self) -> None:
        await cancel_and_wait(self._probe_task, self._background_task)
        await self._background_services.aclose()
        await self._admin_redis.aclose()


RuntimeFactory = Callable[[Settings, ProcessState, Runtime | None], Runtime]
"""Creates a runtime; its third argument is the one that it replaces."""


class Application:
    """Finds the endpoints that generate in a dict, which costs least; Starlette routes everything else."""

    def __init__(self, create_runtime: RuntimeFactory, process_state: ProcessState, settings: Settings) -> None:
        self._create_runtime = create_runtime
        self._process_state = process_state
        self._runtime = create_runtime(settings, process_state, None)
        self._retiring: dict[asyncio.Task[None], Runtime] = {}
        self._reload_lock = asyncio.Lock()
        self._drain_started_at: float | None = None

    @property
    def settings(self) -> Settings:
        return self._runtime.settings

    def drain(self) -> None:
        """From now on, /readyz reports 503. Requests are still answered."""
        self._process_state.draining = True
        self._drain_started_at = self._drain_started_at or time.monotonic()

    def record_rejection(self, reason: str) -> None:
        self._process_state.telemetry.record_rejection(reason)

    async def reload(self, settings: Settings) -> None:
        """Puts settings into effect, except those of the server; see router.server.reload_settings.

        Running requests end with the runtime they began with. If this raises, nothing has changed.
        """
        async with self._reload_lock:
            # The lock: two reloads at once would both replace the same runtime.
            old = self._runtime
            new = self._create_runtime(settings, self._process_state, old)
            try:
                await new.start()
            except BaseException:
                await new.aclose()
                raise
            self._runtime = new
            old.drains.unpublished.clear()  # the new one has taken them over, and publishes them
            # Only after the new one has started; if that fails, the old one goes on probing.
            await old.stop_probing()
            task = asyncio.get_running_loop().create_task(self._retire(old))
            self._retiring[task] = old
            task.add_done_callback(self._retiring.pop)

    async def _retire(self, runtime: Runtime) -> None:
        while not runtime.is_idle:  # noqa: ASYNC110 - polling costs less than a notification from every request
            await asyncio.sleep(_POLL_INTERVAL)
        await runtime.aclose()

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        if scope["type"] != "http":
            await self._lifespan(receive, send)
            return
        runtime = self._runtime
        runtime.active_requests += 1
        try:
            endpoint = runtime.inference_endpoints.get(scope["path"])
            if endpoint is None:
                # Starlette may need a current task, and there is one only after a first wait (router.net.server.eager).
                await asyncio.sleep(0)
                await runtime.starlette_app(scope, receive, _with_request_id(scope, send))
            elif scope["method"] == "POST":
                await endpoint(scope, receive, send)
            else:
                await _method_not_allowed(scope, send)
        finally:
            runtime.active_requests -= 1

    async def _lifespan(self, receive: AsgiReceive, send: AsgiSend) -> None:
        """ASGI's lifespan protocol: one message to start, one to stop."""
        await receive()
        await self._runtime.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._wait_for_followers()
        retiring = dict(self._retiring)  # a copy, since a task that ends removes itself
        await cancel_and_wait(*retiring)
        for runtime in (*retiring.values(), self._runtime):
            await runtime.aclose()
        await self._process_state.transport.aclose()
        # After the runtimes: what they end is still counted, and uses the connections to engines.
        self._process_state.telemetry.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _wait_for_followers(self) -> None:
        """Waits for generations that only other processes' clients read, as long as the server waits for its own."""
        if self._drain_started_at is None:
            return
        router = self.settings.router
        deadline = self._drain_started_at + router.drain + router.grace
        runtimes = (*self._retiring.values(), self._runtime)
        while any(runtime.has_followers for runtime in runtimes) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_INTERVAL)


async def _method_not_allowed(scope: AsgiScope, send: AsgiSend) -> None:
    error = ApiError(405, f"{scope['method']} is not allowed on {scope['path']}.", code="method_not_allowed")
    await send_error(error, _with_request_id(scope, send), ALLOW_POST)


def _with_request_id(scope: AsgiScope, send: AsgiSend) -> AsgiSend:
    header = (b"x-request-id", choose_request_id(scope["headers"]).encode("ascii"))

    async def send_with_id(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), header]
        await send(message)

    return send_with_id
