"""Mends taken out again, each by its name, to see that the simulation finds what they mend.

Compiled classes cannot be changed, so this needs the router as Python.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from router.core.cache.key import Key
from router.core.types import Entry
from router.flow.coalescer import Flights
from router.flow.inflight import Flight
from router.shared.purges import Purges
from router.shared.stream_writer import Broadcast
from router.store import entry_store as store
from router.store.codec import entry_of
from router.store.entry_store import EntryStore

Mutant = Callable[[], None]
"""Changes the router's classes, in an interpreter that runs nothing else."""


def same_ids() -> None:
    """A flight's id is the same in every process and after every reload: its number."""
    make = Flights.__init__

    @wraps(make)
    def make_without_prefix(self: Flights, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        self._prefix = ""

    setattr(Flights, "__init__", make_without_prefix)  # noqa: B010 - mypy lets nobody assign to a method


def written_once() -> None:
    """A record of a flight that Redis may not have is not written again."""

    def give_up(self: Broadcast, _: object) -> None:
        self.stop()

    setattr(Broadcast, "_send_again", give_up)  # noqa: B010


def unmarked_entries() -> None:
    """An entry is given whatever has been purged since it was checked."""

    async def get(self: EntryStore, key: str) -> Entry | None:
        fetched, entry = self._local.fetching(key), None
        try:
            at = key.encode()
            (reply,) = await self._line.look_up(store._LOOK_UP % (len(at), at))
            entry = None if isinstance(reply, Exception) else entry_of(reply)
        finally:
            fetched(entry)
        return entry

    setattr(EntryStore, "get", get)  # noqa: B010


def silent_leaders() -> None:
    """A leader that waits for its engine writes nothing to its stream."""
    setattr(Broadcast, "beat", lambda _: None)  # noqa: B010


def joined_while_deaf() -> None:
    """A flight can be joined although purges may pass unnoticed."""

    def find(self: Flights, key: Key) -> Flight | None:
        return self._open.get(key.digest)

    setattr(Flights, "find", find)  # noqa: B010


def unnoticed_loss() -> None:
    """The log of purges is read from the last known record on, whether that is still there or not."""
    setattr(Purges, "_continues", lambda *_: True)  # noqa: B010


MUTANTS: Final[dict[str, Mutant]] = {
    "same-ids": same_ids,
    "written-once": written_once,
    "unmarked-entries": unmarked_entries,
    "silent-leaders": silent_leaders,
    "joined-while-deaf": joined_while_deaf,
    "unnoticed-loss": unnoticed_loss,
}
