"""The ASGI application: it hands requests to what was made from the configuration, and takes another one meanwhile.

Theory of operation. All that depends on the configuration is one site, whole and wired. A reload makes another site
beside it, starts it, and puts it in its place in one assignment; so a request meets either the old or the new, and
ends with what it began with. The old site is closed once its last request and generation are over. What lives on, the
metrics and the connections to engines, belongs to the application.
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

_POLL_INTERVAL: Final = 0.1  # seconds between two looks whether an old site is idle


class ProcessState:
    """What outlives every configuration. While `draining`, the router is not ready for more.

    `random` gives numbers from 0 up to 1.
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
    """All that was made from one configuration. `requests`: those that it is answering."""

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
        """Returns once it knows its engines and Redis, as far as they answer."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._background_services.start())
            group.create_task(self._probe.check())
        loop = asyncio.get_running_loop()
        self._probe_task, self._background_task = (
            loop.create_task(self._probe.run()),
            loop.create_task(self._background_services.run()),
        )

    async def stop_probing(self) -> None:
        """Another site looks after the engines from now on."""
        await cancel_and_wait(self._probe_task)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way in it."""
        return not self.active_requests and not self._coalescer.active

    @property
    def has_followers(self) -> bool:
        """Whether clients of other processes read what is generated here."""
        return self._coalescer.has_followers

    async def aclose(self) -> None:
        """Ends what is under way."""
        await cancel_and_wait(self._probe_task, self._background_task)
        await self._background_services.aclose()
        await self._admin_redis.aclose()


RuntimeFactory = Callable[[Settings, ProcessState, Runtime | None], Runtime]
"""Makes a site, after the one that it is to replace."""


class Application:
    """Finds the endpoints that generate by one look into a map; Starlette finds the rest."""

    def __init__(self, create_runtime: RuntimeFactory, process_state: ProcessState, settings: Settings) -> None:
        self._create_runtime = create_runtime
        self._process_state = process_state
        self._runtime = create_runtime(settings, process_state, None)
        self._retiring: dict[asyncio.Task[None], Runtime] = {}
        self._reload_lock = asyncio.Lock()
        self._drain_started_at: float | None = None

    @property
    def settings(self) -> Settings:
        """Those in effect."""
        return self._runtime.settings

    def drain(self) -> None:
        """From now on, /readyz says that no more should be sent here. What is sent is answered."""
        self._process_state.draining = True
        self._drain_started_at = self._drain_started_at or time.monotonic()

    def record_rejection(self, reason: str) -> None:
        """The server has refused a client before it could ask."""
        self._process_state.telemetry.record_rejection(reason)

    async def reload(self, settings: Settings) -> None:
        """Puts other settings into effect, but for those of the server; see router.server.read_again.

        Requests under way end with what they began with. Where this raises, all stays as it was.
        """
        async with self._reload_lock:
            old = self._runtime
            new = self._create_runtime(settings, self._process_state, old)
            try:
                await new.start()
            except BaseException:
                await new.aclose()
                raise
            self._runtime = new
            old.drains.unpublished.clear()  # the new one tells it
            await old.stop_probing()
            task = asyncio.get_running_loop().create_task(self._retire(old))
            self._retiring[task] = old
            task.add_done_callback(self._retiring.pop)

    async def _retire(self, runtime: Runtime) -> None:
        while not runtime.is_idle:  # noqa: ASYNC110 - a look now and then costs less than a word from every request
            await asyncio.sleep(_POLL_INTERVAL)
        await runtime.aclose()

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        if scope["type"] != "http":
            await self._lifespan(receive, send)
            return
        site = self._runtime
        site.active_requests += 1
        try:
            endpoint = site.inference_endpoints.get(scope["path"])
            if endpoint is None:
                await asyncio.sleep(0)  # what pages are made of may ask for its task; see router.net.server.eager
                await site.starlette_app(scope, receive, _with_request_id(scope, send))
            elif scope["method"] == "POST":
                await endpoint(scope, receive, send)
            else:
                await _method_not_allowed(scope, send)
        finally:
            site.active_requests -= 1

    async def _lifespan(self, receive: AsgiReceive, send: AsgiSend) -> None:
        """The server's word for starting, and for stopping."""
        await receive()
        await self._runtime.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._wait_for_followers()
        retiring = dict(self._retiring)
        await cancel_and_wait(*retiring)
        for site in (*retiring.values(), self._runtime):
            await site.aclose()
        await self._process_state.transport.aclose()
        self._process_state.telemetry.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _wait_for_followers(self) -> None:
        """Has generations end that only clients of other processes read, in the time that one's own clients have."""
        if self._drain_started_at is None:
            return
        router = self.settings.router
        until = self._drain_started_at + router.drain + router.grace
        sites = (*self._retiring.values(), self._runtime)
        while any(site.has_followers for site in sites) and time.monotonic() < until:  # noqa: ASYNC110 - as in _retire
            await asyncio.sleep(_POLL_INTERVAL)


async def _method_not_allowed(scope: AsgiScope, send: AsgiSend) -> None:
    error = ApiError(405, f"{scope['method']} is not allowed on {scope['path']}.", code="method_not_allowed")
    await send_error(error, _with_request_id(scope, send), ALLOW_POST)


def _with_request_id(scope: AsgiScope, send: AsgiSend) -> AsgiSend:
    """A send that puts x-request-id on the answer."""
    header = (b"x-request-id", choose_request_id(scope["headers"]).encode("ascii"))

    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), header]
        await send(message)

    return sending
