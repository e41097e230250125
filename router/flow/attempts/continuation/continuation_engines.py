"""The engines that may go on with a stream which one of them has broken off."""

import time
from collections.abc import Sequence

from router.core.endpoints.endpoint import InferenceRequest
from router.core.resilience.breaker import BreakerState
from router.flow.attempts.admission import Admission
from router.flow.attempts.eligibility import is_eligible
from router.upstream.catalog import BreakerStates, Catalog
from router.upstream.engine import Engine


class ContinuationEngines:
    """Those that were selected for the request and are still there, then all others that can serve it.

    A stream can last longer than a configuration, or than a set of announced engines: a rolling update of the engines
    replaces all of them under it. And an engine may have been drained when the stream began.
    """

    def __init__(self, catalog: Catalog, admission: Admission) -> None:
        self._admission = admission
        self._revisions = {model.name: model.revision for model in catalog.models}
        self._catalog = catalog
        self._breaker_state: BreakerStates | None = None

    def adopt(self, catalog: Catalog, breaker_state: BreakerStates) -> None:
        """To be called on an earlier configuration when `catalog` takes effect; `breaker_state`: of its engines."""
        self._catalog = catalog
        self._breaker_state = breaker_state
        self._admission.adopt([engine for engine in catalog.engines.values() if engine.model in self._revisions])

    def find(self, request: InferenceRequest, model: str, selected: Sequence[Engine]) -> Sequence[Engine]:
        """The engines of `model`; none if the configuration has it no more, or with another revision.

        `selected`: the engines for the request, in their order, when it began.
        """
        configured = self._catalog.resolve_configured(model)
        if configured is None or configured.name != model or configured.revision != self._revisions.get(model):
            return ()
        others = {engine.name: engine for engine in self._catalog.engines_for(model) if not self._is_open(engine)}
        still_there = []
        for engine in selected:
            now = others.get(engine.name)
            if now is engine or (now is not None and now.url == engine.url and _can_serve(now, request)):
                still_there.append(now)
                del others[engine.name]
        able = [engine for engine in others.values() if _can_serve(engine, request)]
        # By their load, which counts the streams that have just gone to them. Those without a share are a reserve.
        able.sort(key=lambda engine: (engine.share == 0, engine.load))
        return [*still_there, *able]

    def _is_open(self, engine: Engine) -> bool:
        # With another Redis, the breakers of the earlier configuration know nothing of engines that are new since.
        return self._breaker_state is not None and self._breaker_state(engine.name) is BreakerState.OPEN


def _can_serve(engine: Engine, request: InferenceRequest) -> bool:
    return engine.up is True and is_eligible(engine, request, time.perf_counter())
