"""How many bytes of request bodies a process holds, and the bound on that."""

from router.errors import ApiError, unavailable


class BodyBudget:
    """The bytes of all bodies that are held at this moment."""

    __slots__ = ("allocated",)

    def __init__(self) -> None:
        self.allocated = 0


class BodyAllocation:
    """One request's body, from its first byte until nobody needs it: neither its client nor the generation for it.

    - `take` counts what has come, and raises ApiError (503) where all bodies would be more than `most` bytes then.
    - Each `share` and the beginning itself need one `release`; with the last one, its bytes are held no longer.
    """

    __slots__ = ("_budget", "_limit", "_ref_count", "_size")

    def __init__(self, budget: BodyBudget, limit: int) -> None:
        self._budget = budget
        self._limit = limit
        self._size = 0
        self._ref_count = 1

    def check(self, size: int) -> None:
        """Raises ApiError (503) where `size` bytes would be too many now."""
        if self._budget.allocated + size > self._limit:
            raise _budget_exhausted()

    def allocate(self, size: int) -> None:
        self.check(size)
        self._size += size
        self._budget.allocated += size

    def retain(self) -> None:
        """Somebody else needs it as well."""
        self._ref_count += 1

    def release(self) -> None:
        """One of those who needed it needs it no longer."""
        self._ref_count -= 1
        if self._ref_count == 0:
            self._budget.allocated -= self._size


def _budget_exhausted() -> ApiError:
    return unavailable("The router holds as many bytes of requests as it may.", code="bodies_full")
