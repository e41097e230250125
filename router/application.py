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

from router.api.inference import Generate, Scope, Send, request_id, send_error
from router.core.routing.draft_stats import Experience
from router.errors import ApiError
from router.flow.background import Sharing
from router.flow.body_budget import BodyBudget
from router.flow.coalescer import Flights
from router.net.client.transport import Transport
from router.net.server.client_connection import Receive
from router.net.tasks import end
from router.settings import Settings
from router.shared.breakers import Breakers
from router.shared.drains import Drains
from router.store.admin.scan import Client
from router.telemetry import Telemetry
from router.upstream.catalog import Catalog
from router.upstream.probe import Probe

ALLOW_POST: Final = [(b"allow", b"POST")]

_LOOK: Final = 0.1  # seconds between two looks whether an old site is idle


class Lasting:
    """What outlives every configuration. While `draining`, the router is not ready for more.

    `random` gives numbers from 0 up to 1.
    """

    __slots__ = ("bodies", "draining", "experience", "random", "telemetry", "transport")

    def __init__(
        self,
        telemetry: Telemetry,
        transport: Transport,
        experience: Experience,
        random: Callable[[], float],
    ) -> None:
        self.telemetry = telemetry
        self.transport = transport
        self.experience = experience
        self.random = random
        self.bodies = BodyBudget()
        self.draining = False


class Site:
    """All that was made from one configuration. `requests`: those that it is answering."""

    def __init__(
        self, *, settings: Settings, catalog: Catalog, generate: Mapping[str, Generate], pages: Starlette, probe: Probe,
        sharing: Sharing, flights: Flights, drains: Drains, breakers: Breakers,
        survey: Client,
    ) -> None:  # fmt: skip
        self.settings = settings
        self.catalog = catalog
        self.generate = generate
        self.pages = pages
        self.drains = drains
        self.breakers = breakers
        self.requests = 0
        self._probe = probe
        self._sharing = sharing
        self._flights = flights
        self._survey = survey
        self._probing: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns once it knows its engines and Redis, as far as they answer."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sharing.start())
            group.create_task(self._probe.check())
        loop = asyncio.get_running_loop()
        self._probing, self._running = loop.create_task(self._probe.run()), loop.create_task(self._sharing.run())

    async def rest(self) -> None:
        """Another site looks after the engines from now on."""
        await end(self._probing)

    @property
    def idle(self) -> bool:
        """Whether nothing is under way in it."""
        return not self.requests and not self._flights.airborne

    @property
    def is_followed(self) -> bool:
        """Whether clients of other processes read what is generated here."""
        return self._flights.followed

    async def aclose(self) -> None:
        """Ends what is under way."""
        await end(self._probing, self._running)
        await self._sharing.aclose()
        await self._survey.aclose()


Make = Callable[[Settings, Lasting, Site | None], Site]
"""Makes a site, after the one that it is to replace."""


class Application:
    """Finds the endpoints that generate by one look into a map; Starlette finds the rest."""

    def __init__(self, make: Make, lasting: Lasting, settings: Settings) -> None:
        self._make = make
        self._lasting = lasting
        self._site = make(settings, lasting, None)
        self._retiring: dict[asyncio.Task[None], Site] = {}
        self._changing = asyncio.Lock()
        self._drained_at: float | None = None

    @property
    def settings(self) -> Settings:
        """Those in effect."""
        return self._site.settings

    def drain(self) -> None:
        """From now on, /readyz says that no more should be sent here. What is sent is answered."""
        self._lasting.draining = True
        self._drained_at = self._drained_at or time.monotonic()

    def rejected(self, reason: str) -> None:
        """The server has refused a client before it could ask."""
        self._lasting.telemetry.rejected(reason)

    async def reload(self, settings: Settings) -> None:
        """Puts other settings into effect, but for those of the server; see router.server.read_again.

        Requests under way end with what they began with. Where this raises, all stays as it was.
        """
        async with self._changing:
            old = self._site
            new = self._make(settings, self._lasting, old)
            try:
                await new.start()
            except BaseException:
                await new.aclose()
                raise
            self._site = new
            old.drains.untold.clear()  # the new one tells it
            await old.rest()
            task = asyncio.get_running_loop().create_task(self._retire(old))
            self._retiring[task] = old
            task.add_done_callback(self._retiring.pop)

    async def _retire(self, site: Site) -> None:
        while not site.idle:  # noqa: ASYNC110 - a look now and then costs less than a word from every request
            await asyncio.sleep(_LOOK)
        await site.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._live(receive, send)
            return
        site = self._site
        site.requests += 1
        try:
            endpoint = site.generate.get(scope["path"])
            if endpoint is None:
                await asyncio.sleep(0)  # what pages are made of may ask for its task; see router.net.server.eager
                await site.pages(scope, receive, _with_request_id(scope, send))
            elif scope["method"] == "POST":
                await endpoint(scope, receive, send)
            else:
                await _not_post(scope, send)
        finally:
            site.requests -= 1

    async def _live(self, receive: Receive, send: Send) -> None:
        """The server's word for starting, and for stopping."""
        await receive()
        await self._site.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._end_what_is_followed()
        retiring = dict(self._retiring)
        await end(*retiring)
        for site in (*retiring.values(), self._site):
            await site.aclose()
        await self._lasting.transport.aclose()
        self._lasting.telemetry.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _end_what_is_followed(self) -> None:
        """Has generations end that only clients of other processes read, in the time that one's own clients have."""
        if self._drained_at is None:
            return
        router = self.settings.router
        until = self._drained_at + router.drain + router.grace
        sites = (*self._retiring.values(), self._site)
        while any(site.is_followed for site in sites) and time.monotonic() < until:  # noqa: ASYNC110 - as in _retire
            await asyncio.sleep(_LOOK)


async def _not_post(scope: Scope, send: Send) -> None:
    error = ApiError(405, f"{scope['method']} is not allowed on {scope['path']}.", code="method_not_allowed")
    await send_error(error, _with_request_id(scope, send), ALLOW_POST)


def _with_request_id(scope: Scope, send: Send) -> Send:
    """A send that puts x-request-id on the answer."""
    header = (b"x-request-id", request_id(scope["headers"]).encode("ascii"))

    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), header]
        await send(message)

    return sending
