"""The queue and the choice of an engine in one router process, with the router's own decisions.

This uses router.core.quota.fair_queue, router.core.routing.ranking, and the queue's length of
router.flow.attempts.admission.
Left out: prefixes, priorities, breakers, fallbacks, and engines that are down.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from lab.scale.batch_engine import BatchEngine
from lab.scale.event_loop import EventLoop
from router.core.quota.fair_queue import FairQueue, estimate_retry_after
from router.core.routing.ranking import EngineSnapshot, rank_engines
from router.flow.attempts.admission import max_queue_length

_MAX_FINISH_TIMES: Final = 64
_MIN_QUEUE_TIME: Final = 0.1  # seconds, as in router.flow.gateway


class Waiter:
    """A request that wants a slot."""

    __slots__ = ("asked", "on_refused", "on_slot", "tenant", "waiting")

    def __init__(
        self, tenant: str, asked: float, on_slot: Callable[[int], None], on_refused: Callable[[str, int], None]
    ) -> None:
        """`on_slot` gets the engine's number; `on_refused` an error's code and the Retry-After in seconds.

        `asked`: when its client sent it. It may have waited in the queue of another process since.
        """
        self.tenant = tenant
        self.asked = asked
        self.on_slot = on_slot
        self.on_refused = on_refused
        self.waiting = False


class ProcessAdmission:
    """The slots that one router process has at each engine, and its queue."""

    def __init__(
        self, loop: EventLoop, engines: Sequence[BatchEngine], *, max_in_flight: int, queue_timeout: float
    ) -> None:
        """`max_in_flight`: of this process at each engine. `queue_timeout` in seconds."""
        self._loop = loop
        self._engines = engines
        self._names = [f"engine-{number}" for number in range(len(engines))]
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._max_in_flight = max_in_flight
        self._queue_timeout = queue_timeout
        self._in_flight = [0] * len(engines)
        self._external: list[float] = [0.0] * len(engines)
        self._queue: FairQueue[Waiter] = FairQueue(max_queue_length(max_in_flight * len(engines)))
        self._finish_times: deque[float] = deque(maxlen=_MAX_FINISH_TIMES)

    @property
    def queued(self) -> int:
        return len(self._queue)

    def probe(self) -> None:
        """Reads the engines' own metrics, as EngineProbe does."""
        self._external = [
            max(0.0, engine.running + engine.waiting - own)
            for engine, own in zip(self._engines, self._in_flight, strict=True)
        ]

    def acquire(self, waiter: Waiter) -> None:
        for number in self._ranked():
            if self._in_flight[number] < self._max_in_flight:
                self._in_flight[number] += 1
                self._queue.on_acquired(waiter.tenant)
                waiter.on_slot(number)
                return
        waiter.waiting = True
        evicted = self._queue.push(waiter.tenant, waiter)
        if evicted is not None:
            self._refuse(evicted[1], "queue_full" if evicted[1] is waiter else "tenant_queue_full")
        if waiter.waiting:
            left = self._queue_timeout - (self._loop.now - waiter.asked)
            self._loop.after(max(_MIN_QUEUE_TIME, left), self._on_timeout, waiter)

    def release(self, number: int, tenant: str) -> None:
        self._in_flight[number] -= 1
        self._queue.on_released(tenant)
        self._finish_times.append(self._loop.now)
        waiter = self._queue.pop(lambda _: True)
        if waiter is not None:
            self._in_flight[number] += 1
            waiter.waiting = False
            waiter.on_slot(number)

    def _ranked(self) -> Sequence[int]:
        if len(self._engines) == 1:
            return (0,)
        snapshots = [
            EngineSnapshot(name, "any", True, own, external_load=external)
            for name, own, external in zip(self._names, self._in_flight, self._external, strict=True)
        ]
        return [self._numbers[each.name] for each in rank_engines(snapshots)]

    def _on_timeout(self, waiter: Waiter) -> None:
        if waiter.waiting:
            self._queue.remove(waiter.tenant, waiter)
            self._refuse(waiter, "queue_timeout")

    def _refuse(self, waiter: Waiter, code: str) -> None:
        waiter.waiting = False
        retry_after = estimate_retry_after(
            len(self._queue), self._finish_times, self._loop.now, default=self._queue_timeout
        )
        waiter.on_refused(code, retry_after)
