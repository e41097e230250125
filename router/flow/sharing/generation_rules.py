"""What the configuration in effect at the start of an in-flight request says of it; a reload does not change it."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Literal

from router.flow.generation import Generations
from router.flow.sharing.inflight import InFlightRequest

OnAbandon = Literal["cancel", "finish"]

_NO_LIMITS: Final[Mapping[str, int]] = MappingProxyType({})


class AbandonRules:
    """`limits` by tenant; one that is not in it has no limit. `timeout` in seconds. See Abandonment."""

    def __init__(self, on_abandon: OnAbandon, timeout: float, limits: Mapping[str, int] = _NO_LIMITS) -> None:
        self.on_abandon: OnAbandon = on_abandon
        self.timeout = timeout
        self.limits = limits


class GenerationRules:
    """How the generations that one configuration starts are made, shared and ended.

    - `join_limit`: bytes beyond which an in-flight request accepts no more subscribers.
    - `record_generation` is called when a generation that this process led ends.
    - `running`: how many in-flight requests have these rules.
    """

    __slots__ = ("abandon", "generations", "join_limit", "record_generation", "running")

    def __init__(
        self, generations: Generations, abandon: AbandonRules, *, join_limit: int,
        record_generation: Callable[[InFlightRequest], None],
    ) -> None:  # fmt: skip
        self.generations = generations
        self.abandon = abandon
        self.join_limit = join_limit
        self.record_generation = record_generation
        self.running = 0
