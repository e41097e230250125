"""What outlives every configuration of a process."""

import time
from collections.abc import Callable

from router.api.access.login_limiter import LoginLimiter
from router.core.resilience.engine_losses import Suspects
from router.core.routing.draft_models.draft_stats import DraftStats
from router.core.routing.prefill import Prefills
from router.flow.body_budget import BodyBudget
from router.flow.replicas.latest_requests import LatestRequests
from router.flow.replicas.queue_lengths import QueueLengths
from router.flow.replicas.router_snapshot import identify_process
from router.flow.replicas.status_publisher import PendingTraffic
from router.net.client.transport import HTTPTransport
from router.shared.credentials.session_secret import SessionSecret
from router.shared.credentials.sign_in_links import SignInLinks
from router.shared.prompts.prompt_records import PromptRecords
from router.shared.prompts.sibling_link import SiblingLink
from router.shared.quota.rate_limits import TenantLimits
from router.telemetry.telemetry import Telemetry
from router.telemetry.tracing.otlp import OpenExporter
from router.telemetry.traffic_counter import TrafficCounter
from router.upstream.kv_feeds import KvFeeds, Subscribe
from router.upstream.process_slots import ProcessSlots
from router.upstream.shared_slots import SharedSlots


class ProcessState:
    """While `draining`, the router reports that it is not ready.

    `random` returns numbers from 0 up to 1. `on_fleet_change` is called when other engines are announced in Redis.
    `in_flight` returns the number of requests to the endpoints that generate.
    `open_exporter`: where spans go; None for the collector of the settings.
    `slots`: of the engines that have a limit. `siblings`: the other workers.
    `suspects`: the requests with which engines died. `kv_feeds`: the KV events of engines.
    """

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
        self.tenant_limits = TenantLimits()
        self.draining = False
        is_worker = isinstance(slots, SharedSlots)
        self.identity = identify_process(time.time(), is_worker=is_worker)
        self.prefills = Prefills()
        self.kv_feeds = KvFeeds(self.prefills, subscribe)
        self.siblings = siblings
        self.prompt_records = PromptRecords(self.prefills, self.identity.id, has_workers=self.siblings.has_others)
        self.latest_requests = LatestRequests(self.identity.id, time.perf_counter)
        telemetry.set_observer(self.latest_requests.record)
        self.login_limiter = LoginLimiter(time.monotonic)
        self.session_secret = SessionSecret(time.monotonic)
        self.sign_in_links = SignInLinks(time.monotonic)
        self.pending_traffic = PendingTraffic(TrafficCounter(telemetry.registry, telemetry.flush).take)
        self.queue_lengths = QueueLengths(telemetry.set_queue_length)
        self.in_flight: Callable[[], int] = lambda: 0
        self.on_fleet_change: Callable[[], None] = lambda: None

    def start(self) -> None:
        if isinstance(self.slots, SharedSlots):
            self.slots.start()
        self.siblings.start(self.prompt_records.on_message)

    async def aclose(self) -> None:
        """To be called after the configurations are closed: what ends with them is counted, and uses all of this."""
        await self.kv_feeds.aclose()
        self.siblings.stop()
        if isinstance(self.slots, SharedSlots):
            self.slots.stop()
        await self.transport.aclose()
        self.telemetry.close()
