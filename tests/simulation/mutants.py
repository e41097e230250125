"""Reverts of fixes, each by its name, to check that the simulation finds the defect that the fix removed.

Compiled classes cannot be patched, so this needs the router as Python.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Final

import msgspec

from router.core.cache.cache_key import CacheKey
from router.core.endpoints.continuation import continuation_body
from router.core.endpoints.continuation.continued_stream import ContinuedRecorder
from router.core.endpoints.recording.choices_recorder import ChoicesRecorder
from router.core.resilience import engine_losses
from router.core.types import Entry
from router.flow.attempts.continuation.seam import Seam
from router.flow.attempts.engine_losses import EngineLosses
from router.flow.sharing.coalescer import Coalescer
from router.flow.sharing.inflight import InFlightRequest
from router.shared.cache.purges import Purges
from router.shared.inflight.stream_writer import RedisStreamWriter
from router.store import entry_store as store
from router.store.codec import decode_values
from router.store.entry_store import EntryStore
from router.store.entry_writer import EntryWriter
from router.upstream.client import EngineClient
from router.upstream.engine import Engine

Mutant = Callable[[], None]
"""Patches the router's classes, in an interpreter that runs nothing else."""


def same_ids() -> None:
    """An in-flight request's id is only its number: the same in every process and after every reload."""
    make = Coalescer.__init__

    @wraps(make)
    def make_without_prefix(self: Coalescer, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        self._id_prefix = ""

    setattr(Coalescer, "__init__", make_without_prefix)  # noqa: B010 - mypy rejects assigning to a method


def written_once() -> None:
    """A stream record whose write failed is not written again."""

    def give_up(self: RedisStreamWriter, _: object) -> None:
        self.stop()

    setattr(RedisStreamWriter, "_schedule_retry", give_up)  # noqa: B010


def unmarked_entries() -> None:
    """An entry is returned whatever was purged since its purge position."""

    async def get(self: EntryStore, key: str) -> Entry | None:
        fetched, entry = self._local.begin_fetch(key), None
        try:
            encoded_key = key.encode()
            (reply,) = await self._pipeline.execute_eager(store._GET_TEMPLATE % (len(encoded_key), encoded_key))
            entry = None if isinstance(reply, Exception) else decode_values(reply)
        finally:
            fetched(entry)
        return entry

    setattr(EntryStore, "get", get)  # noqa: B010


def unpurged_late_writes() -> None:
    """What is written late counts as generated after every purge that is known by then."""
    write = EntryWriter._write

    @wraps(write)
    def write_as_new(self: EntryWriter, late: Any, *arguments: Any) -> None:
        if late.attempts or not self._pipeline.up:
            late.since = self._store._purges.last_position
        write(self, late, *arguments)

    setattr(EntryWriter, "_write", write_as_new)  # noqa: B010


def silent_leaders() -> None:
    """A leader that waits for its engine writes no heartbeat to its stream."""
    setattr(RedisStreamWriter, "heartbeat", lambda _: None)  # noqa: B010


def joined_while_deaf() -> None:
    """An in-flight request can be joined although purges may go unnoticed."""

    def find(self: Coalescer, key: CacheKey) -> InFlightRequest | None:
        return self._joinable_by_digest.get(key.digest)

    setattr(Coalescer, "find", find)  # noqa: B010


def unnoticed_loss() -> None:
    """The purge log is read from the last known record on, whether or not that record still exists."""
    setattr(Purges, "_is_continuation", lambda *_: True)  # noqa: B010


def repeated_seam() -> None:
    """What is generated again is sent again."""
    make = ContinuedRecorder.__init__

    @wraps(make)
    def make_without_comparison(self: ContinuedRecorder, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        self._repeated = ""

    setattr(ContinuedRecorder, "__init__", make_without_comparison)  # noqa: B010


def partial_event() -> None:
    """The text of an event that did not arrive as a whole counts as said."""
    find = Seam._obstacle_of_stream

    def find_with_partial_event(self: Seam) -> str | None:
        obstacle = find(self)
        if self.so_far is not None and isinstance(self._recorder, ChoicesRecorder):
            partial = self._recorder._event_buffer.rest.decode().partition('"content":"')[2]
            self.so_far = msgspec.structs.replace(self.so_far, text=self.so_far.text + partial)
        return obstacle

    setattr(Seam, "_obstacle_of_stream", find_with_partial_event)  # noqa: B010


def same_engine() -> None:
    """The engine that broke the stream off may go on with it."""
    able = Seam.able
    setattr(Seam, "able", lambda self, engines, _: able(self, engines, ()))  # noqa: B010


def any_revision() -> None:
    """An engine of another revision may go on."""

    def able(_: Seam, engines: Sequence[Engine], excluded: Sequence[Engine]) -> list[Engine]:
        return [engine for engine in engines if engine not in excluded]

    setattr(Seam, "able", able)  # noqa: B010


def whole_limit() -> None:
    """The engine that goes on may generate as many tokens as the first one."""
    setattr(continuation_body, "remaining_tokens", lambda request, _: request.max_tokens)  # noqa: B010


def five_losses() -> None:
    """A request may take five engines down."""
    setattr(engine_losses, "MAX_LOSSES", 5)  # noqa: B010


def forgotten_losses() -> None:
    """A reload forgets with which requests engines ended."""
    make = EngineLosses.__init__

    @wraps(make)
    def make_anew(self: EngineLosses, client: EngineClient, _: engine_losses.Suspects, **options: Any) -> None:
        make(self, client, engine_losses.Suspects(), **options)

    setattr(EngineLosses, "__init__", make_anew)  # noqa: B010


MUTANTS: Final[dict[str, Mutant]] = {
    "same-ids": same_ids,
    "written-once": written_once,
    "unmarked-entries": unmarked_entries,
    "unpurged-late-writes": unpurged_late_writes,
    "silent-leaders": silent_leaders,
    "joined-while-deaf": joined_while_deaf,
    "unnoticed-loss": unnoticed_loss,
    "repeated-seam": repeated_seam,
    "partial-event": partial_event,
    "same-engine": same_engine,
    "any-revision": any_revision,
    "whole-limit": whole_limit,
    "five-losses": five_losses,
    "forgotten-losses": forgotten_losses,
}
