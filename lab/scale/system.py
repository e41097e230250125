"""The simulated system: router processes, Redis shards and engines, and the way of a request through them.

Theory of operation. A request goes to a random router process, which looks into its memory, then asks Redis. A hit is
answered. A miss claims the generation, waits for a slot, and streams; requests for the same prompt meanwhile follow it.
Each step is CPU work of a known length at a server with a queue. The events of a stream are charged in a few slices.

What grows with the whole system, and not with a process' own requests, is a share of each server's time: the pushes for
each stored entry, the probes of all engines, the idle work. It is set anew every second, from the entries stored in the
second before.

Reduction. `reduction` k simulates one k-th of the router processes, of the engines and of the requests, and all Redis
shards as slices: a slice has one k-th of a shard's requests, and each takes k times as long, so its utilization is the
shard's, while the wait for it is overstated up to k times. The costs of the whole system's pushes stay those of the
whole system. The cache must then be a StationaryCache of the whole system's rates.
"""

from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

import xxhash

from lab.scale.admission import ProcessAdmission, Waiter
from lab.scale.batch_engine import BatchEngine
from lab.scale.caches import Cache, Generation
from lab.scale.costs import Costs
from lab.scale.event_loop import EventLoop
from lab.scale.fan_out import PROBE_INTERVAL
from lab.scale.outcomes import FOLLOWER, HIT, MISS, Outcome
from lab.scale.popularity import Prompt
from lab.scale.servers import FifoServer
from lab.scale.speeds import EngineSpeed

_SLICES: Final = 4
_MAX_BACKGROUND: Final = 0.98  # of a server's time: with more it would never end, and is saturated in any case


class Size(NamedTuple):
    """The whole system. `max_in_flight`: of one process at one engine; `round_trip` to Redis; times in seconds."""

    processes: int
    engines: int
    shards: int
    speed: EngineSpeed
    max_in_flight: int
    max_num_seqs: int
    queue_timeout: float = 10.0
    round_trip: float = 0.0002


class Load(NamedTuple):
    """Utilizations, 0 to 1 and above where work arrives faster than it is done; a process' and a shard's background."""

    process_mean: float
    process_max: float
    process_background: float
    shard_mean: float
    shard_max: float
    shard_background: float
    engine_running_mean: float
    engine_running_max: float
    tokens_per_s: float
    queued: int


class Request:
    """A request on its way. `prompt`: None for one that nobody repeats."""

    __slots__ = ("asked", "first", "on_outcome", "process", "prompt", "tenant", "tokens")

    def __init__(
        self,
        tenant: str,
        prompt: Prompt | None,
        tokens: int,
        process: int,
        asked: float,
        on_outcome: Callable[[Outcome, int], None],
    ) -> None:
        self.tenant = tenant
        self.prompt = prompt
        self.tokens = tokens
        self.process = process
        self.asked = asked
        self.first = 0.0
        self.on_outcome = on_outcome


class System:
    """`outcomes` has what ended since `reset`."""

    def __init__(
        self, loop: EventLoop, random: Random, size: Size, costs: Costs, cache: Cache, *, reduction: int = 1
    ) -> None:
        self._loop = loop
        self._random = random
        self._size = size
        self._costs = costs
        self._cache = cache
        self._reduction = reduction
        processes = max(1, round(size.processes / reduction))
        self._processes = [FifoServer(loop) for _ in range(processes)]
        self._shards = [FifoServer(loop) for _ in range(size.shards)]
        self._engines = [
            BatchEngine(loop, size.speed, max_num_seqs=size.max_num_seqs)
            for _ in range(max(1, round(size.engines / reduction)))
        ]
        # A process of the reduced system has fewer engines, and as many slots at all of them together.
        slots = max(1, round(size.max_in_flight * size.engines / len(self._engines)))
        self._admissions = [
            ProcessAdmission(loop, self._engines, max_in_flight=slots, queue_timeout=size.queue_timeout)
            for _ in self._processes
        ]
        self._ranking = size.engines * costs.rank_engine if size.engines > 1 else 0.0
        self._stored = 0
        self._process_background = 0.0
        self._shard_background = 0.0
        self.outcomes: list[Outcome] = []
        self._update_background()
        for admission in self._admissions:
            loop.after(random.random() * PROBE_INTERVAL, self._probe, admission)

    def request(
        self,
        tenant: str,
        prompt: Prompt | None,
        tokens: int,
        on_outcome: Callable[[Outcome, int], None] = lambda outcome, retry_after: None,
        process: int | None = None,
    ) -> None:
        """A request arrives now, at this router process or at a random one.

        `on_outcome` also gets the Retry-After of a refusal, in seconds, else 0.
        """
        if process is None:
            process = self._random.randrange(len(self._processes))
        request = Request(tenant, prompt, tokens, process, self._loop.now, on_outcome)
        cpu = self._processes[process]
        if prompt is not None and self._cache.is_local(process, prompt, self._loop.now):
            request.first = -1.0  # at its end
            cpu.submit(self._costs.hit_local, self._finish, request, HIT, True)
        else:
            cpu.submit(self._costs.hit_local / 2, self._ask_redis, request, self._costs.redis_lookup, self._on_lookup)

    def reset(self) -> None:
        """Forgets what was measured so far; nothing else."""
        self.outcomes = []
        for server in (*self._processes, *self._shards):
            server.reset()
        for engine in self._engines:
            engine.reset()

    def load(self, seconds: float) -> Load:
        """Over `seconds` since `reset`."""
        processes = [server.utilization(seconds) - server.background for server in self._processes]
        shards = [server.utilization(seconds) - server.background for server in self._shards]
        running = [engine.mean_running(seconds) for engine in self._engines]
        return Load(
            process_mean=sum(processes) / len(processes) + self._process_background,
            process_max=max(processes) + self._process_background,
            process_background=self._process_background,
            shard_mean=sum(shards) / len(shards) + self._shard_background,
            shard_max=max(shards) + self._shard_background,
            shard_background=self._shard_background,
            engine_running_mean=sum(running) / len(running),
            engine_running_max=max(running),
            tokens_per_s=sum(engine.tokens for engine in self._engines) / seconds,
            queued=sum(admission.queued for admission in self._admissions),
        )

    # -- the way of a request -------------------------------------------------------------------------------------

    def _ask_redis(self, request: Request, seconds: float, then: Callable[[Request], None]) -> None:
        prompt = request.prompt
        if prompt is None:
            shard = self._random.randrange(len(self._shards))
        else:  # by the key, as in a cluster
            shard = xxhash.xxh32_intdigest(b"%d:%d" % prompt) % len(self._shards)
        server = self._shards[shard]
        half = self._size.round_trip / 2
        self._loop.after(
            half,
            lambda: server.submit(seconds * self._reduction, lambda: self._loop.after(half, then, request)),
        )

    def _on_lookup(self, request: Request) -> None:
        now, prompt = self._loop.now, request.prompt
        found = False if prompt is None else self._cache.look_up(request.process, prompt, now)
        cpu = self._processes[request.process]
        if found is True:
            request.first = -1.0
            cpu.submit(max(0.0, self._costs.hit_redis - self._costs.hit_local / 2), self._finish, request, HIT)
        elif isinstance(found, Generation):
            cpu.submit(self._costs.hit_local / 2, self._follow, request, found)
        else:
            generation = Generation(request.process, now, request.tokens)
            if prompt is not None:
                self._cache.begin(prompt, generation)
            cpu.submit(
                max(0.0, self._costs.stream - self._costs.hit_local / 2) / 2 + self._ranking,
                self._ask_redis,
                request,
                self._costs.redis_claim,
                lambda request: self._want_slot(request, generation),
            )

    def _want_slot(self, request: Request, generation: Generation) -> None:
        def on_slot(engine: int) -> None:
            self._engines[engine].start(
                request.tokens,
                lambda: self._on_first(request, generation, engine),
                lambda: self._on_end(request, generation, engine),
            )

        def on_refused(code: str, retry_after: int) -> None:
            generation.failed = True  # before the cache ends it, so that it is not stored
            if request.prompt is not None:
                self._cache.end(request.prompt, generation, self._loop.now)
            generation.has_ended(self._loop.now, failed=True)
            self._finish(request, code, False, retry_after)

        waiter = Waiter(request.tenant, request.asked, on_slot, on_refused)
        self._admissions[request.process].acquire(waiter)

    def _on_first(self, request: Request, generation: Generation, engine: int) -> None:
        generation.has_first(self._loop.now)
        self._processes[request.process].submit(self._costs.event, self._note_first, request)
        step = self._engines[engine].step
        self._charge_slices(request.process, request.tokens - 1, self._costs.event, step * (request.tokens - 1))

    def _on_end(self, request: Request, generation: Generation, engine: int) -> None:
        self._stored += 1
        self._admissions[request.process].release(engine, request.tenant)
        if request.prompt is not None:
            # `ended` first: the stationary cache repeats this generation for followers to come.
            generation.ended = self._loop.now
            self._cache.end(request.prompt, generation, self._loop.now)
        generation.has_ended(self._loop.now)
        self._ask_redis(request, self._costs.redis_store, lambda _: None)
        self._processes[request.process].submit(self._costs.stream / 2, self._finish, request, MISS)

    def _follow(self, request: Request, generation: Generation) -> None:
        remote = generation.process != request.process
        event = self._costs.follower_event + (self._costs.remote_event if remote else 0.0)
        cpu = self._processes[request.process]

        def on_first() -> None:
            cpu.submit(event, self._note_first, request)
            self._charge_slices(request.process, generation.tokens - 1, event, 0.0)
            if remote:
                self._ask_redis(request, generation.tokens * self._costs.redis_remote_event, lambda _: None)

        def on_end(succeeded: bool) -> None:
            if succeeded or not remote:
                cpu.submit(0.0, self._finish, request, FOLLOWER if succeeded else "leader_refused")
            else:  # another process' queue refused it: this process takes over, as router.flow.sharing.leadership does
                self._ask_redis(request, self._costs.redis_lookup, self._on_lookup)

        if generation.first is not None and generation.ended is not None:  # of a stationary cache: it is known
            self._loop.after(max(0.0, generation.first - self._loop.now), on_first)
            self._loop.after(max(0.0, generation.ended - self._loop.now), on_end, True)
        else:
            generation.follow(on_first, on_end)

    def _charge_slices(self, process: int, events: int, seconds: float, duration: float) -> None:
        cpu = self._processes[process]
        for number in range(_SLICES):
            self._loop.after(duration * (number + 1) / _SLICES, cpu.submit, events * seconds / _SLICES)

    def _note_first(self, request: Request) -> None:
        request.first = self._loop.now - request.asked

    def _finish(self, request: Request, kind: str, local: bool = False, retry_after: int = 0) -> None:
        total = self._loop.now - request.asked
        # A hit, and a stream that ends before its first event was written, have their first token at the end.
        first = request.first if request.first > 0 else total
        outcome = Outcome(kind, first, total, local)
        self.outcomes.append(outcome)
        request.on_outcome(outcome, retry_after)

    # -- what depends on the whole system --------------------------------------------------------------------------

    def _probe(self, admission: ProcessAdmission) -> None:
        admission.probe()
        self._loop.after(PROBE_INTERVAL, self._probe, admission)

    def _update_background(self) -> None:
        size, costs = self._size, self._costs
        writes = self._stored * self._reduction  # in the last second, by the whole system
        self._stored = 0
        self._process_background = costs.idle + size.engines * costs.idle_engine + writes * costs.invalidation
        self._shard_background = (
            size.processes * costs.redis_idle + writes / size.shards * size.processes * costs.redis_invalidation
        )
        for server in self._processes:
            server.background = min(_MAX_BACKGROUND, self._process_background)
        for server in self._shards:
            server.background = min(_MAX_BACKGROUND, self._shard_background)
        self._loop.after(1.0, self._update_background)
