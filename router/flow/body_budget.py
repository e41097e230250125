"""The limit on the bytes of request bodies that a process holds in memory."""

from router.errors import ApiError, unavailable


class BodyBudget:
    """`allocated`: the bytes of all bodies that this process holds now."""

    __slots__ = ("allocated",)

    def __init__(self) -> None:
        self.allocated = 0


class BodyAllocation:
    """The memory of one request's body. It is shared by the request and its generation, which can outlive the request.

    - `allocate` adds bytes that have arrived. It raises ApiError (503) if all bodies would exceed `limit` bytes.
    - It starts with one reference, and `retain` adds one. Each needs one `release`; the last one frees the bytes.
    """

    __slots__ = ("_budget", "_limit", "_ref_count", "_size")

    def __init__(self, budget: BodyBudget, limit: int) -> None:
        self._budget = budget
        self._limit = limit
        self._size = 0
        self._ref_count = 1

    def check(self, size: int) -> None:
        """Raises ApiError (503) if there is no room for `size` more bytes now."""
        if self._budget.allocated + size > self._limit:
            raise _budget_exhausted()

    def allocate(self, size: int) -> None:
        self.check(size)
        self._size += size
        self._budget.allocated += size

    def try_allocate(self, size: int) -> bool:
        """As `allocate`; False where that raises."""
        if self._budget.allocated + size > self._limit:
            return False
        self.allocate(size)
        return True

    def retain(self) -> None:
        self._ref_count += 1

    def release(self) -> None:
        self._ref_count -= 1
        if self._ref_count == 0:
            self._budget.allocated -= self._size


def _budget_exhausted() -> ApiError:
    return unavailable("The request bodies in memory have reached the limit (router.max_bodies).", code="bodies_full")
