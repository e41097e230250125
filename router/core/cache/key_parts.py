"""The five parts of an entry's key."""

import msgspec

from router.core.cache.redis_keys import entry_key, split_entry_key


class KeyParts(msgspec.Struct, frozen=True, gc=False):
    """`tenant` and `model` are names; `system`, `rag` and `query` are hashes in hex (see key_derivation).

    `query` also has the number of a further sample; see redis_keys.split_query.
    """

    tenant: str
    model: str
    system: str
    rag: str
    query: str

    @property
    def text(self) -> str:
        """The Redis key."""
        return entry_key(self.tenant, self.model, self.system, self.rag, self.query)

    @classmethod
    def parse(cls, key: str) -> "KeyParts":
        """Raises ValueError for what is no entry's key."""
        parts = cls.try_parse(key)
        if parts is None:
            raise ValueError(f"not the key of an entry: {key!r}")
        return parts

    @classmethod
    def try_parse(cls, key: str) -> "KeyParts | None":
        parts = split_entry_key(key)
        return None if parts is None else cls(*parts)
