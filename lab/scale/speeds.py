"""How fast an engine generates, as a function of the number of its concurrent requests."""

from bisect import bisect_left
from typing import Final, NamedTuple


class SpeedPoint(NamedTuple):
    """At this concurrency: seconds to the first token, and seconds between two tokens of a request."""

    concurrency: int
    first_token: float
    between_tokens: float


class EngineSpeed:
    """A straight line between measured points; beyond the last point, both times grow with the concurrency."""

    def __init__(self, *points: SpeedPoint) -> None:
        """`points`: at least one, by rising concurrency."""
        self._points = points
        self._concurrencies = [point.concurrency for point in points]

    def at(self, concurrency: int) -> SpeedPoint:
        index = bisect_left(self._concurrencies, concurrency)
        if index == 0:
            return self._points[0]
        if index == len(self._points):
            last = self._points[-1]
            factor = concurrency / last.concurrency if len(self._points) > 1 else 1.0
            return SpeedPoint(concurrency, last.first_token * factor, last.between_tokens * factor)
        low, high = self._points[index - 1], self._points[index]
        share = (concurrency - low.concurrency) / (high.concurrency - low.concurrency)
        return SpeedPoint(
            concurrency,
            low.first_token + share * (high.first_token - low.first_token),
            low.between_tokens + share * (high.between_tokens - low.between_tokens),
        )


def simulated_engine(first_token: float, tokens_per_second: float) -> EngineSpeed:
    """`engines.simulator`: its speed does not depend on its load; see --ttft-ms and --tokens-per-second."""
    return EngineSpeed(SpeedPoint(1, first_token, 1 / tokens_per_second))


LLAMA_8B_ON_H100: Final = EngineSpeed(
    SpeedPoint(1, 0.0103, 0.00463),
    SpeedPoint(5, 0.0168, 0.00458),
    SpeedPoint(25, 0.0363, 0.00519),
    SpeedPoint(50, 0.0674, 0.00591),
    SpeedPoint(100, 0.1200, 0.00757),
    SpeedPoint(150, 0.3465, 0.00981),
    SpeedPoint(200, 0.4652, 0.01265),
    SpeedPoint(250, 0.6056, 0.01614),
)
"""Assumed, not measured by us: the first table for Llama-3.1-8B-Instruct of NVIDIA's published NIM benchmarks (version
1.8.0, https://docs.nvidia.com/nim/benchmarking/llm/1.0.0/performance), whose peak is 13,300 tokens per second.
https://www.morphllm.com/vllm-benchmarks states 12,500 for vLLM on one H100. Long prompts make it slower."""
