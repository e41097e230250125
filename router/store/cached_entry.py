"""An entry as it was looked up, and what has been derived from it."""

from typing import ClassVar, Final

from router.core.cache.cache_key import CacheKey
from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.recording.replay import replay
from router.core.types import Entry

MAX_CANONICAL_SIZE: Final = 4096
"""Bytes of canonical parts that are kept with an entry. Longer ones are hashed for each request, which costs less than
the memory that they would take from other entries.
"""


class CachedEntry:
    """An entry that keeps what is derived from it for later requests, if there is memory for that.

    - `matches` compares the digest; after the first match, it compares the canonical parts byte for byte, which needs
      no hash.
    - `replay` encodes or joins each form of the response once for all requests.
    """

    shared: ClassVar = False
    """Whether later requests may use this object."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self._canonical_parts: tuple[str | bytes, ...] | None = None
        self._replays: dict[bool | None, bytes] = {}  # by include_usage of a stream; None for JSON

    def matches(self, key: CacheKey) -> bool:
        """Whether the entry answers this request. The key's hashes do not prove it: they may be made to collide."""
        # Proven by the digest before; comparing bytes is cheaper than computing the digest.
        if self._canonical_parts == key.canonical_parts:
            return True
        if self.entry.digest != key.digest:
            return False
        # Kept only where a later request can use it.
        if (
            self.shared
            and self._canonical_parts is None
            and (size := key.size) <= MAX_CANONICAL_SIZE
            and self.reserve(size)
        ):
            self._canonical_parts = key.canonical_parts
        return True

    def replay(self, request: InferenceRequest) -> bytes | None:
        form = request.include_usage if request.stream else None
        answer = self._replays.get(form)
        if answer is None:
            entry = self.entry
            answer = replay(entry, request)
            # A reference to the stored body takes no memory.
            if answer is not None and (answer is entry.body or self.reserve_replay(len(answer))):
                self._replays[form] = answer
        return answer

    def drop_replays(self) -> None:
        self._replays.clear()

    def reserve(self, size: int) -> bool:
        """Whether so many more bytes may be kept with the entry; called before they are."""
        return False

    # Separate: a replay may be many times the size of the entry.
    def reserve_replay(self, size: int) -> bool:
        return False
