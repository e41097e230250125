"""One ledger of what requests used and saved: each fact is counted once, by tenant, API key, model and kind.

The usage in Redis has these sums as they are. The savings are a projection of them: the same sums without the keys.
"""

from typing import Final

from router.core.types import CacheStatus
from router.flow.exchange import GenerationRecord
from router.shared.accounting.daily_sums import Sender
from router.shared.accounting.ledger import SavingsKind, SavingsLedger
from router.shared.accounting.usage import MAX_ACCOUNTS, REFUSED, UsageLedger

_Account = tuple[str, str | None, str]  # tenant, key id, model

_FROM_STORE: Final = (CacheStatus.HIT, CacheStatus.STALE)
_KINDS: Final = 12
_MAX_ACCOUNTS: Final = MAX_ACCOUNTS // _KINDS


class _Amounts:
    """What an account has used and saved since the last flush. A hot path: attributes are cheaper than keys."""

    def __init__(self) -> None:
        self.requests = 0
        self.hits = 0
        self.coalesced = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.estimated_tokens = 0
        self.saved_tokens = 0
        self.gpu_seconds = 0.0
        self.gpu_seconds_saved = 0.0
        self.joules_spent = 0.0
        self.joules_saved = 0.0
        self.refused: dict[str, int] = {}  # by reason

    def usage(self) -> list[tuple[str, float]]:
        amounts: list[tuple[str, float]] = [
            ("requests", self.requests),
            ("hits", self.hits),
            ("coalesced", self.coalesced),
            ("prompt_tokens", self.prompt_tokens),
            ("completion_tokens", self.completion_tokens),
            ("estimated_tokens", self.estimated_tokens),
            ("saved_tokens", self.saved_tokens),
            ("gpu_seconds", self.gpu_seconds),
            *[(REFUSED + reason, count) for reason, count in self.refused.items()],
        ]
        return [each for each in amounts if each[1]]

    def savings(self) -> list[tuple[SavingsKind, float]]:
        amounts: list[tuple[SavingsKind, float]] = [
            ("requests", self.requests),
            ("hits", self.hits),
            ("coalesced", self.coalesced),
            ("saved_tokens", self.saved_tokens),
            ("gpu_seconds_spent", self.gpu_seconds),
            ("gpu_seconds_saved", self.gpu_seconds_saved),
            ("joules_spent", self.joules_spent),
            ("joules_saved", self.joules_saved),
            ("refused", sum(self.refused.values())),
        ]
        return [each for each in amounts if each[1]]


class UsageCounter:
    """What counts.

    - A request counts for the key that it was sent with. A hit, and one that shares a generation, saves tokens, seconds
      and energy.
    - A request that is refused by a limit, a budget or a queue counts for its key by the reason. Where the cache was
      asked before, it counts as a request, too.
    - A generation counts for the key of the request that started it, with what the rates and budgets count.
    """

    def __init__(self) -> None:
        self._amounts: dict[_Account, _Amounts] = {}  # since the last flush
        self._usage = UsageLedger()
        self._savings = SavingsLedger()

    def add_requests(
        self, tenant: str, key_id: str | None, model: str, cache: CacheStatus,
        requests: int, tokens: int, seconds: float, joules: float | None,
    ) -> None:  # fmt: skip
        """Requests of one kind. `tokens`, `seconds`, `joules`: what their responses took to generate, all together.

        `joules`: None where the engine's power is unknown.
        """
        amounts = self._amounts_of(tenant, key_id, model)
        if amounts is None:
            return
        amounts.requests += requests
        if cache in _FROM_STORE:
            amounts.hits += requests
        elif cache is CacheStatus.COALESCED:
            amounts.coalesced += requests
        else:
            return
        amounts.saved_tokens += tokens
        amounts.gpu_seconds_saved += seconds
        amounts.joules_saved += joules or 0.0

    def add_refused(self, tenant: str, key_id: str | None, model: str, reason: str, requests: int) -> None:
        amounts = self._amounts_of(tenant, key_id, model)
        if amounts is not None:
            amounts.refused[reason] = amounts.refused.get(reason, 0) + requests

    def add_generation(self, generation: GenerationRecord, gpu_seconds: float) -> None:
        amounts = self._amounts_of_generation(generation)
        if amounts is None:
            return
        amounts.gpu_seconds += gpu_seconds
        amounts.prompt_tokens += generation.prompt_tokens
        amounts.completion_tokens += generation.completion_tokens
        if not generation.prompt_tokens + generation.completion_tokens:
            amounts.estimated_tokens += generation.estimated_tokens

    def add_energy(self, generation: GenerationRecord, joules: float) -> None:
        amounts = self._amounts_of_generation(generation)
        if amounts is not None:
            amounts.joules_spent += joules

    def _amounts_of_generation(self, generation: GenerationRecord) -> _Amounts | None:
        origin = generation.origin
        return self._amounts_of(origin.tenant, origin.key_id, origin.model)

    def _amounts_of(self, tenant: str, key_id: str | None, model: str) -> _Amounts | None:
        """None if there are too many accounts."""
        account = (tenant, key_id, model)
        amounts = self._amounts.get(account)
        if amounts is None and len(self._amounts) < _MAX_ACCOUNTS:
            amounts = self._amounts[account] = _Amounts()
        return amounts

    def flush(self, pipeline: Sender, now: float) -> None:
        """`now`: seconds since the epoch."""
        ended, self._amounts = self._amounts, {}
        for (tenant, key_id, model), amounts in ended.items():
            self._usage.add(tenant, key_id, model, amounts.usage())
            self._savings.add(tenant, model, amounts.savings())
        self._savings.flush(pipeline, now)
        self._usage.flush(pipeline, now)
