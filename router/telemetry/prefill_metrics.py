"""How good the estimates are that engines are chosen by: what was expected of an engine, and what it did."""

from typing import Final

from prometheus_client import Counter

from router.flow.exchange import GenerationRecord
from router.telemetry.batch_histogram import BatchHistogram
from router.telemetry.metric_objects import MetricObjects

_RESULTS: Final = ("expected", "new", "found")


class PrefillSeries:
    """The generations at one engine for one model that had a choice, since the last flush.

    - `expected`, `new`, `found`: see PrefixTokens. `found` is None while none is known.
    - `ttfts`: the expected times to the first token in seconds, of streams that had one.
    - `dirty`: a flush is scheduled.
    """

    __slots__ = ("_engine", "_histogram", "_tokens", "dirty", "expected", "found", "new", "ttfts")

    def __init__(self, engine: str, tokens: Counter, histogram: BatchHistogram) -> None:
        """`tokens`: by engine and result. `histogram`: the model's."""
        self._engine = engine
        self._tokens = tokens
        self._histogram = histogram
        self.dirty = False
        self.expected = self.new = 0
        self.found: int | None = None
        self.ttfts: list[float] = []

    def add(self, generation: GenerationRecord) -> None:
        self.dirty = True
        estimate, tokens = generation.placement.estimate, generation.placement.prefix_tokens
        if estimate is not None and generation.origin.stream and generation.first_token_at is not None:
            self.ttfts.append(estimate.ttft)
        if tokens is not None:
            self.expected += tokens.expected
            self.new += tokens.new
            if tokens.found is not None:
                self.found = tokens.found + (self.found or 0)

    def flush(self) -> None:
        for result, tokens in zip(_RESULTS, (self.expected, self.new, self.found), strict=True):
            if tokens is not None:
                self._tokens.labels(self._engine, result).inc(tokens)
        if self.ttfts:
            self._histogram.observe_many(self.ttfts)
            self.ttfts.clear()
        self.expected = self.new = 0
        self.found = None
        self.dirty = False


class PrefillMetrics:
    """Counts the generations whose engine was chosen by estimates."""

    def __init__(self, objects: MetricObjects) -> None:
        self._tokens = objects.counters["roundhouse_prefix_tokens_total"]
        self._expected_ttft = objects.histograms["roundhouse_expected_ttft_seconds"]
        self._series: dict[tuple[str, str], PrefillSeries] = {}

    def series(self, generation: GenerationRecord) -> PrefillSeries | None:
        """Where the generation is to be added; None if its engine was not chosen by estimates."""
        engine, model = generation.engine, generation.origin.model
        if engine is None or generation.placement.estimate is None:
            return None
        found = self._series.get((engine, model))
        if found is None:
            histogram = self._expected_ttft.labels(model)
            found = self._series[engine, model] = PrefillSeries(engine, self._tokens, histogram)
        return found
