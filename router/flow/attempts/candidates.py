"""The models and engines that may answer a request: its own, and its fallbacks."""

from collections.abc import Sequence
from functools import partial

import msgspec

from router.core.routing.session import Session
from router.flow.attempts.admission import Admission
from router.flow.attempts.engine_health import EngineHealth
from router.flow.attempts.engine_selection import EngineSelector
from router.flow.attempts.ttft_limits import TtftLimits
from router.flow.brownout import Brownout
from router.flow.parsed_request import ParsedRequest
from router.flow.selection import Selection
from router.flow.tenant_rules import TenantRules
from router.shared.engines.breakers import Breakers
from router.upstream.catalog import Catalog
from router.upstream.engine import Engine


class Candidates:
    """Applies to each request what holds for its tenant and for the state of the engines."""

    def __init__(
        self, selector: EngineSelector, brownout: Brownout, rules: TenantRules, ttft_limits: TtftLimits
    ) -> None:
        self._selector = selector
        self._brownout = brownout
        self._rules = rules
        self._ttft_limits = ttft_limits

    def models(self, parsed: ParsedRequest, tenant: str) -> Sequence[str]:
        """In the order in which they are to be tried."""
        models = self._brownout.candidate_models(parsed.model.name, parsed.request.endpoint)
        return self._rules.allowed_models(tenant, models)

    def prefers_stale(self, parsed: ParsedRequest, tenant: str) -> bool:
        """Whether a stale entry is to be served: a brownout counts as an error, and so do engines that are all down."""
        return self._brownout.prefers_stale(parsed.model.configured_name, self.models(parsed, tenant))

    def select(
        self, parsed: ParsedRequest, tenant: str, session: Session | None, max_ttft: float | None, models: Sequence[str]
    ) -> Selection:
        """`max_ttft`: what the client allows, in seconds; None: what its tenant does. Raises ApiError."""
        if max_ttft is None:
            max_ttft = self._rules.max_ttft.get(tenant)
        if max_ttft is None:
            return self._selector.select(parsed, tenant, session, models)
        selection = self._selector.select(parsed, tenant, session, models, needs_estimates=True)
        order_engines = partial(self._ttft_limits.order_engines, selection, tenant, max_ttft)
        return msgspec.structs.replace(selection, order_engines=order_engines)

    def engines_now(
        self, parsed: ParsedRequest, tenant: str, session: Session | None, models: Sequence[str]
    ) -> Sequence[Engine]:
        """Those that may get the request now, the best first. Raises ApiError."""
        return self._selector.select(parsed, tenant, session, models).order_engines()

    def priority(self, parsed: ParsedRequest, tenant: str) -> int:
        return self._rules.priority(tenant, parsed.request.priority)


def build_candidates(
    selector: EngineSelector, catalog: Catalog, breakers: Breakers, health: EngineHealth, admission: Admission,
    rules: TenantRules,
) -> Candidates:  # fmt: skip
    brownout = Brownout(catalog, breakers, health.readiness)
    ttft_limits = TtftLimits(readiness=health.readiness, slot_wait=admission.slot_wait)
    return Candidates(selector, brownout, rules, ttft_limits)
