"""Who is killed, frozen or made to fail, and when: a plan that follows from the seed, and its carrying out."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import httpx
import redis.exceptions
from house import House


@dataclass(frozen=True, slots=True)
class Deed:
    """What is done to whom, at so many seconds from the start, and for how many seconds."""

    at: float
    victim: str
    what: str
    seconds: float
    fault: Mapping[str, object] = field(default_factory=dict)


_FAULTS: Final[tuple[Mapping[str, object], ...]] = (
    {"fault": "stall", "after": 0},
    {"fault": "stall", "after": 3},
    {"fault": "error", "after": 0},
    {"fault": "error", "after": 4},
    {"fault": "drop"},
    {"fault": "drop", "after": 3},
    {"fault": "drop", "after": 5, "how": "close"},
    {"fault": "status", "code": 500},
    {"fault": "status", "code": 503, "retry_after": "1"},
    {"fault": "status", "code": 429},
    {"fault": "no_done"},
    {"fault": "no_finish"},
    {"fault": "malformed"},
    {"fault": "ttft", "ms": 600},
    {"fault": "tps", "rate": 20},
    {"fault": "chunks", "bytes": 7},
)


@dataclass(frozen=True, slots=True)
class _Habit:
    """How a kind of victim is treated: the deeds with their weights, the pauses, and how long a deed lasts."""

    deeds: Mapping[str, int]
    pause: tuple[float, float]
    lasts: tuple[float, float]


_ENGINE: Final = _Habit({"kill": 2, "freeze": 2, "fault": 6}, pause=(0.4, 2.5), lasts=(0.1, 2.2))
_ROUTER: Final = _Habit({"kill": 3, "freeze": 3, "stop": 2}, pause=(2.0, 5.0), lasts=(0.05, 1.2))
_WORKERS: Final = _Habit(
    {"kill": 2, "freeze": 2, "stop": 2, "kill a worker": 2, "freeze a worker": 2}, pause=(2.0, 5.0), lasts=(0.05, 1.2)
)
_REDIS: Final = _Habit({"kill": 3, "kill and forget": 1, "freeze": 4, "flush": 1}, pause=(1.0, 4.0), lasts=(0.05, 1.5))
_HABITS: Final = {
    "llama-chat": _ENGINE, "llama-code": _ENGINE, "mistral": _ENGINE,
    "router-0": _ROUTER, "router-1": _WORKERS,
    "redis": _REDIS,
}  # fmt: skip


def plan(seed: int, seconds: float) -> list[Deed]:
    """The deeds of so many seconds, as the seed has it; those of a longer time begin with those of a shorter."""
    deeds = []
    for victim, habit in _HABITS.items():
        dice = Random(f"{seed}:{victim}")
        at = dice.uniform(*habit.pause)
        while at < seconds:
            (what,) = dice.choices(list(habit.deeds), list(habit.deeds.values()))
            lasts = dice.uniform(*habit.lasts)
            fault = {**dice.choice(_FAULTS), "times": dice.randrange(1, 4)} if what == "fault" else {}
            deeds.append(Deed(at, victim, what, lasts, fault))
            at += (0.0 if what in ("fault", "flush") else lasts) + dice.uniform(*habit.pause)
    return deeds


async def carry_out(deeds: Iterable[Deed], house: House) -> None:
    """Does all; each victim has one thing done to it at a time, later than planned where it is not yet back."""
    of: dict[str, list[Deed]] = defaultdict(list)
    for deed in deeds:
        of[deed.victim].append(deed)
    began = asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as group:
        for those in of.values():
            group.create_task(_do_all(those, house, began))


async def _do_all(deeds: Iterable[Deed], house: House, began: float) -> None:
    loop = asyncio.get_running_loop()
    for deed in deeds:
        await asyncio.sleep(began + deed.at - loop.time())
        house.deeds[f"{deed.victim}: {deed.fault.get('fault', deed.what)}"] += 1
        try:
            await _deed(deed, house)
        except (httpx.TransportError, httpx.HTTPStatusError, redis.exceptions.RedisError) as error:
            # Engines and Redis are only spoken to while they are there.
            house.defects.append(f"{deed} could not be done: {error!r}")


def _deed(deed: Deed, house: House) -> Awaitable[None]:
    name, seconds = deed.victim, deed.seconds
    number = int(name[-1]) if name.startswith("router-") else 0
    ways: dict[tuple[str, str], Callable[[], Awaitable[Any]]] = {
        ("redis", "kill"): lambda: house.kill_redis(seconds, forget=False),
        ("redis", "kill and forget"): lambda: house.kill_redis(seconds, forget=True),
        ("redis", "freeze"): lambda: house.freeze_redis(seconds),
        ("redis", "flush"): house.flush_redis,
        ("router", "kill"): lambda: house.kill_router(number, seconds),
        ("router", "stop"): lambda: house.stop_router(number, seconds),
        ("router", "freeze"): lambda: house.freeze_router(number, seconds),
        ("router", "kill a worker"): lambda: house.kill_worker(number),
        ("router", "freeze a worker"): lambda: house.freeze_worker(number, seconds),
        ("engine", "kill"): lambda: house.kill_engine(name, seconds),
        ("engine", "freeze"): lambda: house.freeze_engine(name, seconds),
        ("engine", "fault"): lambda: house.mar_engine(name, dict(deed.fault)),
    }
    kind = "engine" if name in house.engines else name.partition("-")[0]
    return ways[kind, deed.what]()
