"""Types that all parts of the router share."""

from enum import StrEnum
from typing import Final, Literal, NamedTuple

import msgspec

Task = Literal["code", "chat"]
"""What the classifier takes a prompt for."""

EngineTask = Literal["code", "chat", "any"]
"""The task that an engine's draft model is best at; `any` for a draft without a specialty."""

AUTO: Final = "auto"
"""The model name with which a client leaves the choice of a model to the router; it goes by the task."""

DEFAULT_TENANT: Final = "default"
"""The tenant of all requests if authentication is off."""

BYTES_PER_TOKEN: Final = 4
"""For estimates of English prose; see https://help.openai.com/en/articles/4936856."""


class Identity(NamedTuple):
    """Whose request it is. `key_id`: of the API key that was sent; None where keys do not identify tenants."""

    tenant: str
    key_id: str | None


class CacheStatus(StrEnum):
    """The value of X-Cache."""

    HIT = "HIT"
    MISS = "MISS"
    COALESCED = "COALESCED"
    STALE = "STALE"
    BYPASS = "BYPASS"


class BypassReason(StrEnum):
    """Why there was no cache lookup: the value of X-Cache-Reason beside X-Cache: BYPASS."""

    NO_STORE = "no-store"
    NO_CACHE = "no-cache"
    POLICY = "policy"
    OFF = "off"
    REDIS_DOWN = "redis-down"
    UNCACHEABLE = "uncacheable"
    SESSION = "session"


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A stored response, which was complete and ended normally.

    - `digest`: hex SHA-256 of the canonical request that it answers.
    - `body`: the response as JSON.
    - `stream`: the encoded events if the engine streamed, see stream_encoding; None if it sent JSON.
    - `created`: when it was written, in seconds since the epoch, to the millisecond, by Redis' clock.
    - `ttl`: for how many seconds after `created` it is fresh.
    - `stale`: for how many seconds after that it may be served if no engine can answer (stale-if-error).
    - `generation_ms`: how long the engine took, in milliseconds.
    - `documents`: the names of the documents in the request; see entry_filter.document_name.
    - `question`, `params`: hashes of the two halves of the key's query part; see fingerprint.Fingerprint.
    - `purges`: the last purge that its writer had checked before writing; see purge_index.PurgePosition.
    """

    digest: str
    body: bytes
    stream: bytes | None
    model: str
    engine: str
    task: Task
    created: float
    ttl: float
    prompt_tokens: int
    completion_tokens: int
    generation_ms: int
    stale: float = 0.0
    documents: tuple[str, ...] = ()
    question: str = ""
    params: str = ""
    purges: tuple[int, int] = (0, 0)

    @property
    def size(self) -> int:
        """The bytes of the fields that may be large."""
        return len(self.body) + len(self.stream or b"") + sum(map(len, self.documents))
