"""Whether a model has another engine that takes requests, so that one of its engines may be drained."""

from collections.abc import Iterable, Sequence

import httpx
import msgspec

from engines.spec import EngineSpec
from engines.watchdog.drains import DrainError, Drains
from engines.watchdog.redis_commands import REDIS_FAILURES, RedisCommands
from engines.watchdog.scrape import is_healthy
from router.shared.engines.announcements import decode_engines, read_command


class Candidate(msgspec.Struct, frozen=True):
    """An engine that may take another one's requests. `max_model_len` None is the model's own."""

    name: str
    model: str
    url: str
    max_model_len: int | None = None


class Availability:
    """Knows the engines of the configuration, and reads those that other launchers announce."""

    def __init__(
        self, engines: Sequence[EngineSpec], client: httpx.AsyncClient, redis: RedisCommands, drains: Drains
    ) -> None:
        self._configured = {e.name: Candidate(e.name, e.model, e.url, e.max_model_len) for e in engines}
        self._client = client
        self._redis = redis
        self._drains = drains

    async def has_substitute(self, engine: EngineSpec) -> bool:
        """Whether another engine that can take all its requests is healthy and not drained.

        If Redis does not answer, none counts as available.
        """
        try:
            drained = await self._drains.drained()
            known = {**self._configured, **await self._announced()}
        except (DrainError, *REDIS_FAILURES):
            return False
        for other in substitutes(engine, known.values()):
            if other.name not in drained and await is_healthy(self._client, other.url):
                return True
        return False

    async def _announced(self) -> dict[str, Candidate]:
        # Whether their leases hold does not matter: an engine that is gone is not healthy.
        reply = await self._redis.execute_command(*read_command())
        engines = [stored.engine for stored in decode_engines(reply or {}).values() if stored.engine is not None]
        return {e.name: Candidate(e.name, e.model, e.url, e.max_model_len) for e in engines}


def substitutes(engine: EngineSpec, candidates: Iterable[Candidate]) -> list[Candidate]:
    """The engines that can take every request of this one: of the same model, with at least its context length."""
    own = engine.max_model_len
    return [
        other
        for other in candidates
        if other.name != engine.name
        and other.model == engine.model
        and (other.max_model_len is None or (own is not None and other.max_model_len >= own))
    ]
