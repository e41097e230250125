"""One seed: a world of routers, Redis, engines, clients and operators, its history, and the violations found in it."""

import gc
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Final

import msgspec

from router.core.cache.entry_filter import EntryFilter
from router.net.redis.errors import RedisBackendError
from router.shared.connection.redis import open_backend
from router.store.admin.purge import purge
from tests.simulation import clock
from tests.simulation.clients import PATH, SimulatedRequest, request_body
from tests.simulation.clock import CLOCK
from tests.simulation.engine_answers import EngineRequest
from tests.simulation.engine_model import EngineModel, GenerationScript
from tests.simulation.faults import FAULTS, SILENCE
from tests.simulation.history import FOREVER, FaultRecord, History, RequestRecord, SimulatedGeneration
from tests.simulation.history import SimulatedPurge as Purged
from tests.simulation.invariants import begins_anew, check, parse_answer
from tests.simulation.loop import SimulatedProcess, new_loop
from tests.simulation.mutants import MUTANTS
from tests.simulation.network import SimulatedNetwork
from tests.simulation.plan import FROZEN, POISON, REFUSING, SILENT, STREAM, ScenarioPlan, draw_plan
from tests.simulation.redis_client import OperatorClient
from tests.simulation.redis_model import RedisModel
from tests.simulation.routers import REDIS_ADDRESS, TENANTS, SimulatedRouter

_NO_FIELDS: Final[Mapping[str, object]] = {}
_SETTLE_TIMEOUT: Final = 60.0
"""Maximum seconds from the last fault until all requests and generations have ended.

A stream whose engine stalls is moved to another one after 20 s, and a slow engine takes 15 s for the rest of it.
"""
_RESTART_DELAY: Final = 6.0  # seconds at least from an engine's end until it listens again; vLLM takes longer
_QUIET_PERIOD: Final = 6.0  # seconds after the last request in which all state must be released; three leases
_GENERATION: Final = re.compile(rb"g(\d+)\.0 ")


class SeedReport(msgspec.Struct):
    """`wrong`: the violations, a line each; `trace`: the events, if tracing was on."""

    seed: int
    wrong: list[str]
    counts: dict[str, int]
    trace: list[str]


class World:
    """The simulated processes of one seed, and the schedule of what happens to them."""

    def __init__(
        self, seed: int, kinds: Sequence[str] = (), *, traced: bool = False, plan: ScenarioPlan | None = None
    ) -> None:
        """`kinds`: kinds of faults, `plan`: a plan, instead of those that the seed draws."""
        clock.reset(seed)
        self.random = Random(seed)
        self.plan = plan or draw_plan(self.random, kinds, streams=Random(f"streams of {seed}"))
        self.traced = traced
        self.log: list[str] = []
        self.history = History(self.plan.routers, f"e{self.plan.engines}" if self.plan.standby else "")
        self.loop = new_loop(Random(self.random.random()))
        self.network = SimulatedNetwork(self.loop, Random(self.random.random()))
        self.loop.network = self.network
        self.redis = RedisModel(self.loop, Random(self.random.random()), observe=self._observe)
        self.redis.on_commands_applied = self.entries_changed
        self.network.servers[REDIS_ADDRESS] = self.redis
        self.redis.start()
        if "failover" in self.plan.kinds:
            self.redis.data.journal = []  # a failover rolls back the last writes
        self.engines_break = False
        self.streams_to_break = self.silences = 0
        self._anew: set[tuple[str, int]] = set()  # the questions of which a stream was broken off while it reasoned
        self._exited: set[str] = set()  # the engines whose process a request has ended, now or before
        self.stopped_engine: SimulatedProcess | None = None  # runs again only after its routers have found it down
        script, self._thoughts = Random(self.random.random()), Random(f"thoughts of {seed}")
        self.engines = [
            EngineModel(
                self.loop, f"e{number}",
                lambda request: self._script(script, request), self._generation, on_exit=self._on_engine_exit,
                tells_ids=self.plan.token_ids,
            )
            for number in range(1, self.plan.engines + 1)
        ]  # fmt: skip
        for engine in self.engines:
            self._listen(engine)
        self.routers: list[SimulatedRouter] = []
        self.killed: list[SimulatedRouter] = []
        self.active = True
        self._starts = 0
        self._keys: dict[bytes, tuple[str, int]] = {}
        self._standby_keys: set[bytes] = set()
        self._states: dict[bytes, int] = {}
        self._operator = SimulatedProcess("operator")
        for number in range(1, self.plan.routers + 1):
            self.start_router(f"r{number}")

    # -- events -------------------------------------------------------------------------------------------------------

    def trace(self, text: str) -> None:
        if self.traced:
            self.log.append(f"{CLOCK.now:9.4f} {text}")

    def record_fault(self, kind: str, target: str, seconds: float, *, breaks: bool, leases: int) -> None:
        """A fault starts. `breaks`: requests may fail; `leases`: the number of leases that may be lost."""
        fault = FaultRecord(kind, target, CLOCK.now + seconds, breaks=breaks, leases=leases)
        self.history.faults.append(fault)
        self.trace(f"FAULT {fault!r}")

    def after(self, seconds: float, callback: Callable[..., object], *args: Any) -> None:
        self.loop.deliver(self.loop.world, CLOCK.now + seconds, callback, *args)

    def _observe(self, connection: Any, words: list[bytes]) -> None:
        if self.traced and words[0] not in (b"PING",):
            shown = b" ".join(word if len(word) < 100 else word[:40] + b"..." for word in words[:9])
            self.trace(f"redis < {connection.wire}: {shown.decode('latin-1')!r}")

    def entries_changed(self) -> None:
        """Record which generation each changed entry in Redis holds now."""
        data = self.redis.data
        touched, data.changed_keys = data.changed_keys, {}
        for key in touched:
            parts = key.split(b":")
            if len(parts) != 7 or parts[2] not in (b"acme", b"beta"):
                continue
            value = data.peek(key)
            fields = value if isinstance(value, dict) else {}
            match = _GENERATION.search(b" ".join([field for field in fields.values() if isinstance(field, bytes)]))
            number = int(match[1]) if match is not None else 0
            if number:
                generation = self.history.generations[number - 1]
                self._keys[key] = (parts[2].decode(), generation.question)
                if generation.engine == self.history.standby:
                    self._standby_keys.add(key)
            if key in self._keys and self._states.get(key, 0) != number:
                self._states[key] = number
                self.history.entries.setdefault((*self._keys[key], key), []).append((CLOCK.now, number))
                self.trace(f"redis: the entry of {self._keys[key]} is generation {number}")

    def _script(self, random: Random, request: EngineRequest) -> GenerationScript:
        script = GenerationScript(random, pauses=self.plan.pauses, aborts=self.engines_break)
        poison = self.history.poison
        if poison is not None and request.question == poison.question:
            script.end_engine(random)
            return script
        reasons = self._reasons(request)
        may_break = request.streams and request.start is None and (request.tenant, request.question) not in self._anew
        if self.streams_to_break and may_break and len(script.waits) > 1:
            self.streams_to_break -= 1
            script.break_stream(random)
            if reasons:
                self._anew.add((request.tenant, request.question))
        if self.silences and not script.breaks:
            self.silences -= 1
            script.waits[-1] += SILENCE
        if reasons:
            # Only with ids, another engine can go on with the text after it.
            script.reason(self._thoughts, breaks_in_thoughts=not self.plan.token_ids)
        return script

    def _reasons(self, request: EngineRequest) -> bool:
        # Reasoning counts for a limit of tokens; what the history knows of the answer does not have it.
        may_reason = request.is_chat and request.streams and request.start is None and request.max_tokens is None
        # Without ids, no engine can go on with text after reasoning; a poison ends engines at any token.
        can_go_on = self.plan.token_ids or POISON not in self.plan.kinds
        return self.plan.thoughts and can_go_on and may_reason and self._thoughts.random() < 0.5

    def _generation(self, request: EngineRequest, router: str, engine: str, tokens: int) -> SimulatedGeneration:
        made, start = self.history.generations, request.start
        if request.defect:
            self.history.defects.append(f"7: {engine}, asked by {router}: {request.defect}")
        generation = SimulatedGeneration(len(made) + 1, request.question, router, engine, tokens, request.streams)
        generation.tenant = request.tenant
        if start is not None:
            generation.answer, generation.first = start.answer, start.tokens
            generation.natural, generation.by_ids = made[start.answer - 1].natural, not request.is_chat
        limit = generation.first + (request.max_tokens or generation.natural)
        generation.tokens = min(generation.natural, limit)
        made.append(generation)
        self.trace(f"engine: {generation!r}")
        return generation

    def _listen(self, engine: EngineModel) -> None:
        self.network.servers[engine.process.name, 8000] = engine

    def _on_engine_exit(self, engine: EngineModel) -> None:
        name = engine.process.name
        self._exited.add(name)
        # Routers do not use an engine again at once: their checks, and its breaker, take longer than a history has.
        usable = {each.process.name for each in self.engines} - self._exited - {self.history.standby}
        breaks = not usable or len({STREAM, SILENT, FROZEN, "engine", *REFUSING} & {*self.plan.kinds}) > 0
        # Where a request has been with two of these engines, its followers generate for themselves, without a lease.
        self.record_fault("exit", name, FOREVER if breaks else 0.0, breaks=breaks, leases=len(self.routers))
        self.network.kill(engine.process)
        del self.network.servers[name, 8000]
        self.after(_RESTART_DELAY * (1 + self.random.random()), self._start_engine, engine)

    def _start_engine(self, engine: EngineModel) -> None:
        engine.start()
        self._listen(engine)
        self.trace(f"engine: {engine.process} is started again")

    def start_router(self, name: str) -> None:
        self._starts += 1
        tick = self.random.choice((0.0, 0.002, 0.02)) if self.plan.ticks else 0.0
        router = SimulatedRouter(
            self.loop,
            f"{name}.{self._starts}",
            Random(self.random.random()),
            engines=self.plan.engines,
            standby=self.plan.standby,
            slots=self.plan.slots,
            tick=tick,
        )
        self.routers.append(router)
        router.start()

    def kill(self, router: SimulatedRouter) -> None:
        self.routers.remove(router)
        self.killed.append(router)
        self.network.kill(router.process)
        for request in list(router.requests.values()):
            request.record.end("killed")

    def fail_over(self, instant: float) -> None:
        data = self.redis.data
        data.roll_back_to(instant)
        # A purge whose record is rolled back is not checked.
        for purged in self.history.purges:
            purged.recorded = purged.recorded and purged.returned < instant
        self.entries_changed()

    # -- clients and operators ----------------------------------------------------------------------------------------

    def ask(
        self, tenant: str, question: int, router: SimulatedRouter, *, stream: bool,
        fields: Mapping[str, object] = _NO_FIELDS, path: str = PATH, **headers: str,
    ) -> SimulatedRequest:  # fmt: skip
        record = RequestRecord(len(self.history.requests) + 1, tenant, question, router.name, stream)
        self.history.requests.append(record)
        # Without their ids, tokens are not counted; then nothing goes on with a response that has a limit.
        limited = bool(question % 2) and self.plan.token_ids
        body = request_body(question, limited=limited) | {"stream": stream, "safety_identifier": tenant, **fields}
        request = SimulatedRequest(
            self.loop, record, json.dumps(body).encode(),
            headers=[(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
            pause=self.random.choice((0.05, 0.4)) if self.plan.slow_readers and self.random.random() < 0.3 else 0.0,
            on_ended=lambda request: self._on_request_ended(router, request), path=path,
        )  # fmt: skip
        router.submit(request, self.network.delay())
        self.trace(f"client: {record!r}")
        return request

    def _on_request_ended(self, router: SimulatedRouter, request: SimulatedRequest) -> None:
        router.requests.pop(request.record.number, None)
        self.trace(f"client: {request.record!r}")

    def _random_request(self, question: int) -> None:
        ready = [router for router in self.routers if router.ready]
        if not ready:
            return
        random = self.random
        router = random.choice(ready)
        tenant = random.choice(TENANTS[: self.plan.tenants])
        request = self.ask(tenant, question, router, stream=random.random() < 0.6)
        if self.plan.leaves and random.random() < 0.3:
            self.after(random.choice((0.01, 0.1, 1.0)) * random.random(), router.call_in_process, request.on_disconnect)
            if random.random() < 0.5:
                self.after(0.05 + random.random(), self._random_request, question)

    def ask_poison(self, no_store: bool) -> None:
        poison, ready = self.history.poison, [router for router in self.routers if router.ready]
        if poison is None or not ready:
            return
        router = self.random.choice(ready)
        ask = partial(self.ask, poison.tenant, poison.question, router, stream=poison.stream)
        request = ask(cache_control="no-store") if no_store else ask()
        if self.plan.leaves and self.random.random() < 0.3:
            self.after(self.random.random(), router.call_in_process, request.on_disconnect)

    def _random_purge(self, question: int) -> None:
        random = self.random
        scope, tenant, purged_question, of_standby = EntryFilter(all=True), None, None, None
        draw = random.random()
        if draw < 0.35:
            tenant = random.choice(TENANTS[: self.plan.tenants])
            scope = EntryFilter(tenant=tenant)
        elif draw < 0.75:
            entries = [(key, owner) for key, owner in self._keys.items() if owner[1] == question]
            if entries:
                key, (tenant, purged_question) = entries[random.randrange(len(entries))]
                scope, of_standby = EntryFilter(key=key.decode()), key in self._standby_keys
        elif draw < 0.85:
            scope = EntryFilter(model="llama")
        purged = Purged(len(self.history.purges) + 1, tenant, purged_question, of_standby=of_standby)
        self.history.purges.append(purged)
        self.loop.spawn(self._operator, self._purge(scope, purged))

    async def _purge(self, scope: EntryFilter, purged: Purged) -> None:
        self.trace(f"operator: {purged!r} begins")
        link = open_backend(f"redis://{REDIS_ADDRESS[0]}:{REDIS_ADDRESS[1]}", timeout=2.0)
        try:
            result = await purge(OperatorClient(link), scope)  # type: ignore[arg-type, unused-ignore]
        except RedisBackendError as error:
            self.trace(f"operator: {purged!r} failed: {error}")
        else:
            purged.returned = CLOCK.now
            purged.recorded = purged.recorded and result.recorded
            self.trace(f"operator: {purged!r} is done")
        finally:
            await link.aclose()

    # -- one seed -----------------------------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Schedule the requests, the purges and the faults."""
        random, plan = self.random, self.plan
        for _ in range(plan.episodes):
            start, question = 0.1 + random.random() * plan.seconds, random.randint(1, plan.questions)
            spread = random.choice((0.005, 0.05, 0.5, 2.0))
            for _ in range(random.choice((1, 2, 3, 6))):
                self.after(start + spread * random.random(), self._random_request, question)
            if plan.purges and random.random() < 0.6:
                self.after(start + spread * random.random(), self._random_purge, question)
            if plan.kinds and random.random() < 0.7:  # a fault during requests can do more harm
                kind = random.choice(plan.kinds)
                self.after(max(0.3, start + spread * random.random()), FAULTS[kind], self, random)
        for _ in range(plan.faults):
            kind = random.choice(plan.kinds)
            self.after(0.3 + random.random() * plan.seconds, FAULTS[kind], self, random)

    def run(self) -> list[str]:
        """Run the history. Returns its violations."""
        self.schedule()
        end = 0.1 + self.plan.seconds + 2.0
        self.loop.run(end)
        self._heal()
        # Where Redis' clock was set back, keys with an expiry live longer by that much.
        quiet, wanted = 0.0, _QUIET_PERIOD + max(0.0, -self.redis.offset)
        while quiet < wanted and CLOCK.now < end + _SETTLE_TIMEOUT:
            self.loop.run(CLOCK.now + 0.5)
            busy = any(not record.ending for record in self.history.requests) or any(
                not generation.outcome for generation in self.history.generations
            )
            quiet = 0.0 if busy else quiet + 0.5
        wrong = [line for router in self.routers for line in router.leaks()]
        wrong += self._claims_left()
        self._request_all_cached()
        self.loop.run(CLOCK.now + 1.0)
        for router in self.routers:
            router.stop()
        self.loop.run(CLOCK.now + 3.0)
        wrong += [f"{router.name} does not stop" for router in self.routers if not router.stopped]
        wrong += [
            f"6: {router.name} still has a task: {task!r}"
            for router in self.routers
            for task in router.process.tasks
            if not task.done()
        ]
        for router in (*self.routers, *self.killed):
            for task in router.process.tasks:
                if task.done() and not task.cancelled() and task._log_traceback:
                    wrong.append(f"{router.name}: the exception of a task was never retrieved: {task.exception()!r}")
        return [*wrong, *self.loop.defects, *check(self.history)]

    def _heal(self) -> None:
        self.engines_break, self.streams_to_break, self.silences = False, 0, 0
        for process in (self.redis.process, *(e.process for e in self.engines), *(r.process for r in self.routers)):
            if process is not self.stopped_engine:
                self.loop.thaw(process)
        self.redis.read_only = self.redis.data.full = False
        for engine in self.engines:
            engine.refuses = False
        self.network.slow = 1.0
        self.network.unreachable.clear()
        for wire in list(self.network.wires.values()):
            wire.fault = None

    def _claims_left(self) -> list[str]:
        data = self.redis.data
        return [f"6: Redis still has {key!r}" for key in data.keys("rh:1:claim:*") if data.find(key) is not None]

    def _request_all_cached(self) -> None:
        """Request every entry at every router, without starting a generation."""
        for router in self.routers:
            for tenant in TENANTS[: self.plan.tenants]:
                for question in range(1, self.plan.questions + 1):
                    for stream in (False, True):
                        self.ask(tenant, question, router, stream=stream, cache_control="only-if-cached")

    def close(self) -> None:
        self.loop.close()


class _LoggedErrors(logging.Handler):
    """An error that a handler caught and logged is a violation too."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.loop.call_exception_handler({
            "message": record.getMessage(), "exception": record.exc_info[1] if record.exc_info else None
        })  # fmt: skip


def run_seed(seed: int, kinds: Sequence[str] = (), *, traced: bool = False) -> SeedReport:
    """Run and check one history; see World."""
    world = World(seed, kinds, traced=traced)
    handler = _LoggedErrors(world)
    root = logging.getLogger()
    root.addHandler(handler)
    logging.disable(logging.WARNING)
    try:
        wrong = world.run()
    finally:
        logging.disable(logging.CRITICAL)  # garbage collection of killed processes' tasks logs errors
        root.removeHandler(handler)
        world.close()
    history = world.history
    counts = {
        "requests": len(history.requests), "generations": len(history.generations), "purges": len(history.purges),
        "faults": len(history.faults),
        "continuations by ids": sum(each.is_continuation and each.by_ids for each in history.generations),
        "continuations by text": sum(each.is_continuation and not each.by_ids for each in history.generations),
        "begun anew": sum(begins_anew(parse_answer(request)) for request in history.requests),
        **{f"cache {record.cache or 'none'}": 0 for record in history.requests},
        **{f"ended {record.ending or 'never'}": 0 for record in history.requests},
    }  # fmt: skip
    for record in history.requests:
        counts[f"cache {record.cache or 'none'}"] += 1
        counts[f"ended {record.ending or 'never'}"] += 1
    report = SeedReport(seed, wrong, counts, world.log)
    del world
    return report


def prepare(mutant: str | None = None) -> None:
    """Call once per interpreter, after `clock.install`."""
    if mutant is not None:
        MUTANTS[mutant]()
    gc.disable()
