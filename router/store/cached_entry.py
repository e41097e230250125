"""An entry as it was found at its key, and what has been worked out of it."""

from typing import ClassVar, Final

from router.core.cache.key import CacheKey
from router.core.endpoints.replay import replay
from router.core.endpoints.request import InferenceRequest
from router.core.types import Entry

MAX_CANONICAL_SIZE: Final = 4096
"""Bytes of a request's form that stay beside an entry. A longer one is hashed each time, which costs less than the room
that it would take from other entries."""


class CachedEntry:
    """What is found out of an entry stays with it for the next who asks, where there is room for that.

    - `answers` is proven by the digest; once that is done, by the request's form, byte for byte, which costs no hash.
    - `replay` makes or joins a form of the answer once for all who want the same.
    """

    __slots__ = ("_canonical_parts", "_replays", "entry")

    shared: ClassVar = False
    """Whether others may come who ask for it."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self._canonical_parts: tuple[str | bytes, ...] | None = None
        self._replays: dict[bool | None, bytes] = {}  # whether a stream has the usage; None for JSON

    def matches(self, key: CacheKey) -> bool:
        """Whether the entry answers this very request: the hash in its key only finds it."""
        if self._canonical_parts == key.canonical_parts:
            return True
        if self.entry.digest != key.digest:
            return False
        if (
            self.shared
            and self._canonical_parts is None
            and (size := key.size) <= MAX_CANONICAL_SIZE
            and self.reserve(size)
        ):
            self._canonical_parts = key.canonical_parts
        return True

    def replay(self, request: InferenceRequest) -> bytes | None:
        """See router.core.endpoints.replay."""
        form = request.include_usage if request.stream else None
        answer = self._replays.get(form)
        if answer is None:
            entry = self.entry
            answer = replay(entry, request)
            if answer is not None and (answer is entry.body or self.reserve_replay(len(answer))):
                self._replays[form] = answer
        return answer

    def drop_replays(self) -> None:
        """Drops the replayed forms; they are made again when they are asked for."""
        self._replays.clear()

    def reserve(self, size: int) -> bool:
        """Whether so many bytes more may stay beside the entry; it is asked before they do."""
        return False

    def reserve_replay(self, size: int) -> bool:
        """The same for a replayed form of the answer, which may be many times the size of the entry."""
        return False
