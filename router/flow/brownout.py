"""What the engines' own metrics mean for requests: breakers that open for pressure, and what is given up under it."""

from collections.abc import Sequence

from router.core.resilience.breaker import State
from router.core.resilience.brownout import Level, level
from router.core.types import Endpoint
from router.shared.breakers import Breakers
from router.upstream.catalog import Catalog


class Watch:
    """Tells the breakers what the probe has found."""

    def __init__(self, catalog: Catalog, breakers: Breakers) -> None:
        self._catalog = catalog
        self._breakers = breakers
        self._gone: set[str] = set()

    def checked(self) -> None:
        """All engines have been asked how they are."""
        for engine in self._catalog.engines.values():
            self._breakers.measured(engine.name, engine.gauges.kv_cache_usage)
            if engine.up and engine.name in self._gone:
                self._breakers.revived(engine.name)
        self._gone = {engine.name for engine in self._catalog.engines.values() if not engine.up}


class Brownout:
    """Which models may answer, and whether an old answer will do, by the pressure on the model asked for.

    - Pressure is the share of a model's engines whose KV cache keeps them shut, among those that work at all.
    - Each model has a level of its own, which rises and falls at different shares.
    """

    def __init__(self, catalog: Catalog, breakers: Breakers) -> None:
        self._catalog = catalog
        self._breakers = breakers
        self._levels: dict[str, Level] = {}

    def level(self, model: str) -> Level:
        now = level(self._pressure(model), self._levels.get(model, Level.NORMAL))
        self._levels[model] = now
        return now

    def prefers_stale(self, model: str) -> bool:
        """Whether an answer that has outlived its time is given rather than a new one."""
        return self.level(model) >= Level.STALE

    def models(self, model: str, endpoint: Endpoint) -> Sequence[str]:
        """The models whose engines may be asked, in this order.

        Vectors of another model mean nothing beside those of the model that was asked for, so that embeddings have no
        fallback.
        """
        if endpoint is Endpoint.EMBEDDINGS:
            return [model]
        chain = self._catalog.chain(model)
        if len(chain) > 1 and self.level(model) >= Level.FALLBACK and self._is_well(chain[1]):
            return [chain[1], model, *chain[2:]]
        return chain

    def _pressure(self, model: str) -> float:
        working = [
            self._breakers.under_pressure(engine.name)
            for engine in self._catalog.serving(model)
            if engine.up is not False
            and (self._breakers.under_pressure(engine.name) or self._breakers.state(engine.name) is State.CLOSED)
        ]
        return sum(working) / len(working) if working else 0.0

    def _is_well(self, model: str) -> bool:
        engines = self._catalog.serving(model)
        return self.level(model) is Level.NORMAL and any(
            engine.up is not False and self._breakers.state(engine.name) is State.CLOSED for engine in engines
        )
