"""The usage of tenants and their API keys, out of the facts of requests and generations."""

from collections.abc import Iterator
from typing import Final

from router.core.types import CacheStatus
from router.flow.exchange import GenerationRecord
from router.net.redis.pipeline import RedisPipeline
from router.shared.accounting.usage import UsageKind, UsageLedger

_FROM_STORE: Final = (CacheStatus.HIT, CacheStatus.STALE)


class UsageCounter:
    """What counts as usage.

    - A request counts for the key that it was sent with. A hit, and one that shares a generation, saves tokens.
    - A generation counts for the key of the request that started it, with what the rates and budgets count.
    """

    def __init__(self) -> None:
        self._ledger = UsageLedger()

    def add_requests(
        self, tenant: str, key_id: str | None, model: str, cache: CacheStatus, requests: int, saved_tokens: int
    ) -> None:
        """Requests of one kind, and the tokens of their responses, all together."""
        self._ledger.add(tenant, key_id, model, [("requests", requests)])
        if cache in _FROM_STORE:
            self._ledger.add(tenant, key_id, model, [("hits", requests), ("saved_tokens", saved_tokens)])
        elif cache is CacheStatus.COALESCED:
            self._ledger.add(tenant, key_id, model, [("coalesced", requests), ("saved_tokens", saved_tokens)])

    def add_generation(self, generation: GenerationRecord, now: float) -> None:
        """`now`: an instant of time.perf_counter, at which the generation ended."""
        self._ledger.add(generation.tenant, generation.key_id, generation.model, _generation_usage(generation, now))

    def flush(self, pipeline: RedisPipeline, now: float) -> None:
        """`now`: seconds since the epoch."""
        self._ledger.flush(pipeline, now)


def _generation_usage(generation: GenerationRecord, now: float) -> Iterator[tuple[UsageKind, float]]:
    yield "gpu_seconds", generation.gpu_seconds(now)
    yield "prompt_tokens", generation.prompt_tokens
    yield "completion_tokens", generation.completion_tokens
    if not generation.prompt_tokens + generation.completion_tokens:
        yield "estimated_tokens", generation.estimated_tokens
