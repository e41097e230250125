"""The key of a request; see router.core.cache.key_derivation."""

import hashlib
from typing import Final

from router.core.cache.key_parts import KeyParts
from router.core.cache.redis_keys import sample_key, split_entry_key

_REQUEST_PARTS: Final = 5


class CacheKey:
    """The key of a request.

    - `text`: the Redis key.
    - `canonical_parts`: what it is a hash of: tenant, model, and the canonical JSON of the system, rag and query part;
      then the number of the sample, except of the first one.
    - `parts`: the parts of `text`.
    - `digest`: hex SHA-256 of the canonical parts, which an entry under this key must have.
    """

    def __init__(self, text: str, canonical_parts: tuple[str | bytes, ...]) -> None:
        self.text = text
        self.canonical_parts = canonical_parts
        # Computed on first use: an entry in the local cache is compared by its canonical parts, which needs no hash.
        self._digest = ""
        self._parts: KeyParts | None = None

    @property
    def parts(self) -> KeyParts:
        if self._parts is None:  # split on first use: a hit needs only the text
            parts = split_entry_key(self.text)
            assert parts is not None
            self._parts = KeyParts(*parts)
        return self._parts

    @property
    def digest(self) -> str:
        if not self._digest:
            digest = hashlib.sha256()
            for part in self.canonical_parts:
                data = part.encode() if isinstance(part, str) else part
                # The length prefix keeps ("ab", "c") and ("a", "bc") apart.
                digest.update(b"%d:%b" % (len(data), data))
            self._digest = digest.hexdigest()
        return self._digest

    def sample(self, number: int) -> "CacheKey":
        parts = self.canonical_parts[:_REQUEST_PARTS]
        return CacheKey(sample_key(self.text, number), (*parts, str(number)) if number else parts)

    @property
    def size(self) -> int:
        """Approximate size of the canonical parts in bytes."""
        return sum(map(len, self.canonical_parts))
