"""What belongs to one configuration, and what outlives it; router.process.application replaces the one by another."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from starlette.applications import Starlette

from router.api.auth import Authenticator
from router.api.cors import CorsPolicy
from router.api.event_hub import EventHub
from router.api.login_limiter import LoginLimiter
from router.api.prompt_log import AsgiEndpoint
from router.core.resilience.engine_losses import Suspects
from router.core.routing.draft_stats import DraftStats
from router.core.routing.prefill import Prefills
from router.flow.attempts.admission import Admission
from router.flow.attempts.continuation_engines import ContinuationEngines
from router.flow.attempts.waking import Waking
from router.flow.body_budget import BodyBudget
from router.flow.replicas.background import BackgroundServices
from router.flow.replicas.latest_requests import LatestRequests
from router.flow.replicas.queue_lengths import QueueLengths
from router.flow.replicas.router_snapshot import identify_process
from router.flow.replicas.status_publisher import PendingTraffic, StatusPublisher
from router.flow.sharing.coalescer import Coalescer
from router.net.client.transport import HTTPTransport
from router.net.tasks import cancel_and_wait
from router.settings import Settings
from router.shared.credentials.session_secret import SessionSecret
from router.shared.credentials.stored_keys import StoredKeys
from router.shared.engines.announcements import Announcements
from router.shared.engines.breakers import Breakers
from router.shared.engines.drains import Drains
from router.shared.prompts.prompt_records import PromptRecords
from router.shared.prompts.sibling_link import SiblingLink
from router.shared.quota.rate_limits import TenantLimits
from router.store.admin.scan import RedisClient
from router.telemetry.telemetry import Telemetry
from router.telemetry.tracing.otlp import OpenExporter
from router.telemetry.tracing.tracer import Tracer
from router.telemetry.traffic_counter import TrafficCounter
from router.upstream.catalog import BreakerStates, Catalog
from router.upstream.kv_feeds import KvFeed, KvFeeds, Subscribe
from router.upstream.probe import EngineProbe
from router.upstream.process_slots import ProcessSlots
from router.upstream.shared_slots import SharedSlots


class ProcessState:
    """What outlives every configuration. While `draining`, the router reports that it is not ready.

    `random` returns numbers from 0 up to 1. `on_fleet_change` is called when other engines are announced in Redis.
    `in_flight` returns the number of requests to the endpoints that generate.
    `open_exporter`: where spans go; None for the collector of the settings.
    `slots`: of the engines that have a limit. `siblings`: the other workers.
    `suspects`: the requests with which engines died. `kv_feeds`: the KV events of engines.
    """

    __slots__ = (
        "body_budget",
        "draft_stats",
        "draining",
        "identity",
        "in_flight",
        "kv_feeds",
        "latest_requests",
        "login_limiter",
        "on_fleet_change",
        "open_exporter",
        "pending_traffic",
        "prefills",
        "prompt_records",
        "queue_lengths",
        "random",
        "session_secret",
        "siblings",
        "slots",
        "suspects",
        "telemetry",
        "transport",
    )  # fmt: skip

    def __init__(
        self,
        telemetry: Telemetry,
        transport: HTTPTransport,
        draft_stats: DraftStats,
        random: Callable[[], float],
        slots: SharedSlots | ProcessSlots,
        siblings: SiblingLink,
        open_exporter: OpenExporter | None = None,
        subscribe: Subscribe | None = None,
    ) -> None:
        """`subscribe`: see KvFeeds."""
        self.slots = slots
        self.suspects = Suspects()
        self.telemetry = telemetry
        self.transport = transport
        self.draft_stats = draft_stats
        self.random = random
        self.open_exporter = open_exporter
        self.body_budget = BodyBudget()
        self.draining = False
        is_worker = isinstance(slots, SharedSlots)
        self.identity = identify_process(time.time(), is_worker=is_worker)
        self.prefills = Prefills()
        self.kv_feeds = KvFeeds(self.prefills, subscribe)
        self.siblings = siblings
        self.prompt_records = PromptRecords(self.prefills, self.identity.id, has_workers=self.siblings.has_others)
        self.latest_requests = LatestRequests(self.identity.id, time.monotonic)
        self.login_limiter = LoginLimiter(time.monotonic)
        self.session_secret = SessionSecret(time.monotonic)
        self.pending_traffic = PendingTraffic(TrafficCounter(telemetry.registry, telemetry.flush).take)
        self.queue_lengths = QueueLengths(telemetry.set_queue_length)
        self.in_flight: Callable[[], int] = lambda: 0
        self.on_fleet_change: Callable[[], None] = lambda: None


class Runtime:
    """Everything that is built from one configuration.

    `cors`: None if no page of another origin may use the router. `waking`: None if no request waits for an engine to
    start.
    `active_requests`: those that it is answering; `other_requests`: those of them to endpoints that do not generate.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        catalog: Catalog,
        auth: Authenticator,
        inference_endpoints: Mapping[str, AsgiEndpoint],
        starlette_app: Starlette,
        probe: EngineProbe,
        background_services: BackgroundServices,
        coalescer: Coalescer,
        admission: Admission,
        continuation_engines: ContinuationEngines,
        drains: Drains,
        announcements: Announcements,
        stored_keys: StoredKeys,
        tenant_limits: TenantLimits,
        breakers: Breakers,
        admin_redis: RedisClient,
        event_hub: EventHub,
        status_publisher: StatusPublisher,
        tracer: Tracer | None,
        cors: CorsPolicy | None,
        waking: Waking | None,
        kv_feeds: KvFeeds,
        followed: Sequence[KvFeed],
    ) -> None:
        self.settings = settings
        self.catalog = catalog
        self.auth = auth
        self.inference_endpoints = inference_endpoints
        self.starlette_app = starlette_app
        self.drains = drains
        self.announcements = announcements
        self.stored_keys = stored_keys
        self.tenant_limits = tenant_limits
        self.breakers = breakers
        self.tracer = tracer
        self.cors = cors
        self.active_requests = self.other_requests = 0
        self._event_hub = event_hub
        self._status_publisher = status_publisher
        self._probe = probe
        self._background_services = background_services
        self._coalescer = coalescer
        self._admission = admission
        self._continuation_engines = continuation_engines
        self._waking = waking
        self._kv_feeds = kv_feeds
        self._followed = followed
        self._admin_redis = admin_redis
        self._probe_task: asyncio.Task[None] | None = None
        self._background_task: asyncio.Task[None] | None = None
        self._status_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns after the first contact with Redis and every engine, whether they answer or not."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._background_services.start())
            group.create_task(self._probe.check())
        await self._kv_feeds.follow(self._followed)
        loop = asyncio.get_running_loop()
        # The first check is over before the application reports that it has started: it can route at once.
        self._probe_task, self._background_task, self._status_task = (
            loop.create_task(self._probe.run()),
            loop.create_task(self._background_services.run()),
            loop.create_task(self._status_publisher.run()),
        )

    async def on_replaced(self) -> None:
        """The runtime that replaces this one probes the engines and publishes the status from now on."""
        self.end_events()
        await cancel_and_wait(self._probe_task, self._status_task)

    def adopt_engines(self, catalog: Catalog, breaker_state: BreakerStates) -> None:
        """To be called on a runtime that was replaced: its requests wait for the engines of the one in effect.

        So its streams can go on at engines that are new, and at none that is gone.
        """
        self._continuation_engines.adopt(catalog, breaker_state)
        if self._waking is not None:
            self._waking.adopt(catalog)

    def end_waits(self) -> None:
        """Requests that wait for an engine to start get an error, since the process ends."""
        if self._waking is not None:
            self._waking.stop()

    def end_events(self) -> None:
        """Ends the streams of the dashboard's viewers, whose browsers connect again."""
        self._event_hub.close()

    def withdraw_status(self) -> None:
        """The process ends: it sends what it has counted, and vanishes from the status of the others."""
        self._status_publisher.withdraw()

    @property
    def is_idle(self) -> bool:
        idle = not self.active_requests and not self._coalescer.active
        # What its followers in other processes still need is sent again, for a while, if Redis was slow to take it.
        return idle and not self._background_services.has_unsent_records

    @property
    def has_followers(self) -> bool:
        """Whether clients of other processes read a generation of this one."""
        return self._coalescer.has_followers

    async def aclose(self) -> None:
        await cancel_and_wait(self._probe_task, self._background_task, self._status_task)
        await self._event_hub.aclose()
        await self._background_services.aclose()
        self._admission.close()
        await self._admin_redis.aclose()
        if self.tracer is not None:
            # In a thread, since it may wait for the collector. Last, so that what ends here is exported, too.
            await asyncio.to_thread(self.tracer.release)
