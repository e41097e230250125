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

MOST_SECONDS: Final = 60
"""The longest that anybody is told to stay away, in seconds; OpenAI's clients take no longer advice."""

_SLACK: Final = 64

_Turn = tuple[int, int, str]  # places held, when the last was given, and whose they are; the least has its turn


class FairQueue(Generic[T]):
    """What waits for a place, by tenant; items are told apart by identity or by their hash.

    - Of a tenant's items, the first that came has its turn first.
    - A tenant's turn comes once no other that waits holds fewer places, or as many and got its last longer ago.
    - There are never more than `limit` items.
    - All take O(log tenants), but a `pop` that passes over what does not accept, and a `push` onto a full queue.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lines: dict[str, OrderedDict[T, None]] = {}
        self._held: dict[str, int] = {}
        self._given: dict[str, int] = {}
        self._clock = 0
        self._size = 0
        # A heap of turns, in which those that no longer hold stay until they come up.
        self._turns: list[_Turn] = []
        self._turn: dict[str, _Turn] = {}

    def __len__(self) -> int:
        return self._size

    def waiting(self, tenant: str) -> int:
        """How many items of a tenant wait."""
        return len(self._lines.get(tenant, ()))

    def has_its_share(self, tenant: str) -> bool:
        """Whether a tenant has as much of the queue as each of those who wait would have of it, and is not alone."""
        sharing = len(self._lines) + (tenant not in self._lines)
        return sharing > 1 and self.waiting(tenant) * sharing >= self.limit

    # -- places -----------------------------------------------------------------------------------------------------

    def began(self, tenant: str) -> None:
        """A tenant was given a place."""
        self._clock += 1
        self._given[tenant] = self._clock
        self._held[tenant] = self._held.get(tenant, 0) + 1
        self._turn_changed(tenant)

    def ended(self, tenant: str) -> None:
        """A tenant gave one back."""
        self._held[tenant] -= 1
        self._turn_changed(tenant)

    # -- items ------------------------------------------------------------------------------------------------------

    def push(self, tenant: str, item: T) -> tuple[str, T] | None:
        """Lets an item wait. Gives what has to give way for it, as tenant and item, which may be the item itself."""
        gave_way = None
        if self._size >= self.limit:
            most = max(self._lines, key=self.waiting, default=tenant)
            if self.waiting(tenant) + 1 >= self.waiting(most):
                return tenant, item
            gave_way = most, next(reversed(self._lines[most]))
            self.remove(*gave_way)
        line = self._lines.setdefault(tenant, OrderedDict())
        line[item] = None
        self._size += 1
        if len(line) == 1:
            self._turn_changed(tenant)
        return gave_way

    def remove(self, tenant: str, item: T) -> None:
        """It does not wait any more; nothing where it did not."""
        line = self._lines.get(tenant)
        if line is None or item not in line:
            return
        del line[item]
        self._size -= 1
        if not line:
            del self._lines[tenant]
            self._turn.pop(tenant, None)

    def pop(self, accepts: Callable[[T], bool]) -> T | None:
        """Takes out the item whose turn it is among those that accept the place, which is its tenant's from now on."""
        passed: list[_Turn] = []
        found = None
        while self._turns and found is None:
            turn = heapq.heappop(self._turns)
            tenant = turn[2]
            if self._turn.get(tenant) != turn:
                continue
            found = next((item for item in self._lines[tenant] if accepts(item)), None)
            if found is None:
                passed.append(turn)
            else:
                self.remove(tenant, found)
                self.began(tenant)
        for turn in passed:
            heapq.heappush(self._turns, turn)
        return found

    def _turn_changed(self, tenant: str) -> None:
        if tenant not in self._lines:
            return
        turn = self._turn[tenant] = (self._held.get(tenant, 0), self._given.get(tenant, 0), tenant)
        heapq.heappush(self._turns, turn)
        if len(self._turns) > 2 * len(self._turn) + _SLACK:
            self._turns = sorted(self._turn.values())


def seconds_until_room(waiting: int, finished: Sequence[float], now: float, *, unknown: float) -> int:
    """For `Retry-After`: whole seconds after which so many who wait, and one more, will have had a place; 1 to 60.

    `finished`: instants at which work has been finished lately, the oldest first; `unknown`: seconds without any.
    """
    if not finished:
        return _bounded(unknown)
    return _bounded((now - finished[0]) / len(finished) * (waiting + 1))


def _bounded(seconds: float) -> int:
    return max(1, min(MOST_SECONDS, ceil(seconds)))
