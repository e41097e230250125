"""The slots of the engines of a router with one process; see router.upstream.shared_slots for several.

An engine whose settings change gets another Engine object with each configuration. Requests that an earlier one has
sent still use its slots.
"""

from collections.abc import Callable


class SlotUsers:
    """The Engine objects of this process that stand for one engine, the oldest first, by their callbacks.

    `limit`: that of the newest is that of all, since it is of the newest configuration.
    """

    def __init__(self) -> None:
        self._limits: dict[Callable[[], None], int] = {}
        self.limit = 0

    def __bool__(self) -> bool:
        return bool(self._limits)

    def set_limit(self, user: Callable[[], None], limit: int) -> None:
        """Adds a user, or changes its limit."""
        self._limits[user] = limit
        self._update_limit()

    def remove(self, user: Callable[[], None]) -> None:
        del self._limits[user]
        self._update_limit()

    def notify(self) -> None:
        """There may be a free slot for requests that wait."""
        for user in tuple(self._limits):
            user()

    def notify_others(self, user: Callable[[], None]) -> None:
        """As `notify`, without this user."""
        for other in tuple(self._limits):
            if other != user:
                other()

    def _update_limit(self) -> None:
        self.limit = next(reversed(self._limits.values()), 0)


class ProcessSlots:
    """The slots of all engines that have a limit."""

    def __init__(self) -> None:
        self._engines: dict[tuple[str, str], ProcessEngineSlots] = {}

    def open(self, name: str, url: str) -> "ProcessEngineSlots":
        """The slots of an engine; the same object for all configurations."""
        slots = self._engines.get((name, url))
        if slots is None:
            slots = self._engines[name, url] = ProcessEngineSlots(lambda: self._engines.pop((name, url)))
        return slots


class ProcessEngineSlots:
    """The slots of one engine. The methods are those of shared_slots.EngineSlots."""

    workers = 1

    def __init__(self, on_unused: Callable[[], object]) -> None:
        self._on_unused = on_unused
        self._users = SlotUsers()
        self._held = 0

    def add_user(self, on_slot_free: Callable[[], None], limit: int) -> None:
        self._users.set_limit(on_slot_free, limit)
        self._users.notify_others(on_slot_free)

    def remove_user(self, on_slot_free: Callable[[], None]) -> None:
        self._users.remove(on_slot_free)
        if not self._users:
            self._on_unused()

    def count(self) -> int:
        return self._held

    def take(self) -> bool:
        if self._held >= self._users.limit:
            return False
        self._held += 1
        return True

    def take_or_wait(self, _: object) -> bool:
        return self.take()

    def return_slot(self, _: object) -> None:
        self._held -= 1

    def take_regardless(self) -> None:
        self._held += 1

    def free(self) -> None:
        self._held -= 1

    def notify_users(self) -> None:
        self._users.notify()
