"""Whose turn it is, where more want a place than there are places.

Theory of operation. What is scarce is places at engines, and tenants hold them for very different times. So a place
that comes free goes to the tenant who holds the fewest, and among those who hold equally many to the one who was given
one the longest ago; within a tenant, to who came first. A tenant with long answers so gets its share of the places and
not all of them, and one with a thousand waiting takes no turn from one with a single request.

The queue has a bound. Once it is full, whoever has the most in it gives way with its newest, so that no tenant can keep
the others out, and a tenant that is alone may fill it.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import ceil
from typing import Final, Generic, TypeVar

T = TypeVar("T")

MAX_ADVISED_RETRY_AFTER: Final = 60
"""The longest that anybody is told to stay away, in seconds; OpenAI's clients take no longer advice."""

_HEAP_SLACK: Final = 64

_TenantRank = tuple[int, int, str]  # places held, when the last was given, and whose they are; the least has its turn


class FairQueue(Generic[T]):
    """What waits for a place, by tenant; items are told apart by identity or by their hash.

    - Of a tenant's items, the first that came has its turn first.
    - A tenant's turn comes once no other that waits holds fewer places, or as many and got its last longer ago.
    - There are never more than `limit` items.
    - All take O(log tenants), but a `pop` that passes over what does not accept, and a `push` onto a full queue.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._queues: dict[str, OrderedDict[T, None]] = {}
        self._slots_held: dict[str, int] = {}
        self._last_grant: dict[str, int] = {}
        self._grant_count = 0
        self._size = 0
        # A heap of turns, in which those that no longer hold stay until they come up.
        self._heap: list[_TenantRank] = []
        self._ranks: dict[str, _TenantRank] = {}

    def __len__(self) -> int:
        return self._size

    def waiting(self, tenant: str) -> int:
        """How many items of a tenant wait."""
        return len(self._queues.get(tenant, ()))

    def has_fair_share(self, tenant: str) -> bool:
        """Whether a tenant has as much of the queue as each of those who wait would have of it, and is not alone."""
        sharing = len(self._queues) + (tenant not in self._queues)
        return sharing > 1 and self.waiting(tenant) * sharing >= self.limit

    # -- places -----------------------------------------------------------------------------------------------------

    def on_acquired(self, tenant: str) -> None:
        """A tenant was given a place."""
        self._grant_count += 1
        self._last_grant[tenant] = self._grant_count
        self._slots_held[tenant] = self._slots_held.get(tenant, 0) + 1
        self._update_rank(tenant)

    def on_released(self, tenant: str) -> None:
        """A tenant gave one back."""
        self._slots_held[tenant] -= 1
        self._update_rank(tenant)

    # -- items ------------------------------------------------------------------------------------------------------

    def push(self, tenant: str, item: T) -> tuple[str, T] | None:
        """Lets an item wait. Gives what has to give way for it, as tenant and item, which may be the item itself."""
        gave_way = None
        if self._size >= self.limit:
            most = max(self._queues, key=self.waiting, default=tenant)
            if self.waiting(tenant) + 1 >= self.waiting(most):
                return tenant, item
            gave_way = most, next(reversed(self._queues[most]))
            self.remove(*gave_way)
        line = self._queues.setdefault(tenant, OrderedDict())
        line[item] = None
        self._size += 1
        if len(line) == 1:
            self._update_rank(tenant)
        return gave_way

    def remove(self, tenant: str, item: T) -> None:
        """It does not wait any more; nothing where it did not."""
        line = self._queues.get(tenant)
        if line is None or item not in line:
            return
        del line[item]
        self._size -= 1
        if not line:
            del self._queues[tenant]
            self._ranks.pop(tenant, None)

    def pop(self, accepts: Callable[[T], bool]) -> T | None:
        """Takes out the item whose turn it is among those that accept the place, which is its tenant's from now on."""
        passed: list[_TenantRank] = []
        found = None
        while self._heap and found is None:
            turn = heapq.heappop(self._heap)
            tenant = turn[2]
            if self._ranks.get(tenant) != turn:
                continue
            found = next((item for item in self._queues[tenant] if accepts(item)), None)
            if found is None:
                passed.append(turn)
            else:
                self.remove(tenant, found)
                self.on_acquired(tenant)
        for turn in passed:
            heapq.heappush(self._heap, turn)
        return found

    def _update_rank(self, tenant: str) -> None:
        if tenant not in self._queues:
            return
        turn = self._ranks[tenant] = (self._slots_held.get(tenant, 0), self._last_grant.get(tenant, 0), tenant)
        heapq.heappush(self._heap, turn)
        if len(self._heap) > 2 * len(self._ranks) + _HEAP_SLACK:
            self._heap = sorted(self._ranks.values())


def estimate_retry_after(waiting: int, finish_times: Sequence[float], now: float, *, default: float) -> int:
    """For `Retry-After`: whole seconds after which so many who wait, and one more, will have had a place; 1 to 60.

    `finished`: instants at which work has been finished lately, the oldest first; `unknown`: seconds without any.
    """
    if not finish_times:
        return _clamp_seconds(default)
    return _clamp_seconds((now - finish_times[0]) / len(finish_times) * (waiting + 1))


def _clamp_seconds(seconds: float) -> int:
    return max(1, min(MAX_ADVISED_RETRY_AFTER, ceil(seconds)))
