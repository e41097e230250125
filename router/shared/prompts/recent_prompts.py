"""A sample of the requests whose responses were stored, with which a new engine of the model is warmed up.

    rh:1:prompts:{model}         a list: the ids of requests, the newest first
    rh:1:prompts:{model}:{id}    one of them, a hash; the id is made from the key of its entry

Only requests that an engine has answered are in it, so nothing is done at a hit. Each request has an expiry of its own:
that of its entry, an hour at most. The list has no prompts, and may name requests that are gone.

A purge deletes the requests that it covers. One that is being written meanwhile is deleted by its writer, which learns
of the purge when its entry is written; see router.store.entry_store. If that writer dies, the reader knows by the purge
position of the request that it is covered.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import xxhash

from router.core.cache.purge_index import PurgePosition
from router.core.cache.redis_keys import prompt_key, prompts_key
from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.requests.request import engine_body
from router.net.redis.commands import Command
from router.net.redis.pipeline import RedisDownError, RedisPipeline, Replies

MAX_PROMPT: Final = 16 << 10
"""Bytes of a request; a larger one is not sampled."""

SAMPLE_INTERVAL: Final = 1.0
"""Seconds between two samples of a model in one process, at least."""

PROMPTS_TTL: Final = 3600
"""Seconds until a request expires, at most."""

ID_LENGTH: Final = 16
"""Characters of an id. Until 0.1.0, the lists had requests in place of ids, which are longer."""

# SET comes first, since a Redis that is out of memory refuses it; see router.store.entry_store.
_WRITE_SCRIPT: Final = (
    "redis.call('SET', KEYS[1], '') redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1], unpack(ARGV, 2)) "
    "return redis.call('PEXPIRE', KEYS[1], ARGV[1])"
)

# Returns the ids that are not in the list any more. Drops requests that an earlier version has put in place of ids:
# else the expiry of the list would keep them.
_ADD_SCRIPT: Final = (
    "local listed, seen, gone = redis.call('LRANGE', KEYS[1], 0, -1), {[ARGV[1]] = true}, {} "
    "local kept = {ARGV[1]} "
    "for _, id in ipairs(listed) do "
    "if #id == #ARGV[1] and not seen[id] then "
    "seen[id] = true if #kept < tonumber(ARGV[2]) then kept[#kept + 1] = id else gone[#gone + 1] = id end "
    "end end "
    "redis.call('DEL', KEYS[1]) "
    "for at = #kept, 1, -1 do redis.call('LPUSH', KEYS[1], kept[at]) end "
    "redis.call('EXPIRE', KEYS[1], ARGV[3]) return gone"
)
_FIELDS: Final = ("key", "documents", "purges", "path", "body")


class RecentPrompt(msgspec.Struct, frozen=True):
    """A request as an engine got it: the path, and the body with the engine's name of the model."""

    path: str
    body: msgspec.Raw


class StoredPrompt(NamedTuple):
    """A request as Redis has it, and what a purge needs: its entry's `key`, `documents` and purge position."""

    prompt: RecentPrompt
    key: str
    documents: tuple[str, ...]
    position: PurgePosition


class PromptSample(NamedTuple):
    """A request of `model` that is to be kept for `lifetime` seconds."""

    model: str
    stored: StoredPrompt
    lifetime: float

    @property
    def id(self) -> str:
        return prompt_id(self.stored.key)


def prompt_id(entry_key: str) -> str:
    return xxhash.xxh3_64_hexdigest(entry_key.encode())


class Origin(Protocol):
    """The part of a RequestOrigin that is needed here."""

    @property
    def tenant(self) -> str: ...

    @property
    def model(self) -> str: ...


class Generation(Protocol):
    """The part of a GenerationRecord that is needed here."""

    @property
    def origin(self) -> Origin: ...

    @property
    def engine(self) -> str | None: ...


class RecentPrompts:
    """Adds requests to the lists.

    - `sample` returns a request in the form in which it is stored, at most one of a model in SAMPLE_INTERVAL.
    - `add` and `remove` never raise and never wait. A sample is lost while Redis is down.
    - A sample expires with its entry, and after PROMPTS_TTL at the latest. No other one prolongs it.
    """

    __slots__ = ("_cache_salts", "_clock", "_kept", "_next_samples_at", "_pipeline", "_served_models")

    def __init__(
        self, pipeline: RedisPipeline, *, kept: int, served_models: Mapping[str, str], cache_salts: Mapping[str, str],
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        """`kept`: requests of each model, 0 for none. `served_models`: by engine; `cache_salts`: by tenant.

        `clock` returns seconds that only grow.
        """
        self._pipeline = pipeline
        self._kept = kept
        self._served_models = served_models
        self._cache_salts = cache_salts
        self._clock = clock
        self._next_samples_at: dict[str, float] = {}  # by model

    def sample(
        self, request: InferenceRequest, generation: Generation, *, key: str, documents: tuple[str, ...],
        position: PurgePosition, lifetime: float,
    ) -> PromptSample | None:  # fmt: skip
        """`key`, `documents`, `lifetime` (in seconds): of its entry. `position`: at which its generation began."""
        if not self._kept or len(request.body) > MAX_PROMPT or not request.endpoint.runs_model:
            return None
        now = self._clock()
        if now < self._next_samples_at.get(generation.origin.model, now):
            return None
        served_model = self._served_models.get(generation.engine or "")
        if served_model is None:
            return None
        self._next_samples_at[generation.origin.model] = now + SAMPLE_INTERVAL
        body = engine_body(request, served_model, self._cache_salts.get(generation.origin.tenant))
        prompt = RecentPrompt(request.endpoint.path, msgspec.Raw(body))
        stored = StoredPrompt(prompt, key, documents, position)
        return PromptSample(generation.origin.model, stored, min(lifetime, PROMPTS_TTL))

    def add(self, sample: PromptSample) -> None:
        """To be called before the entry is written, so that its writer learns of a purge between the two."""
        model = sample.model
        key = prompt_key(model, sample.id)
        milliseconds = max(1, int(1000 * sample.lifetime))
        with contextlib.suppress(RedisDownError):
            self._pipeline.send(
                ("EVAL", _WRITE_SCRIPT, 1, key, milliseconds, *_encode_fields(sample.stored)),
                ("EVAL", _ADD_SCRIPT, 1, prompts_key(model), sample.id, self._kept, PROMPTS_TTL),
                on_reply=partial(self._on_added, model),
            )

    def remove(self, sample: PromptSample) -> None:
        """For one whose entry was not stored."""
        self._delete(sample.model, [sample.id])

    def _on_added(self, model: str, replies: Replies | None) -> None:
        gone = replies[1] if replies is not None else None
        if isinstance(gone, list) and all(isinstance(id_, bytes) for id_ in gone):
            self._delete(model, [id_.decode("ascii", "replace") for id_ in gone])

    def _delete(self, model: str, ids: Sequence[str]) -> None:
        if ids:
            with contextlib.suppress(RedisDownError):
                self._pipeline.send(*(("DEL", prompt_key(model, id_)) for id_ in ids))


def _encode_fields(stored: StoredPrompt) -> list[str | bytes]:
    values: tuple[str | bytes, ...] = (
        stored.key,
        msgspec.json.encode(stored.documents),
        f"{stored.position[0]}-{stored.position[1]}",
        stored.prompt.path,
        bytes(stored.prompt.body),
    )
    return [word for field in zip(_FIELDS, values, strict=True) for word in field]


def read_ids_command(model: str) -> Command:
    """For decode_ids."""
    return ("LRANGE", prompts_key(model), 0, -1)


def decode_ids(reply: Any) -> list[str]:
    """The ids of the requests of a model, the newest first, some of which may be gone."""
    ids = (id_.decode("ascii", "replace") for id_ in reply if type(id_) is bytes) if isinstance(reply, list) else ()
    return [id_ for id_ in ids if len(id_) == ID_LENGTH]


def read_prompt_command(model: str, id_: str) -> Command:
    """For decode_prompt."""
    return ("HMGET", prompt_key(model, id_), *_FIELDS)


def decode_prompt(reply: Any) -> StoredPrompt | None:
    """None for a request that is gone, or cannot be decoded."""
    try:
        key, documents, purges, path, body = reply
        milliseconds, _, number = purges.partition(b"-")
        prompt = RecentPrompt(path.decode(), msgspec.Raw(body))
        msgspec.json.decode(body)
        names = msgspec.json.decode(documents, type=tuple[str, ...])
        return StoredPrompt(prompt, key.decode(), names, (int(milliseconds), int(number)))
    except (TypeError, ValueError, AttributeError):  # ValueError: also of msgspec, and of text that is not UTF-8
        return None
