"""What the engines' own metrics mean for requests: breakers that open for pressure, and what is given up under it."""

from collections.abc import Sequence

from router.core.resilience.breaker import BreakerState
from router.core.resilience.brownout import BrownoutLevel, brownout_level
from router.core.types import Endpoint
from router.shared.breakers import Breakers
from router.upstream.catalog import Catalog


class PressureMonitor:
    """Tells the breakers what the probe has found."""

    def __init__(self, catalog: Catalog, breakers: Breakers) -> None:
        self._catalog = catalog
        self._breakers = breakers
        self._down: set[str] = set()

    def on_probe_round(self) -> None:
        """All engines have been asked how they are."""
        for engine in self._catalog.engines.values():
            self._breakers.on_kv_usage(engine.name, engine.gauges.kv_cache_usage)
            if engine.up and engine.name in self._down:
                self._breakers.on_recovered(engine.name)
        self._down = {engine.name for engine in self._catalog.engines.values() if not engine.up}


class Brownout:
    """Which models may answer, and whether an old answer will do, by the pressure on the model asked for.

    - Pressure is the share of a model's engines whose KV cache keeps them shut, among those that work at all.
    - Each model has a level of its own, which rises and falls at different shares.
    """

    def __init__(self, catalog: Catalog, breakers: Breakers) -> None:
        self._catalog = catalog
        self._breakers = breakers
        self._levels: dict[str, BrownoutLevel] = {}

    def level(self, model: str) -> BrownoutLevel:
        now = brownout_level(self._pressure(model), self._levels.get(model, BrownoutLevel.NORMAL))
        self._levels[model] = now
        return now

    def prefers_stale(self, model: str) -> bool:
        """Whether an answer that has outlived its time is given rather than a new one."""
        return self.level(model) >= BrownoutLevel.STALE

    def candidate_models(self, model: str, endpoint: Endpoint) -> Sequence[str]:
        """The models whose engines may be asked, in this order.

        Vectors of another model mean nothing beside those of the model that was asked for, so that embeddings have no
        fallback.
        """
        if endpoint is Endpoint.EMBEDDINGS:
            return [model]
        chain = self._catalog.fallback_chain(model)
        if len(chain) > 1 and self.level(model) >= BrownoutLevel.FALLBACK and self._is_healthy(chain[1]):
            return [chain[1], model, *chain[2:]]
        return chain

    def _pressure(self, model: str) -> float:
        working = [
            self._breakers.under_pressure(engine.name)
            for engine in self._catalog.engines_for(model)
            if engine.up is not False
            and (self._breakers.under_pressure(engine.name) or self._breakers.state(engine.name) is BreakerState.CLOSED)
        ]
        return sum(working) / len(working) if working else 0.0

    def _is_healthy(self, model: str) -> bool:
        engines = self._catalog.engines_for(model)
        return self.level(model) is BrownoutLevel.NORMAL and any(
            engine.up is not False and self._breakers.state(engine.name) is BreakerState.CLOSED for engine in engines
        )
