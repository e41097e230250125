"""A bounded queue that shares the slots of engines by priority, and fairly between tenants.

Theory of operation. Slots at engines are scarce, and tenants hold them for very different times. A slot that becomes
free goes to the items with the highest priority, which is the lowest number (router.core.quota.priority). Among these,
it goes to the tenant that holds the fewest slots, and among equals to the one whose last grant is the oldest; within a
tenant, in order of arrival. So, at one priority, a tenant with long responses gets its share of the slots and not all
of them, and a tenant with a thousand queued requests does not delay one with a single request.

The items of a tenant with one priority are a lane, which has a rank among all lanes.

When the queue is full, the tenant with the most items loses one: the newest of its lowest priority. So no tenant can
keep the others out, and a tenant that is alone may fill the queue.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import ceil
from typing import Final, Generic, TypeVar

T = TypeVar("T")

MAX_ADVISED_RETRY_AFTER: Final = 60
"""Maximum Retry-After in seconds; OpenAI's clients ignore a longer one."""

# Outdated ranks that the heap may hold beyond a constant share, so that a small heap is not rebuilt all the time.
_HEAP_SLACK: Final = 64

_LaneRank = tuple[int, int, int, str]  # priority, slots held, number of the last grant, tenant; the least is next


class FairQueue(Generic[T]):
    """Items that wait for a slot, by tenant; items must be hashable.

    - An item is served before all with a larger number as their priority.
    - The items of a tenant with one priority are served in order of arrival.
    - Of several tenants with items of one priority, the next is one of which no other holds fewer slots, or as many
      with an older last grant.
    - There are never more than `limit` items.
    - All methods take O(log tenants) and the number of the tenant's priorities, except `remove_if`, a `pop` that skips
      items, and a `push` onto a full queue.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # By tenant and priority, ordered sets; a tenant without items has none, and no lane is empty.
        self._queues: dict[str, dict[int, OrderedDict[T, None]]] = {}
        self._waiting: dict[str, int] = {}  # items by tenant; a tenant without items is absent
        self._slots_held: dict[str, int] = {}
        self._last_grant: dict[str, int] = {}  # the value of _grant_count at that time
        self._grant_count = 0
        self._size = 0
        # A heap cannot drop an inner element cheaply: outdated ranks stay until `pop` meets them, and `_ranks` has the
        # current one of each lane.
        self._heap: list[_LaneRank] = []
        self._ranks: dict[tuple[str, int], _LaneRank] = {}

    def __len__(self) -> int:
        return self._size

    def waiting(self, tenant: str) -> int:
        return self._waiting.get(tenant, 0)

    def has_fair_share(self, tenant: str) -> bool:
        """Whether a tenant has an equal share of the queue or more, and is not alone."""
        tenant_count = len(self._queues) + (tenant not in self._queues)
        return tenant_count > 1 and self.waiting(tenant) * tenant_count >= self.limit

    # -- slots ------------------------------------------------------------------------------------------------------

    def on_acquired(self, tenant: str) -> None:
        """A tenant got a slot; `pop` calls this itself."""
        self._grant_count += 1
        self._last_grant[tenant] = self._grant_count
        self._slots_held[tenant] = self._slots_held.get(tenant, 0) + 1
        self._update_ranks(tenant)

    def on_released(self, tenant: str) -> None:
        self._slots_held[tenant] -= 1
        self._update_ranks(tenant)

    # -- items ------------------------------------------------------------------------------------------------------

    def push(self, tenant: str, item: T, priority: int = 0) -> tuple[str, T] | None:
        """Adds an item. Returns the item that is evicted for it, with its tenant; that may be the new item itself."""
        evicted = None
        if self._size >= self.limit:
            largest = max(self._queues, key=self.waiting, default=tenant)
            # The tenant would have as many as the longest queue: evicting another's item would not make it fairer.
            if self.waiting(tenant) + 1 >= self.waiting(largest):
                largest = tenant
            lowest = max(self._queues.get(largest, ()), default=priority)
            # Of one tenant, an item with a higher priority takes the place of one with a lower.
            if largest == tenant and priority >= lowest:
                return tenant, item
            evicted = largest, next(reversed(self._queues[largest][lowest]))
            self.remove(*evicted)
        lane = self._queues.setdefault(tenant, {}).setdefault(priority, OrderedDict())
        lane[item] = None
        self._size += 1
        self._waiting[tenant] = self._waiting.get(tenant, 0) + 1
        if len(lane) == 1:  # a lane has a rank only while it has items
            self._update_rank(tenant, priority)
        return evicted

    def remove(self, tenant: str, item: T) -> None:
        """Removes an item; does nothing if it is not in the queue."""
        lanes = self._queues.get(tenant, {})
        priority = next((priority for priority, lane in lanes.items() if item in lane), None)
        if priority is None:
            return
        del lanes[priority][item]
        self._size -= 1
        self._waiting[tenant] -= 1
        if not lanes[priority]:
            del lanes[priority]
            self._ranks.pop((tenant, priority), None)
        if not lanes:
            del self._queues[tenant], self._waiting[tenant]

    def remove_if(self, matches: Callable[[T], bool]) -> list[T]:
        """Removes and returns all items that match; they get no slot. Takes O(items)."""
        found = [
            (tenant, item)
            for tenant, lanes in self._queues.items()
            for lane in lanes.values()
            for item in lane
            if matches(item)
        ]
        for tenant, item in found:
            self.remove(tenant, item)
        return [item for _, item in found]

    def pop(self, accepts: Callable[[T], bool]) -> T | None:
        """Removes and returns the next item that accepts the slot; its tenant holds the slot from then on."""
        skipped: list[_LaneRank] = []
        next_item = None
        while self._heap and next_item is None:
            rank = heapq.heappop(self._heap)
            priority, tenant = rank[0], rank[3]
            if self._ranks.get((tenant, priority)) != rank:  # outdated
                continue
            next_item = next((item for item in self._queues[tenant][priority] if accepts(item)), None)
            if next_item is None:
                skipped.append(rank)
            else:
                self.remove(tenant, next_item)
                self.on_acquired(tenant)
        for rank in skipped:  # a lane that was skipped keeps its rank, unless its tenant has got the slot
            heapq.heappush(self._heap, rank)
        return next_item

    def _update_ranks(self, tenant: str) -> None:
        for priority in self._queues.get(tenant, ()):
            self._update_rank(tenant, priority)

    def _update_rank(self, tenant: str, priority: int) -> None:
        rank = (priority, self._slots_held.get(tenant, 0), self._last_grant.get(tenant, 0), tenant)
        self._ranks[tenant, priority] = rank
        heapq.heappush(self._heap, rank)
        # Bounds the outdated ranks. A sorted list is a heap, and the sort is paid by as many pushes before it.
        if len(self._heap) > 2 * len(self._ranks) + _HEAP_SLACK:
            self._heap = sorted(self._ranks.values())


def estimate_retry_after(waiting: int, finish_times: Sequence[float], now: float, *, default: float) -> int:
    """The `Retry-After` of a rejected request: whole seconds, 1 to 60, in which the queue and one more are served.

    `waiting`: the length of the queue. `finish_times`: instants at which requests finished recently, the oldest first.
    `default`: seconds if there are none.
    """
    if not finish_times:
        return _clamp_seconds(default)
    return _clamp_seconds((now - finish_times[0]) / len(finish_times) * (waiting + 1))


def _clamp_seconds(seconds: float) -> int:
    return max(1, min(MAX_ADVISED_RETRY_AFTER, ceil(seconds)))
