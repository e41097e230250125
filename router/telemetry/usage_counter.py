"""One ledger of what requests used and saved: each fact is counted once, by tenant, API key, model and kind.

The usage in Redis has these sums as they are. The savings are a projection of them: the same sums without the keys.
"""

from collections.abc import Mapping
from typing import Final, Literal, get_args

from router.core.types import CacheStatus
from router.flow.exchange import GenerationRecord
from router.shared.accounting.daily_sums import Sender
from router.shared.accounting.ledger import SavingsKind, SavingsLedger
from router.shared.accounting.usage import MAX_ACCOUNTS, UsageKind, UsageLedger

Kind = UsageKind | Literal["gpu_seconds_saved", "joules_spent", "joules_saved"]

_Account = tuple[str, str | None, str, Kind]  # tenant, key id, model, kind

_USAGE: Final[Mapping[Kind, UsageKind]] = {kind: kind for kind in get_args(UsageKind)}
_SAVINGS: Final[Mapping[Kind, SavingsKind]] = {
    "requests": "requests",
    "hits": "hits",
    "coalesced": "coalesced",
    "saved_tokens": "saved_tokens",
    "gpu_seconds": "gpu_seconds_spent",
    "gpu_seconds_saved": "gpu_seconds_saved",
    "joules_spent": "joules_spent",
    "joules_saved": "joules_saved",
}
"""The kinds that the savings have, with their names there."""

_FROM_STORE: Final = (CacheStatus.HIT, CacheStatus.STALE)


class UsageCounter:
    """What counts.

    - A request counts for the key that it was sent with. A hit, and one that shares a generation, saves tokens, seconds
      and energy.
    - A generation counts for the key of the request that started it, with what the rates and budgets count.
    """

    def __init__(self) -> None:
        self._sums: dict[_Account, float] = {}  # since the last flush
        self._usage = UsageLedger()
        self._savings = SavingsLedger()

    def add_requests(
        self, tenant: str, key_id: str | None, model: str, cache: CacheStatus,
        requests: int, tokens: int, seconds: float, joules: float | None,
    ) -> None:  # fmt: skip
        """Requests of one kind. `tokens`, `seconds`, `joules`: what their responses took to generate, all together.

        `joules`: None where the engine's power is unknown.
        """
        self._add((tenant, key_id, model, "requests"), requests)
        if cache in _FROM_STORE:
            self._add((tenant, key_id, model, "hits"), requests)
        elif cache is CacheStatus.COALESCED:
            self._add((tenant, key_id, model, "coalesced"), requests)
        else:
            return
        self._add((tenant, key_id, model, "saved_tokens"), tokens)
        self._add((tenant, key_id, model, "gpu_seconds_saved"), seconds)
        self._add((tenant, key_id, model, "joules_saved"), joules or 0.0)

    def add_generation(self, generation: GenerationRecord, now: float) -> None:
        """`now`: an instant of time.perf_counter, at which the generation ended."""
        tenant, key_id, model = generation.origin.tenant, generation.origin.key_id, generation.origin.model
        self._add((tenant, key_id, model, "gpu_seconds"), generation.gpu_seconds(now))
        self._add((tenant, key_id, model, "prompt_tokens"), generation.prompt_tokens)
        self._add((tenant, key_id, model, "completion_tokens"), generation.completion_tokens)
        if not generation.prompt_tokens + generation.completion_tokens:
            self._add((tenant, key_id, model, "estimated_tokens"), generation.estimated_tokens)

    def add_energy(self, generation: GenerationRecord, joules: float) -> None:
        origin = generation.origin
        self._add((origin.tenant, origin.key_id, origin.model, "joules_spent"), joules)

    def _add(self, account: _Account, amount: float) -> None:
        if amount:
            before = self._sums.get(account)
            if before is not None or len(self._sums) < MAX_ACCOUNTS:
                self._sums[account] = (before or 0.0) + amount

    def flush(self, pipeline: Sender, now: float) -> None:
        """`now`: seconds since the epoch."""
        sums, self._sums = self._sums, {}
        for (tenant, key_id, model, kind), amount in sums.items():
            if kind in _USAGE:
                self._usage.add(tenant, key_id, model, [(_USAGE[kind], amount)])
            if kind in _SAVINGS:
                self._savings.add(tenant, model, [(_SAVINGS[kind], amount)])
        self._savings.flush(pipeline, now)
        self._usage.flush(pipeline, now)
