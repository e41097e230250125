"""What is killed, frozen, cut or made to fail, and when: a plan that follows from the seed, and its carrying out."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import httpx
import redis.exceptions

from tests.chaos.testbed import House
from tests.support.tcp_proxy import Order


@dataclass(frozen=True, slots=True)
class Deed:
    """What is done to what, at so many seconds from the start, and for how many seconds; `luck` decides the rest."""

    at: float
    victim: str
    what: str
    seconds: float
    luck: int
    fault: Mapping[str, object] = field(default_factory=dict)


_FAULTS: Final[tuple[Mapping[str, object], ...]] = (
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
    *({"fault": "tps", "rate": 20} for _ in range(2)),
    *({"fault": "chunks", "bytes": 7} for _ in range(2)),
)
_STALLED: Final = "stall"  # holds a client for up to 50 s by default, so one request at a time is enough

_ORDERS: Final[tuple[tuple[Order, int], ...]] = (
    (Order("hold", "listening", seconds=0.1), 2),
    (Order("hold", "listening", seconds=0.65), 3),
    (Order("hold", "listening", seconds=2.5), 2),
    (Order("hold", "commands", seconds=0.1), 4),
    (Order("hold", "commands", seconds=0.65), 3),
    (Order("hold", "any", seconds=0.1), 3),
    (Order("hold", "any", seconds=0.65), 3),
    (Order("lose", "commands", seconds=0.03), 4),
    (Order("lose", "commands", seconds=0.3), 2),
    (Order("delay", "any", seconds=1.0, late=0.015), 3),
    (Order("delay", "any", seconds=1.0, late=0.06), 1),
    (Order("cut", "listening"), 2),
    (Order("cut", "commands"), 3),
    (Order("cut", "any"), 1),
)
"""What is done to connections to Redis, with its weight; mostly to one of them."""


@dataclass(frozen=True, slots=True)
class _Habit:
    """How a kind of victim is treated: the deeds with their weights, the pauses, and how long a deed lasts."""

    deeds: Mapping[str, int]
    pause: tuple[float, float]
    lasts: tuple[float, float]


_ENGINE: Final = _Habit({"kill": 2, "freeze": 2, "fault": 6}, pause=(0.8, 4.0), lasts=(0.1, 2.2))
_ROUTER: Final = _Habit({"kill": 4, "freeze": 5, "stop": 1}, pause=(4.0, 12.0), lasts=(0.05, 1.2))
_WORKERS: Final = _Habit(
    {"kill": 3, "freeze": 3, "stop": 1, "kill a worker": 3, "freeze a worker": 3}, pause=(4.0, 12.0), lasts=(0.05, 1.2)
)
_REDIS: Final = _Habit(
    {"kill": 3, "kill and forget": 1, "freeze": 4, "flush": 1, "fail over": 1}, pause=(3.0, 9.0), lasts=(0.05, 1.5)
)
_PROXY: Final = _Habit({"disturb": 1}, pause=(0.2, 1.5), lasts=(0.0, 0.0))
_HABITS: Final = {
    "llama-chat": _ENGINE, "llama-code": _ENGINE, "mistral": _ENGINE, "embed": _ENGINE,
    "router-0": _ROUTER, "router-1": _WORKERS,
    "redis": _REDIS, "proxy": _PROXY,
}  # fmt: skip
_ROUND: Final = 20.0
_CALM: Final = 2.0
"""Seconds at the begin of each round in which nothing is done, so that what goes wrong without any fault shows too."""

_LULL: Final = 7.0
"""And until which only connections to Redis suffer: what is lost then is lost although nobody was away."""

_ALONE: Final = 0.75  # the share of orders that one connection alone suffers


def plan(seed: int, seconds: float) -> list[Deed]:
    """The deeds of so many seconds, as the seed has it; those of a longer time begin with those of a shorter."""
    deeds = []
    for victim, habit in _HABITS.items():
        dice = Random(f"{seed}:{victim}")
        at = dice.uniform(*habit.pause)
        while at < seconds:
            (what,) = dice.choices(list(habit.deeds), list(habit.deeds.values()))
            lasts = dice.uniform(*habit.lasts)
            fault = _fault(dice) if what == "fault" else {}
            if at % _ROUND >= (_CALM if habit is _PROXY else _LULL):
                deeds.append(Deed(at, victim, what, lasts, dice.randrange(2**32), fault))
            at += (0.0 if what in ("fault", "flush") else lasts) + dice.uniform(*habit.pause)
    return deeds


def _fault(dice: Random) -> Mapping[str, object]:
    chosen = {name: value for name, value in dice.choice(_FAULTS).items() if value is not None}
    return {**chosen, "times": 1 if chosen["fault"] == _STALLED else dice.randrange(1, 4)}


def order_of(deed: Deed) -> Order:
    """What is done to connections."""
    dice = Random(deed.luck)
    (order,) = dice.choices([order for order, _ in _ORDERS], [weight for _, weight in _ORDERS])
    pick = dice.random() if dice.random() < _ALONE else None
    return Order(order.what, order.kind, order.seconds, order.late, pick)


async def carry_out(deeds: Iterable[Deed], house: House) -> None:
    """Does all; each victim has one thing done to it at a time, later than planned where it is not yet back."""
    of: dict[str, list[Deed]] = defaultdict(list)
    last = 0.0
    for deed in deeds:
        of[deed.victim].append(deed)
        last = max(last, deed.at)
    began = asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as group:
        for those in of.values():
            group.create_task(_do_all(those, house, began, began + last))


async def _do_all(deeds: Iterable[Deed], house: House, began: float, until: float) -> None:
    loop = asyncio.get_running_loop()
    for deed in deeds:
        if loop.time() > until:  # what came before it took longer than planned
            return
        await asyncio.sleep(began + deed.at - loop.time())
        order = f" {(made := order_of(deed)).what} {made.kind}" if deed.victim == "proxy" else ""
        house.deeds[f"{deed.victim}: {deed.fault.get('fault', deed.what)}{order}"] += 1
        try:
            await _deed(deed, house)
        except (httpx.TransportError, httpx.HTTPStatusError, redis.exceptions.RedisError, OSError) as error:
            # Engines and Redis are only spoken to while they are there.
            house.defects.append(f"{deed} could not be done: {error!r}")


def _deed(deed: Deed, house: House) -> Awaitable[None]:
    name, seconds, dice = deed.victim, deed.seconds, Random(deed.luck)
    number = int(name[-1]) if name.startswith("router-") else 0
    ways: dict[tuple[str, str], Callable[[], Awaitable[Any]]] = {
        ("proxy", "disturb"): lambda: house.redis.disturb(order_of(deed)),
        ("redis", "kill"): lambda: house.redis.kill(dice, seconds, forget=False),
        ("redis", "kill and forget"): lambda: house.redis.kill(dice, seconds, forget=True),
        ("redis", "freeze"): lambda: house.redis.freeze(dice, seconds),
        ("redis", "flush"): house.redis.flush,
        ("redis", "fail over"): lambda: house.redis.fail_over(dice),
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
