"""The engines that were selected for a request; see router.flow.attempts.engine_selection."""

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from router.core.endpoints.endpoint import InferenceRequest
from router.core.routing.prefill import PrefillEstimate
from router.core.routing.ranking import EngineSnapshot
from router.core.routing.token_bounds import TokenBounds
from router.flow.attempts.routed_prompt import UNROUTED, RoutedPrompt
from router.upstream.engine import Engine


class Selection(msgspec.Struct, frozen=True):
    """The engines for a request, and the request as they get it.

    - `order_engines` ranks the engines by their state at the time of the call. It is called right before the request is
      sent, because a request counts as load at an engine only once it is sent.
    - `adjusted_fields` are left out of the request because no engine of the model supports them. The response then
      does not match the request exactly, so it must not be shared or stored.
    - `with_first`: with these engines before the others, as far as they are of the model that is tried first.
    """

    order_engines: Callable[[], Sequence[Engine]]
    request: InferenceRequest
    adjusted_fields: tuple[str, ...] = ()
    prompt: RoutedPrompt = UNROUTED

    def with_first(self, is_first: Callable[[Engine], bool]) -> "Selection":
        return msgspec.structs.replace(self, order_engines=partial(_with_first, self.order_engines, is_first))


def _with_first(order_engines: Callable[[], Sequence[Engine]], is_first: Callable[[Engine], bool]) -> Sequence[Engine]:
    engines = order_engines()
    return sorted(engines, key=lambda engine: engine.model != engines[0].model or not is_first(engine))


class RankedEngine(msgspec.Struct, frozen=True):
    """An engine as it was ranked. `estimate`: of the prompt there. `total_seconds`: see rank_with_seconds."""

    engine: Engine
    snapshot: EngineSnapshot
    total_seconds: float | None
    estimate: PrefillEstimate | None


class ExplainedSelection(msgspec.Struct, frozen=True):
    """`cohorts`: the engines that would be tried, those of each part in their order; see Selection for the others."""

    cohorts: Sequence[Sequence[RankedEngine]]
    adjusted_fields: tuple[str, ...]
    bounds: TokenBounds
