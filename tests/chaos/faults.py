"""The faults of the chaos test: a plan of kills, freezes and errors that follows from the seed, and its execution."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import httpx
import redis.exceptions

from tests.chaos.testbed import Testbed
from tests.support.proxy_process import ConnectionFault


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """The `action` on a target, `start` seconds from the beginning and for `seconds`; `seed` decides the details."""

    start: float
    target: str
    action: str
    seconds: float
    seed: int
    engine_fault: Mapping[str, object] = field(default_factory=dict)


_ENGINE_FAULTS: Final[tuple[Mapping[str, object], ...]] = (
    {"fault": "stall", "after": 0},
    {"fault": "stall", "after": 3},
    *({"fault": "error", "after": after} for after in (0, 0, 4, 4)),
    *({"fault": "drop", "after": after} for after in (None, None, 3, 3)),
    *({"fault": "drop", "after": 5, "how": "close"} for _ in range(2)),
    *({"fault": "status", "code": 500} for _ in range(2)),
    *({"fault": "status", "code": 503, "retry_after": "1"} for _ in range(2)),
    *({"fault": "status", "code": 429} for _ in range(2)),
    *({"fault": fault} for fault in ("no_done", "no_done", "no_finish", "no_finish", "malformed", "malformed")),
    *({"fault": "ttft", "ms": ms} for ms in (600, 4000)),
    {"fault": "prefill", "ms": 17_000},  # the clients of streams get heartbeats
    *({"fault": "tps", "rate": 20} for _ in range(2)),
    *({"fault": "chunks", "bytes": 7} for _ in range(2)),
)
_SLOW: Final = (
    "stall",
    "prefill",
)  # they hold a client while its engine works for others, so one request at a time is enough

_CONNECTION_FAULTS: Final[tuple[tuple[ConnectionFault, int], ...]] = (
    (ConnectionFault("hold", "listening", seconds=0.1), 2),
    (ConnectionFault("hold", "listening", seconds=0.65), 3),
    (ConnectionFault("hold", "listening", seconds=2.5), 2),
    (ConnectionFault("hold", "commands", seconds=0.1), 4),
    (ConnectionFault("hold", "commands", seconds=0.65), 3),
    (ConnectionFault("hold", "any", seconds=0.1), 3),
    (ConnectionFault("hold", "any", seconds=0.65), 3),
    (ConnectionFault("lose", "commands", seconds=0.03), 4),
    (ConnectionFault("lose", "commands", seconds=0.3), 2),
    (ConnectionFault("delay", "any", seconds=1.0, late=0.015), 3),
    (ConnectionFault("delay", "any", seconds=1.0, late=0.06), 1),
    (ConnectionFault("cut", "listening"), 2),
    (ConnectionFault("cut", "commands"), 3),
    (ConnectionFault("cut", "any"), 1),
)
"""Faults of connections to Redis, with their weights; most affect a single connection."""


@dataclass(frozen=True, slots=True)
class _FaultProfile:
    """The faults of a kind of target with their weights, the pauses between them, and their duration, in seconds."""

    weights: Mapping[str, int]
    pause: tuple[float, float]
    duration: tuple[float, float]


_ENGINE: Final = _FaultProfile({"kill": 2, "freeze": 2, "fault": 6}, pause=(0.8, 4.0), duration=(0.1, 2.2))
_ROUTER: Final = _FaultProfile({"kill": 4, "freeze": 5, "stop": 1}, pause=(4.0, 12.0), duration=(0.05, 1.2))
_WORKERS: Final = _FaultProfile(
    {"kill": 3, "freeze": 3, "stop": 1, "kill a worker": 3, "freeze a worker": 3},
    pause=(4.0, 12.0),
    duration=(0.05, 1.2),
)
_REDIS: Final = _FaultProfile(
    {"kill": 3, "kill and forget": 1, "freeze": 4, "flush": 1, "fail over": 1, "full": 2},
    pause=(3.0, 9.0),
    duration=(0.05, 1.5),
)
_PROXY: Final = _FaultProfile({"disturb": 1}, pause=(0.2, 1.5), duration=(0.0, 0.0))
_PROFILES: Final = {
    "llama-chat": _ENGINE, "llama-code": _ENGINE, "mistral": _ENGINE, "embed": _ENGINE,
    "router-0": _ROUTER, "router-1": _WORKERS,
    "redis": _REDIS, "proxy": _PROXY,
}  # fmt: skip
_ROUND: Final = 20.0
_CALM_SECONDS: Final = 2.0
"""Seconds without faults at the beginning of each round, to show defects that need no fault."""

_CONNECTION_FAULTS_ONLY: Final = 7.0
"""Until this second of a round, only connections to Redis fail: a loss in that time happens without an outage."""

_SINGLE_CONNECTION_SHARE: Final = 0.75  # of connection faults: they affect one connection


def plan_faults(seed: int, seconds: float) -> list[PlannedFault]:
    """The faults of so many seconds, chosen by the seed; a longer plan begins with the shorter one."""
    faults = []
    for target, profile in _PROFILES.items():
        rng = Random(f"{seed}:{target}")
        start = rng.uniform(*profile.pause)
        while start < seconds:
            (action,) = rng.choices(list(profile.weights), list(profile.weights.values()))
            duration = rng.uniform(*profile.duration)
            fault = _engine_fault(rng) if action == "fault" else {}
            if start % _ROUND >= (_CALM_SECONDS if profile is _PROXY else _CONNECTION_FAULTS_ONLY):
                faults.append(PlannedFault(start, target, action, duration, rng.randrange(2**32), fault))
            # Faults of an engine and flushes take no time of the target's own.
            start += (0.0 if action in ("fault", "flush") else duration) + rng.uniform(*profile.pause)
    return faults


def _engine_fault(rng: Random) -> Mapping[str, object]:
    chosen = {name: value for name, value in rng.choice(_ENGINE_FAULTS).items() if value is not None}
    return {**chosen, "times": 1 if chosen["fault"] in _SLOW else rng.randrange(1, 4)}


def connection_fault(planned: PlannedFault) -> ConnectionFault:
    # Follows from the fault's own seed, so calling it twice gives the same.
    rng = Random(planned.seed)
    (chosen,) = rng.choices([chosen for chosen, _ in _CONNECTION_FAULTS], [weight for _, weight in _CONNECTION_FAULTS])
    position = rng.random() if rng.random() < _SINGLE_CONNECTION_SHARE else None
    return ConnectionFault(chosen.what, chosen.kind, chosen.seconds, chosen.late, position)


async def run_faults(planned: Iterable[PlannedFault], testbed: Testbed) -> None:
    """Execute the plan. Each target has one fault at a time, delayed if it has not yet recovered."""
    by_target: dict[str, list[PlannedFault]] = defaultdict(list)
    last = 0.0
    for fault in planned:
        by_target[fault.target].append(fault)
        last = max(last, fault.start)
    started = asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as group:
        for faults in by_target.values():
            group.create_task(_run_target_faults(faults, testbed, started, started + last))


async def _run_target_faults(planned: Iterable[PlannedFault], testbed: Testbed, started: float, until: float) -> None:
    loop = asyncio.get_running_loop()
    for fault in planned:
        if loop.time() > until:  # earlier faults took longer than planned
            return
        await asyncio.sleep(started + fault.start - loop.time())
        detail = f" {(injected := connection_fault(fault)).what} {injected.kind}" if fault.target == "proxy" else ""
        testbed.fault_counts[f"{fault.target}: {fault.engine_fault.get('fault', fault.action)}{detail}"] += 1
        try:
            await _apply(fault, testbed)
        except (httpx.TransportError, httpx.HTTPStatusError, redis.exceptions.RedisError, OSError) as error:
            # A target accepts commands except during its own fault, so this is a defect.
            testbed.defects.append(f"{fault} could not be done: {error!r}")


def _apply(planned: PlannedFault, testbed: Testbed) -> Awaitable[None]:
    name, seconds, rng = planned.target, planned.seconds, Random(planned.seed)
    number = int(name[-1]) if name.startswith("router-") else 0
    actions: dict[tuple[str, str], Callable[[], Awaitable[Any]]] = {
        ("proxy", "disturb"): lambda: testbed.redis.inject(connection_fault(planned)),
        ("redis", "kill"): lambda: testbed.redis.kill(rng, seconds, erase=False),
        ("redis", "kill and forget"): lambda: testbed.redis.kill(rng, seconds, erase=True),
        ("redis", "freeze"): lambda: testbed.redis.freeze(rng, seconds),
        ("redis", "flush"): testbed.redis.flush,
        ("redis", "full"): lambda: testbed.redis.fill(seconds),
        ("redis", "fail over"): lambda: testbed.redis.fail_over(rng),
        ("router", "kill"): lambda: testbed.kill_router(number, seconds),
        ("router", "stop"): lambda: testbed.stop_router(number, seconds),
        ("router", "freeze"): lambda: testbed.freeze_router(number, seconds),
        ("router", "kill a worker"): lambda: testbed.kill_worker(number),
        ("router", "freeze a worker"): lambda: testbed.freeze_worker(number, seconds),
        ("engine", "kill"): lambda: testbed.kill_engine(name, seconds),
        ("engine", "freeze"): lambda: testbed.freeze_engine(name, seconds),
        ("engine", "fault"): lambda: testbed.set_engine_fault(name, dict(planned.engine_fault)),
    }
    kind = "engine" if name in testbed.engines else name.partition("-")[0]
    return actions[kind, planned.action]()
