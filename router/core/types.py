"""The values that the parts of the router hand to one another."""

from enum import Enum, StrEnum
from typing import Final, Literal

import msgspec

Task = Literal["code", "chat"]
"""What a prompt asks for."""

EngineTask = Literal["code", "chat", "any"]
"""What an engine's draft is good at; `any` where it has no specialty."""

AUTO: Final = "auto"
"""The model name that leaves the choice of a model to the task."""

DEFAULT_TENANT: Final = "default"
"""Whose requests they are where no identity is asked for."""


class Endpoint(Enum):
    """The paths whose answers are cached and routed; the value is the path, here and at the engine."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"

    def __init__(self, path: str) -> None:
        self.path = path  # an Enum's own `value` is looked up in Python, each time

    __hash__ = object.__hash__  # an Enum's own hashes its name, in Python, at each look into a table


class CacheStatus(StrEnum):
    """The value of X-Cache."""

    HIT = "HIT"
    MISS = "MISS"
    COALESCED = "COALESCED"
    STALE = "STALE"
    BYPASS = "BYPASS"


class BypassReason(StrEnum):
    """Why the cache was not asked: the value of X-Cache-Reason beside X-Cache: BYPASS."""

    NO_STORE = "no-store"
    NO_CACHE = "no-cache"
    POLICY = "policy"
    REDIS_DOWN = "redis-down"
    UNCACHEABLE = "uncacheable"


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A whole, well-ended answer, as it is kept.

    - `digest`: hex SHA-256 of the canonical request that it answers.
    - `body`: the answer as JSON.
    - `stream`: what gives the events of a streamed answer again; see stream_encoding. None where the engine sent JSON.
    - `created`: when it was written, in seconds since the epoch; `ttl`: for how many seconds from then.
    - `stale`: for how many seconds beyond that it may be given to a client that has nothing better.
    - `generation_ms`: how long the engine took, in milliseconds.
    - `documents`: the names of the documents that it was made with; see scope.document_name.
    - `question`, `params`: hashes of the two halves of the key's query part; see reason.Fingerprint.
    - `purges`: the last purge that its writer had checked before it wrote; see purge_index.Mark.
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
        """Bytes of all in it that has no small bound of its own."""
        return len(self.body) + len(self.stream or b"") + sum(map(len, self.documents))
