"""A router as a simulated process: the application as `router.app.build` makes it, and what can be done to it."""

import asyncio
from collections.abc import Callable, MutableMapping
from functools import cache
from random import Random
from typing import Any, Final

import msgspec

from router.app import build
from router.application import Application
from router.core.routing.classify import Classifier
from router.net.client.transport import HTTPTransport
from router.net.server.eager import EagerRunner
from router.settings import Settings, parse
from tests.simulation.clients import SimulatedRequest
from tests.simulation.clock import CLOCK
from tests.simulation.loop import SimulatedProcess, VirtualLoop

REDIS_ADDRESS: Final = ("redis", 6379)
TENANTS: Final = ("acme", "beta")


@cache
def settings(engines: int) -> Settings:
    """Everything at its default, but for what there is to be asked."""
    places = "".join(
        f'[[engine]]\nname = "e{number}"\nmodel = "llama"\nurl = "http://e{number}:8000"\nmax_model_len = 8192\n'
        for number in range(1, engines + 1)
    )
    tenants = f'[[tenant]]\nname = "{TENANTS[0]}"\n[[tenant]]\nname = "{TENANTS[1]}"\nconcurrent_requests = 50\n'
    return parse(
        f'[cache]\nurl = "redis://{REDIS_ADDRESS[0]}:{REDIS_ADDRESS[1]}"\n[auth]\nmode = "header"\n'
        f'[[model]]\nname = "llama"\n{tenants}{places}',
        {},
    )


def share_classifier() -> None:
    """One for all processes: to load it takes as long as a second of simulated time."""
    one = Classifier.load()
    Classifier.load = classmethod(lambda _: one)  # type: ignore[assignment]


class SimulatedRouter:
    """One router process. `ready` once it takes requests."""

    def __init__(self, loop: VirtualLoop, name: str, random: Random, *, engines: int, tick: float) -> None:
        self.loop = loop
        self.name = name
        self.random = random
        self.process = SimulatedProcess(name, tick)
        self.ready = False
        self.stopped = False
        self.requests: dict[int, SimulatedRequest] = {}
        self.application: Application
        self._settings = settings(engines)
        self._runner: EagerRunner
        self._stop: asyncio.Event
        self._reloads = 0

    def start(self) -> None:
        self.loop.spawn(self.process, self._run())

    async def _run(self) -> None:
        self._stop = asyncio.Event()
        self._runner = EagerRunner(self.loop)  # type: ignore[arg-type, unused-ignore]
        self.application = build(self._settings, transport=HTTPTransport(), random=self.random.random)
        messages = iter(("lifespan.startup", "lifespan.shutdown"))

        async def receive() -> MutableMapping[str, Any]:
            kind = next(messages)
            if kind == "lifespan.shutdown":
                await self._stop.wait()
            return {"type": kind}

        async def send(message: MutableMapping[str, Any]) -> None:
            self.ready = message["type"] == "lifespan.startup.complete"
            self.stopped = not self.ready

        await self.application({"type": "lifespan"}, receive, send)

    def submit(self, request: SimulatedRequest, after: float) -> None:
        """Has a request come in after so many seconds."""
        self.requests[request.record.number] = request
        self.loop.deliver(self.process, CLOCK.now + after, self._begin, request)

    def _begin(self, request: SimulatedRequest) -> None:
        if request.record.ending:  # the client has left already
            return
        self._runner.start(
            self.application(request.scope(), request.receive, request.send),
            request.on_task_started,
            request.on_app_done,
        )

    def call_in_process(self, callback: Callable[..., object], *args: Any) -> None:
        """Has something happen in the process, as when a client closes its connection."""
        self.loop.deliver(self.process, CLOCK.now + 0.0003, callback, *args)

    def reload(self) -> None:
        """Puts settings into effect that are others, and mean the same."""
        self._reloads += 1
        cache_ = msgspec.structs.replace(self._settings.cache, max_entry=self._settings.cache.max_entry - self._reloads)
        self.loop.spawn(self.process, self.application.reload(msgspec.structs.replace(self._settings, cache=cache_)))

    def stop(self) -> None:
        self.call_in_process(self._stop.set)

    def leaks(self) -> list[str]:
        """What should not be there when nothing is asked."""
        site = self.application._runtime
        sharing, flights = site._background_services, site._coalescer
        shared, limits = sharing._leases, sharing._tenant_limits
        gateway = next(iter(site.inference_endpoints.values()))._gateway
        found = {
            "retiring": self.application._retiring,
            "requests": site.active_requests,
            "flights": flights._active_by_id,
            "flights to join": flights._joinable_by_digest,
            "wanted": flights._followed_at,
            "claims": shared._claims,
            "broadcasts": shared._writers,
            "followed": shared._stream_events,
            "fetches": gateway._local_cache._fetches,
            "places": {name: engine.in_flight for name, engine in site.catalog.engines.items() if engine.in_flight},
            "permits": {
                name: tenant._running_requests for name, tenant in limits._tenants.items() if tenant._running_requests
            },
        }
        return [f"6: {self.name} still has {name}: {what}" for name, what in found.items() if what]
