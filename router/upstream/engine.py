"""An engine and its state as this router process knows it."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any, Final

import msgspec

from router.core.batches.learned_limit import SHARE, LearnedLimit
from router.core.resilience.unserved_paths import UnservedPaths
from router.core.routing.context_length import ContextNeed
from router.core.routing.draft_models.draft_performance import DraftStatus
from router.core.routing.ranking import EngineSnapshot
from router.core.types import EngineTask, Task
from router.net.client.errors import MAX_CAUSE
from router.net.client.target import RequestTarget
from router.settings.replicas import replica_id
from router.settings.tables import EngineKind
from router.shared.engines.announcements import AnnouncedEngine
from router.shared.status.status_documents import EngineState
from router.upstream.adapters import Adapter, ListedAdapter
from router.upstream.energy import EnergyMeter
from router.upstream.engine_access import EngineAccess
from router.upstream.engine_config import EngineConfig
from router.upstream.engine_gauges import EngineGauges
from router.upstream.engine_kinds import traits_of
from router.upstream.engine_watch import EngineWatch
from router.upstream.process_slots import ProcessEngineSlots, ProcessSlots
from router.upstream.shared_slots import EngineSlots, SharedSlots

log = logging.getLogger("roundhouse.engines")

UNBOUNDED_IN_FLIGHT: Final = 256
"""The bound that a capacity below 1 is a share of, at an engine without a bound: vLLM's default of max_num_seqs."""

_RECENT: Final = 60.0  # seconds; failures before an engine goes down that belong to it
_MIN_SECRET: Final = 8  # bytes; shorter texts are no secrets, and may be part of any message


class Engine:
    """One engine process and its state as this router knows it.

    - `up`: None before the first check.
    - `rank`: the data-parallel rank of its server that it is; None if it is all of it.
    - `id`: what it is identified by, whatever its name: its URL, and its rank.
    - `family`: the engine of the configuration that it is a replica of.
    - `max_model_len`: its context length in tokens, from the configuration or from the engine itself.
    - `in_flight`: requests of this process. `max_in_flight`: the limit of all workers of this router; None for none.
    - `external_load`: requests of others at the last check, see `load`; None is unknown.
    - `has_draft`: whether it has a draft model; None is unknown.
    - `draft`: the draft model, or the method of speculation, of the configuration; None if it names none.
    - `drafts`: measurements of the draft, by task. `tokens_per_step_by_bin`: by bin of the classifier's score.
    - `baseline`: the family that is the same engine without its draft; None if there is none.
    - `drained`: it gets no new work; see router.shared.engines.drains.
    - `announced`: what its launcher reports in Redis, if it does.
    - `energy`: what its requests take of its power, if its launcher reports that.
    - `unserved_paths`: the endpoints that it does not have, as far as it has told.
    - `kind`: the server that it is; None is unknown. `traits`: what is known of it, see `learn`.
    - `adapters`: those that it listed last; they stay while it is down.
    - `share`: the percentage of the model's requests that its family gets; None for a part of the rest.
    - `revision`: what its weights are, if that is not the model's revision.
    - `watch`: of the requests that wait for it.
    - `learned_limit`: the one that its gauges show, for lines of batches.
    - `access`: whether it lets the router in. While it does not, `up` is False.
    - `since`: when its state began, in seconds since the epoch by the own clock; None before the first check.
    - `cause`: why it is down, in a few words. `failures`: attempts that it failed as it went down, and since.
    - `rest`: why it gets no requests although it may answer its checks, in a word or two: another engine has its GPU.
    """

    __slots__ = (
        "_all_slots",
        "_failed_at",
        "_logged_refusal",
        "_slots",
        "_state",
        "_targets",
        "access",
        "adapters",
        "announced",
        "baseline",
        "cause",
        "config",
        "draft",
        "drafts",
        "drained",
        "energy",
        "external_load",
        "failures",
        "family",
        "gauges",
        "has_draft",
        "id",
        "in_flight",
        "kind",
        "learned_limit",
        "max_in_flight",
        "max_model_len",
        "model",
        "name",
        "on_slot_freed",
        "rank",
        "rest",
        "revision",
        "served_model",
        "share",
        "since",
        "task",
        "tokens_per_step_by_bin",
        "traits",
        "unserved_paths",
        "up",
        "url",
        "watch",
    )  # fmt: skip

    def __init__(
        self, config: EngineConfig, *, slots: SharedSlots | ProcessSlots | None = None,
        announced: AnnouncedEngine | None = None,
    ) -> None:  # fmt: skip
        """`slots`: where they are counted together with those of other configurations and workers; None: only here.

        `announced`: see `set_announced`.
        """
        self.config = config
        self.name = config.name
        self.model = config.model
        self.task: EngineTask = config.task
        self.url = config.url
        self.rank = config.rank
        self.id = replica_id(config.url, config.rank)
        self.served_model = config.served_model
        self.kind = config.kind
        self.traits = traits_of(config.kind, config.stated_traits)
        self.family = config.family if config.family is not None else config.name
        self.has_draft: bool | None = config.has_draft or None
        self.draft = config.draft
        self.baseline = config.baseline
        self.max_model_len = config.max_model_len
        self.share = config.share
        self.revision = config.revision
        self._targets: dict[str, RequestTarget] = {}
        self.unserved_paths = UnservedPaths()
        self.external_load: float | None = None
        self.drafts: Mapping[Task, DraftStatus] = {}
        self.tokens_per_step_by_bin: Mapping[int, float] = {}
        self.announced: AnnouncedEngine | None = None
        self.energy = EnergyMeter()
        self.in_flight = 0
        self.max_in_flight: int | None = None
        self._all_slots = slots
        self._slots: EngineSlots | ProcessEngineSlots | None = None  # None: the engine has no limit
        self.on_slot_freed: tuple[Callable[[Engine], None], ...] = ()  # called in this order when a slot becomes free
        self.up: bool | None = None
        self.drained = False
        self.gauges = EngineGauges()
        self.adapters: Sequence[ListedAdapter] = ()
        self.watch = EngineWatch()
        self.learned_limit = LearnedLimit()
        self.access = EngineAccess()
        self._logged_refusal: int | None = None
        self._state: EngineState = "unknown"
        self.since: float | None = None
        self.cause = ""
        self.rest = ""
        self.failures = 0
        self._failed_at = 0.0
        self.set_announced(announced)

    def change(self, *, baseline: str | None, revision: str | None) -> None:
        """What another configuration says of it that depends on other engines."""
        self.baseline, self.revision = baseline, revision

    def target(self, path: str) -> RequestTarget:
        # There are few paths, so the dictionary stays small.
        target = self._targets.get(path)
        if target is None:
            target = self._targets[path] = RequestTarget(
                self.url, path, headers=self.config.headers, ca_file=self.config.ca_file
            )
        return target

    @property
    def address(self) -> str:
        """Its host and port, or the path of its socket, which clients must not see."""
        rest = self.url.partition("://")[2]
        return rest if self.url.startswith("unix:") else rest.partition("/")[0]

    def without_secrets(self, body: bytes) -> bytes:
        """A response without the engine's key and headers, which some servers repeat in their errors."""
        for value in self.config.headers.values():
            secret = value.removeprefix("Bearer ").encode()
            if len(secret) >= _MIN_SECRET:
                body = body.replace(secret, b"***")
        return body

    # -- slots --------------------------------------------------------------------------------------------------------

    def take_slot(self) -> bool:
        """Takes a free slot, if there is one; then `start_request` or `return_slot` is called at once."""
        if self._slots is not None:
            return self._slots.take()
        return self.max_in_flight is None or self.in_flight < self.max_in_flight

    def take_slot_or_wait(self, waiter: object) -> bool:
        """As `take_slot`. If there is none, `on_slot_freed` is called when another worker frees one.

        `waiter`: who waits, until `on_slot_freed` or `return_slot`.
        """
        if self._slots is not None:
            return self._slots.take_or_wait(waiter)
        return self.take_slot()

    def return_slot(self, waiter: object) -> None:
        """The waiter has no use for the slot that it took."""
        if self._slots is not None:
            self._slots.return_slot(waiter)

    def start_request(self) -> None:
        """Counts a request that is sent to the engine, after `take_slot`; `end_request` is called once for it."""
        self.in_flight += 1
        if self.announced is not None:
            self._update_energy()

    def end_request(self) -> None:
        """Its slot is free; `notify_slot_freed` is to be called."""
        self.in_flight -= 1
        if self._slots is not None:
            self._slots.free()
        if self.announced is not None:
            self._update_energy()

    def notify_slot_freed(self) -> None:
        if self._slots is not None:
            self._slots.notify_users()
        else:
            self._on_slot_freed()

    def _on_slot_freed(self) -> None:
        for on_slot_freed in self.on_slot_freed:
            on_slot_freed(self)

    @property
    def shares_with_workers(self) -> bool:
        return self._slots is not None and self._slots.workers > 1

    @property
    def equal_share(self) -> int:
        """The slots that this worker has if the workers share them equally; 0 for an engine without a limit."""
        workers = 1 if self._slots is None else self._slots.workers
        return 0 if self.max_in_flight is None else max(1, self.max_in_flight // workers)

    def close(self) -> None:
        """Nothing will use the engine any more."""
        self._set_limit(None)

    def _set_limit(self, limit: int | None) -> None:
        slots = self._slots
        # The file of the slots may have been missing so far, since there was no room for it.
        is_counted = self._all_slots is None or (slots is None) is (limit is None)
        if limit == self.max_in_flight and is_counted:
            return
        self.max_in_flight = limit
        if self._all_slots is None:
            return
        if limit is None:
            self._slots = None
            if slots is not None:
                for _ in range(self.in_flight):
                    slots.free()
                slots.remove_user(self._on_slot_freed)
        elif slots is not None:
            slots.add_user(self._on_slot_freed, limit)
        else:
            self._slots = slots = self._all_slots.open(self.name, self.url)
            slots.add_user(self._on_slot_freed, limit)
            for _ in range(self.in_flight):  # sent while there was no limit
                slots.take_regardless()

    # -- state --------------------------------------------------------------------------------------------------------

    def set_announced(self, announced: AnnouncedEngine | None) -> None:
        """Raises OSError if there is no room for the file of its slots; the limit is that of each worker then."""
        self.announced = announced
        full = self.config.max_in_flight
        if announced is None or announced.capacity == 1:
            self._set_limit(full)
        else:
            self._set_limit(max(1, int((full or UNBOUNDED_IN_FLIGHT) * announced.capacity)))
        self._update_energy()

    def _update_energy(self) -> None:
        watts = self.announced.power_watts if self.announced is not None else None
        self.energy.update(time.perf_counter(), watts, self.load)

    def answers_as(self, revision: str | None, adapter: Adapter | None) -> bool:
        """Whether it has what a key stands for. An adapter may have been replaced since the key was derived."""
        return self.revision == revision and (
            adapter is None or ListedAdapter(adapter.id, adapter.root) in self.adapters
        )

    @property
    def state(self) -> EngineState:
        if self.access.refused is not None:
            return "refused"
        return "unknown" if self.up is None else "up" if self.up else "down"

    def note_refused(self, status: int) -> None:
        """A request got 401, 403 or 407: the engine may refuse the router's credentials."""
        self.access.on_request(status)
        if self.access.refused is not None:
            self.update_status(up=False)

    def update_status(self, *, up: bool, cause: str = "") -> None:
        """`cause`: why it is down, in a few words. Call it after a change of `access`, too."""
        if self.rest:
            self.up = False
            self._note_state(self.rest)
            return
        if self.access.refused is not None:
            self._log_refused(self.access.refused)
        elif up is not self.up or (not up and self._logged_refusal is not None):
            if up:
                log.info("engine %s is up", self.name)
            else:
                log.warning("engine %s is down: %s", self.name, cause or "it does not answer")
        self._logged_refusal = self.access.refused
        self.up = up
        self._note_state(cause)
        if not up:  # what comes up may be another server
            self.kind = self.config.kind
            self.traits = traits_of(self.kind, self.config.stated_traits)
            self.unserved_paths.clear()
            self.learned_limit = LearnedLimit()

    def set_rest(self, rest: str) -> None:
        """Empty: it gets requests once a check finds it up."""
        if rest == self.rest:
            return
        log.info("engine %s is %s", self.name, rest or "awake")
        self.rest = rest
        if rest:
            self.up = False
            self._note_state(rest)

    def leave_gpu(self) -> None:
        """It takes no turns with others any more."""
        if self.rest:
            log.warning("engine %s takes no turns any more, and is %s: nobody wakes it up", self.name, self.rest)
            self.rest = ""

    def _note_state(self, cause: str) -> None:
        state = self.state
        if state != self._state:
            self._state, self.since, self.cause = state, time.time(), ""
        if state == "up":
            self.failures = 0
        elif self.access.refused is not None:
            self.cause = f"status {self.access.refused}"
        elif cause:  # the latest one: a check says more than the request that failed before it
            self.cause = cause[:MAX_CAUSE]

    def note_failure(self, now: float) -> None:
        """A request failed here, and it was the engine's fault. `now`: seconds of a monotonic clock."""
        if self.up is not False and now - self._failed_at > _RECENT:
            self.failures = 0
        self.failures += 1
        self._failed_at = now

    def _log_refused(self, status: int) -> None:
        if self._logged_refusal is None:
            log.warning(
                "engine %s refuses the router's key (status %d): it gets no requests until it lets a check in; "
                "see its api_key",
                self.name, status,
            )  # fmt: skip

    def note_unserved(self, path: str, now: float) -> None:
        """The engine has no route for this path. `now`: seconds of a monotonic clock."""
        if self.unserved_paths.add(path, now):  # once, and not for each request
            log.info("engine %s does not serve %s", self.name, path)

    def learn_kind(self, kind: EngineKind | None) -> None:
        """The server has told its kind, or does not."""
        if self.config.kind is None and kind is not None and kind != self.kind:
            log.info("engine %s is a server of the kind %s", self.name, kind)
            self.kind = kind
            self.traits = traits_of(kind, self.config.stated_traits)

    def may_learn(self, trait: str) -> bool:
        """Whether the configuration leaves it open."""
        return trait not in self.config.stated_traits

    def learn(self, **traits: Any) -> bool:
        """Changes traits to what the server has shown, unless the configuration states them; returns whether it did."""
        learned = {name: value for name, value in traits.items() if self.may_learn(name)}
        changed = msgspec.structs.replace(self.traits, **learned)
        if changed == self.traits:
            return False
        self.traits = changed
        return True

    def forget_parser(self) -> None:
        """The server may have been started with other options."""
        self.learn(parses_tokens=traits_of(self.kind, self.config.stated_traits).parses_tokens)

    def inherit_state(self, previous: "Engine") -> None:
        # After a reload of the settings: the same engine process, so its state is still true.
        self.up, self.drained, self.gauges, self.external_load = (
            previous.up,
            previous.drained,
            previous.gauges,
            previous.external_load,
        )
        self._state, self.since, self.cause = previous._state, previous.since, previous.cause  # noqa: SLF001 - its own kind
        self.rest = previous.rest
        self.failures, self._failed_at = previous.failures, previous._failed_at  # noqa: SLF001 - as above
        self.watch = previous.watch  # it has the requests that are in flight
        self.learned_limit = previous.learned_limit
        self.learn_kind(previous.kind)
        if self.kind == previous.kind:
            self.learn(parses_tokens=previous.traits.parses_tokens)
        self.drafts, self.has_draft = previous.drafts, self.has_draft or previous.has_draft
        self.tokens_per_step_by_bin = previous.tokens_per_step_by_bin
        self.adapters = previous.adapters
        if self.discovers_max_model_len:
            self.max_model_len = previous.max_model_len

    def update_gauges(self, gauges: EngineGauges) -> None:
        self.gauges = gauges
        self.learned_limit.on_reading(
            time.monotonic(), gauges.running, gauges.waiting, gauges.kv_cache_usage, self.in_flight
        )
        known = [count for count in (gauges.running, gauges.waiting) if count is not None]
        # The engine's metrics and `in_flight` are not read at the same instant, so the difference may be negative.
        self.external_load = max(0.0, sum(known, 0.0) - self._counted_in_flight) if known else None
        if gauges.spec_counts is not None:
            self.has_draft = True
        elif gauges.running is not None and self.kind in (None, "vllm"):
            self.has_draft = False  # a vLLM metrics page without speculation metrics
        self._update_energy()

    @property
    def has_key(self) -> bool:
        """Whether its requests carry an `api_key` of the configuration."""
        return "authorization" in self.config.headers

    @property
    def is_full(self) -> bool:
        """Whether all of its slots are taken."""
        return self.max_in_flight is not None and self._counted_in_flight >= self.max_in_flight

    @property
    def spare_slots(self) -> float:
        """How many requests that nobody waits for may begin, so that a share of its slots stays free for others."""
        if self.max_in_flight is not None:
            return ceil(SHARE * self.max_in_flight - self._counted_in_flight)
        return self.learned_limit.spare(self.load)

    @property
    def _counted_in_flight(self) -> int:
        """The requests that are counted as they come and go: at an engine with a limit, also those of other workers."""
        return self.in_flight if self._slots is None else self._slots.count()

    def has_room_for(self, need: ContextNeed) -> bool:
        return not need.exceeds(self.max_model_len, shortens=self.traits.shortens_answers)

    @property
    def load(self) -> float:
        """The number of its requests: those that are counted here, and those of others."""
        return self._counted_in_flight + (self.external_load or 0.0)

    @property
    def discovers_max_model_len(self) -> bool:
        return self.config.max_model_len is None

    def snapshot(self, *, answer_seconds: float = 0.0) -> EngineSnapshot:
        gauges = self.gauges
        return EngineSnapshot(
            self.name, self.task, self.up, self._counted_in_flight, external_load=self.external_load,
            running=gauges.running, waiting=gauges.waiting, url=self.id,
            max_model_len=self.max_model_len, shortens=self.traits.shortens_answers, drained=self.drained,
            answer_seconds=answer_seconds,
        )  # fmt: skip
