"""Pressure: the engines' KV cache usage opens breakers, and many open breakers put a model into brownout."""

from collections.abc import Callable, Sequence
from typing import Final

from router.core.endpoints.endpoint import Endpoint
from router.core.resilience.breaker import BreakerState
from router.core.resilience.brownout import BrownoutLevel, brownout_level
from router.core.resilience.readiness import Readiness
from router.shared.engines.breakers import Breakers
from router.upstream.catalog import Catalog
from router.upstream.engine import Engine

_OUT_OF_SERVICE: Final = (Readiness.DOWN, Readiness.BLOCKED)


class PressureMonitor:
    """Passes the results of the probes to the breakers."""

    def __init__(self, catalog: Catalog, breakers: Breakers) -> None:
        self._catalog = catalog
        self._breakers = breakers
        self._down: set[str] = set()

    def on_probe_round(self) -> None:
        for engine in self._catalog.engines.values():
            self._breakers.on_kv_usage(engine.name, engine.gauges.kv_cache_usage)
            # An engine that is up again is half-open at once, without waiting for the cooldown.
            if engine.up and engine.name in self._down:
                self._breakers.on_recovered(engine.name)
        self._down = {engine.name for engine in self._catalog.engines.values() if not engine.up}


class Brownout:
    """Selects the models that may respond, and whether a stale entry is served, by the pressure on the requested model.

    - Pressure is the share of a model's working engines whose breaker is open because of KV cache usage.
    - Each model has its own level, with hysteresis: it rises and falls at different shares.
    - A stale entry is also served if no engine of these models takes work, unless a request has one started.
    """

    def __init__(self, catalog: Catalog, breakers: Breakers, readiness: Callable[[Engine], Readiness]) -> None:
        """`readiness` of an engine, now."""
        self._catalog = catalog
        self._breakers = breakers
        self._readiness = readiness
        self._levels: dict[str, BrownoutLevel] = {}

    def level(self, model: str) -> BrownoutLevel:
        level = brownout_level(self._pressure(model), self._levels.get(model, BrownoutLevel.NORMAL))
        self._levels[model] = level  # the hysteresis needs the previous level
        return level

    def prefers_stale(self, model: str, candidates: Sequence[str]) -> bool:
        """`candidates`: the models whose engines may get the request."""
        return self.level(model) >= BrownoutLevel.STALE or (
            self._all_are_down(candidates) and not self._waits_for_start(model)
        )

    def candidate_models(self, model: str, endpoint: Endpoint) -> Sequence[str]:
        """The models whose engines may get the request, in this order: usually the model, then its fallbacks."""
        if not endpoint.may_fall_back:
            return [model]
        chain = self._catalog.fallback_chain(model)
        if len(chain) > 1 and self.level(model) >= BrownoutLevel.FALLBACK and self._is_healthy(chain[1]):
            return [chain[1], model, *chain[2:]]
        return chain

    def _pressure(self, model: str) -> float:
        # Of each working engine, whether it is under pressure. One that is open for failures or half-open is left out.
        pressured = [
            self._breakers.under_pressure(engine.name)
            for engine in self._catalog.engines_for(model)
            if engine.up is not False
            and (self._breakers.under_pressure(engine.name) or self._breakers.state(engine.name) is BreakerState.CLOSED)
        ]
        return sum(pressured) / len(pressured) if pressured else 0.0

    def _all_are_down(self, models: Sequence[str]) -> bool:
        """Whether each engine is down or gets no request; a request would find out only by two timeouts."""
        engines = [engine for model in models for engine in self._catalog.engines_for(model)]
        return bool(engines) and all(self._readiness(engine) in _OUT_OF_SERVICE for engine in engines)

    def _waits_for_start(self, model: str) -> bool:
        configured = self._catalog.resolve_configured(model)
        if configured is None or configured.wake is None:
            return False
        return self._catalog.is_asleep(configured.name, self._breakers.state)

    def _is_healthy(self, model: str) -> bool:
        engines = self._catalog.engines_for(model)
        return self.level(model) is BrownoutLevel.NORMAL and any(
            engine.up is not False and self._breakers.state(engine.name) is BreakerState.CLOSED for engine in engines
        )
