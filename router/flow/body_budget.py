"""How many bytes of request bodies a process holds, and the bound on that."""

from router.errors import ApiError, unavailable


class BodyBudget:
    """The bytes of all bodies that are held at this moment."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = 0


class HeldBody:
    """One request's body, from its first byte until nobody needs it: neither its client nor the generation for it.

    - `take` counts what has come, and raises ApiError (503) where all bodies would be more than `most` bytes then.
    - Each `share` and the beginning itself need one `release`; with the last one, its bytes are held no longer.
    """

    __slots__ = ("_budget", "_most", "_size", "_users")

    def __init__(self, budget: BodyBudget, most: int) -> None:
        self._budget = budget
        self._most = most
        self._size = 0
        self._users = 1

    def check(self, size: int) -> None:
        """Raises ApiError (503) where `size` bytes would be too many now."""
        if self._budget.held + size > self._most:
            raise _full()

    def take(self, size: int) -> None:
        self.check(size)
        self._size += size
        self._budget.held += size

    def share(self) -> None:
        """Somebody else needs it as well."""
        self._users += 1

    def release(self) -> None:
        """One of those who needed it needs it no longer."""
        self._users -= 1
        if self._users == 0:
            self._budget.held -= self._size


def _full() -> ApiError:
    return unavailable("The router holds as many bytes of requests as it may.", code="bodies_full")
