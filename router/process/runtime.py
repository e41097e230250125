"""What belongs to one configuration; router.process.application replaces the one by another.

What a reload keeps:

- ProcessState outlives it: metrics, connections to engines, the engines' slots and prefix caches, drafts, sessions,
  the requests and tokens that count for limits and budgets.
- RedisServices outlive it while `cache.url` and its certificates stay the same: the connections to Redis, the local
  cache, requests in flight, the reasons of misses, hits, stored keys, drains, announced engines, breakers. With another
  Redis, only the drains, the announced engines and the breakers are handed over.
- The next configuration gets: engines with the same settings, as the same objects, and the state of those with the same
  address; the tracer.
- Anew: the retries that are left, brownout levels, the health checks of lost engines, the starts that requests wait
  for, and what Retry-After is estimated from. An announced engine that comes or goes causes this, too.

Some is handed over when it is built, which changes nothing of the old configuration; the rest in `Runtime.take_effect`.
"""

import asyncio
from collections.abc import Sequence

from router.flow.gpu.turn_taker import TurnTaker
from router.flow.replicas.background import keep_running
from router.flow.sharing.generation_rules import GenerationRules
from router.net.tasks import cancel_and_wait
from router.process.process_state import ProcessState
from router.process.wiring.http_endpoints import HttpEndpoints
from router.process.wiring.live_configuration import LiveConfiguration
from router.process.wiring.redis_services import RedisServices
from router.process.wiring.status import Status
from router.telemetry.tracing.tracer import Tracer
from router.upstream.catalog import BreakerStates, Catalog
from router.upstream.kv_feeds import configured_feeds
from router.upstream.probe import EngineProbe


class Runtime:
    """Everything that is built from one configuration, and the services that it uses.

    `active_requests`: those that it is answering; `other_requests`: those of them to endpoints that do not generate.
    """

    def __init__(
        self,
        configuration: LiveConfiguration,
        process_state: ProcessState,
        services: RedisServices,
        *,
        probe: EngineProbe,
        turn_takers: Sequence[TurnTaker],
        rules: GenerationRules,
        http: HttpEndpoints,
        status: Status,
        tracer: Tracer | None,
    ) -> None:
        """`tracer`: None if tracing is off."""
        self.settings, self.auth, self.engines = configuration
        self.services = services
        self.catalog = self.engines.catalog
        self.announcements = services.records.announcements
        self.inference_endpoints = http.inference
        self.starlette_app = http.starlette_app
        self.cors = http.cors
        self.open_websocket = http.open_websocket
        self.tracer = tracer
        self.active_requests = self.other_requests = 0
        self._configuration = configuration
        self._status = status
        self._probe = probe
        self._turn_takers = turn_takers
        self._rules = rules
        self._process_state = process_state
        self._http_tasks = http.tasks
        self._tasks: list[asyncio.Task[None]] = []
        self._work: list[asyncio.Task[None]] = []  # which ends before the requests do

    def take_effect(self, old: "Runtime | None") -> None:
        """To be called when it is to answer the requests. `old`: the one that it replaces.

        What outlives a configuration changes only here, so that one that cannot start changes nothing.
        """
        engines = self.catalog.engines.values()
        self.catalog.take_effect()
        self._process_state.prefills.keep([engine.id for engine in engines], {each.id: each.model for each in engines})
        self.services.take_effect(self.settings, old.services if old is not None else None)

    async def start(self) -> None:
        """Returns after the first contact with Redis and every engine, whether they answer or not."""
        async with asyncio.TaskGroup() as group:
            attaching = group.create_task(self.services.attach(self._configuration))
            if self._turn_takers:  # before the first check, and the first request: what sleeps must not get one
                await attaching
                for each in self._turn_takers:
                    await each.step()
            group.create_task(self._probe.check())
        await self._process_state.kv_feeds.follow(configured_feeds(self.settings))
        loop = asyncio.get_running_loop()
        # The first check is over before the application reports that it has started: it can route at once.
        self._tasks = [loop.create_task(run()) for run in (self._probe.run, self._status.publisher.run)]
        self._tasks += [loop.create_task(keep_running(each.run)) for each in self._turn_takers]
        self._work = [loop.create_task(keep_running(run)) for run in self._http_tasks]

    async def on_replaced(self) -> None:
        """The runtime that replaces this one probes the engines and publishes the status from now on."""
        self._status.event_hub.close()
        await self._stop_tasks()

    def adopt_engines(self, catalog: Catalog, breaker_state: BreakerStates) -> None:
        """To be called on a runtime that was replaced: its requests wait for the engines of the one in effect.

        So its streams can go on at engines that are new, and at none that is gone.
        """
        self.engines.continuation_engines.adopt(catalog, breaker_state)
        self.engines.waking.adopt(catalog)

    def end_waits(self) -> None:
        """The process ends: for the dashboard's viewers, for requests that wait for an engine to start, for batches."""
        self._status.event_hub.close()
        self.engines.waking.stop()
        for task in self._work:
            task.cancel()

    def withdraw_status(self) -> None:
        """The process ends: it sends what it has counted, and vanishes from the status of the others."""
        self._status.publisher.withdraw()

    @property
    def is_idle(self) -> bool:
        if self.active_requests or self._rules.running:
            return False
        # What its followers in other processes still need is sent again, for a while, if Redis was slow to take it.
        return self.services.is_shared or not self.services.cache.leases.is_writing

    @property
    def has_followers(self) -> bool:
        """Whether clients of other processes read a generation of this one, or it runs in the background."""
        return self.services.cache.coalescer.has_followers or len(self.services.cache.background) > 0

    async def end_generations(self) -> None:
        """The process ends: those that have no client any more, too."""
        await self.services.cache.background.aclose()
        await self.services.cache.coalescer.aclose()

    async def aclose(self) -> None:
        await self._stop_tasks()
        await self._status.event_hub.aclose()
        await self.engines.adapter_refresh.aclose()
        self.engines.admission.close()
        await self.services.detach(self._configuration)
        if self.tracer is not None:
            # In a thread, since it may wait for the collector. Last, so that what ends here is exported, too.
            await asyncio.to_thread(self.tracer.release)

    async def _stop_tasks(self) -> None:
        await cancel_and_wait(*self._work, *self._tasks)
        await self._probe.aclose()
