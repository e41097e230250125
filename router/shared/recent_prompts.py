"""A sample of the requests whose responses were stored, with which a new engine of the model is warmed up.

    rh:1:prompts:{model}     a list: requests as JSON, the newest first

Only requests that an engine has answered are in it, so nothing is done at a hit. The list expires an hour after the
last of them, and a purge deletes it.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from router.core.cache.redis_keys import prompts_key
from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.request import engine_body
from router.net.redis.commands import Command
from router.net.redis.pipeline import RedisDownError, RedisPipeline

MAX_PROMPT: Final = 16 << 10
"""Bytes of a request; a larger one is not sampled."""

SAMPLE_INTERVAL: Final = 1.0
"""Seconds between two samples of a model in one process, at least."""

PROMPTS_TTL: Final = 3600
"""Seconds after the last sample of a model until its list expires."""


# A script, so that there is never a list without an expiry.
_ADD_SCRIPT: Final = (
    "redis.call('LPUSH', KEYS[1], ARGV[1]) redis.call('LTRIM', KEYS[1], 0, ARGV[2]) "
    "return redis.call('EXPIRE', KEYS[1], ARGV[3])"
)


class RecentPrompt(msgspec.Struct, frozen=True):
    """A request as an engine got it: the path, and the body with the engine's name of the model."""

    path: str
    body: msgspec.Raw


class PromptSample(NamedTuple):
    """A request of `model`, as it is in the list."""

    model: str
    value: bytes


class Generation(Protocol):
    """The part of a GenerationRecord that is needed here."""

    tenant: str
    model: str
    engine: str | None


class RecentPrompts:
    """Adds requests to the lists.

    - `sample` returns a request in the form in which it is stored, at most one of a model in SAMPLE_INTERVAL.
    - `add` never raises and never waits. A sample is lost while Redis is down.
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

    def sample(self, request: InferenceRequest, generation: Generation) -> PromptSample | None:
        if not self._kept or len(request.body) > MAX_PROMPT or not request.endpoint.runs_model:
            return None
        now = self._clock()
        if now < self._next_samples_at.get(generation.model, now):
            return None
        served_model = self._served_models.get(generation.engine or "")
        if served_model is None:
            return None
        self._next_samples_at[generation.model] = now + SAMPLE_INTERVAL
        body = engine_body(request, served_model, self._cache_salts.get(generation.tenant))
        prompt = RecentPrompt(request.endpoint.path, msgspec.Raw(body))
        return PromptSample(generation.model, msgspec.json.encode(prompt))

    def add(self, sample: PromptSample) -> None:
        with contextlib.suppress(RedisDownError):
            self._pipeline.send(
                ("EVAL", _ADD_SCRIPT, 1, prompts_key(sample.model), sample.value, self._kept - 1, PROMPTS_TTL)
            )


def read_prompts_command(model: str, count: int) -> Command:
    """The newest `count` requests of a model; for decode_prompts."""
    return ("LRANGE", prompts_key(model), 0, count - 1)


def decode_prompts(reply: Any) -> list[RecentPrompt]:
    """The requests that can be decoded, the newest first."""
    prompts = []
    for value in reply if isinstance(reply, list) else ():
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            prompts.append(msgspec.json.decode(value, type=RecentPrompt))
    return prompts
