"""The counters of an engine: plain numbers, converted to metrics at a scrape."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")

# vLLM's histogram buckets: seconds, and counts of tokens, choices and preemptions.
_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160,
                640, 2560)  # fmt: skip
_BETWEEN_TOKENS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_STEP_TOKENS = tuple(2**power for power in (0, *range(3, 15)))
_CHOICES = (1, 2, 5, 10, 20)
_PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)


class Histogram:
    """Observations by upper bound, as in Prometheus."""

    def __init__(self, bounds: Iterable[float]) -> None:
        self.bounds = tuple(bounds)
        self.sum = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Upper bounds as label values, each with the number of observations up to it."""
        total, result = 0, []
        for bound, count in zip((*self.bounds, float("inf")), self._counts, strict=True):
            total += count
            result.append(("+Inf" if bound == float("inf") else str(float(bound)), float(total)))
        return result


def token_bounds(maximum: int) -> tuple[int, ...]:
    """1, 2, 5, 10, ... up to `maximum`: vLLM's buckets for counts of tokens."""
    bounds = (mantissa * 10**power for power in range(len(str(maximum))) for mantissa in (1, 2, 5))
    return tuple(bound for bound in bounds if bound <= maximum)


def _histograms(context: int) -> dict[str, Histogram]:
    tokens = token_bounds(context)
    bounds: dict[str, tuple[float, ...]] = {
        "request_prompt_tokens": tokens,
        "request_generation_tokens": tokens,
        "iteration_tokens_total": _STEP_TOKENS,
        "request_max_num_generation_tokens": tokens,
        "request_params_n": _CHOICES,
        "request_params_max_tokens": tokens,
        "time_to_first_token_seconds": _FIRST_TOKEN,
        "inter_token_latency_seconds": _BETWEEN_TOKENS,
        "request_time_per_output_token_seconds": _BETWEEN_TOKENS,
        "e2e_request_latency_seconds": _LATENCY,
        "request_queue_time_seconds": _LATENCY,
        "request_inference_time_seconds": _LATENCY,
        "request_prefill_time_seconds": _LATENCY,
        "request_decode_time_seconds": _LATENCY,
        "request_num_preemptions": _PREEMPTIONS,
        "request_prefill_kv_computed_tokens": tokens,
    }
    return {name: Histogram(values) for name, values in bounds.items()}


@dataclass(slots=True)
class SequenceTimes:
    """Times of one sequence, in seconds of one clock; 0 if the event has not happened yet."""

    arrived: float
    admitted: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0


class EngineCounters:
    """The counters of one engine since its start."""

    def __init__(self, context: int) -> None:
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generation_tokens = 0
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.histograms = _histograms(context)

    def record_step(self, times: SequenceTimes, now: float, generated: int, prompt: int, cached: int) -> None:
        """Records that one step of one sequence yielded `generated` tokens; the first step also computes its prompt."""
        self.generation_tokens += generated
        # Cached prompt tokens are not computed.
        self.histograms["iteration_tokens_total"].observe(generated + prompt - cached)
        if times.first_token:
            self.histograms["inter_token_latency_seconds"].observe(now - times.last_token)
        else:
            times.first_token = now
            self.prompt_tokens += prompt
            self.cached_tokens += cached
            self.histograms["time_to_first_token_seconds"].observe(now - times.arrived)
        times.last_token = now

    def record_finished(self, reason: str, times: SequenceTimes, now: float, sizes: "SequenceSizes") -> None:
        """Records the end of one sequence for `reason`, one of FINISH_REASONS."""
        self.finished[reason] += 1
        # A sequence that was aborted early has no later times: those phases took until now.
        admitted = times.admitted or now
        first = times.first_token or now
        last = times.last_token or now
        observations = {
            "request_prompt_tokens": sizes.prompt,
            "request_generation_tokens": sizes.generated,
            # Without the first token, which belongs to the prefill.
            "request_time_per_output_token_seconds": (last - first) / max(1, sizes.generated - 1),
            "e2e_request_latency_seconds": now - times.arrived,
            "request_queue_time_seconds": admitted - times.arrived,
            "request_inference_time_seconds": last - admitted,
            "request_prefill_time_seconds": first - admitted,
            "request_decode_time_seconds": last - first,
            "request_num_preemptions": sizes.preemptions,
            "request_prefill_kv_computed_tokens": sizes.prompt - sizes.cached,
            "request_params_max_tokens": sizes.limit,
        }
        for name, value in observations.items():
            self.histograms[name].observe(max(0, value))

    def record_pooled(self, prompt: int, times: SequenceTimes, now: float) -> None:
        """Records one sequence of a pooling model, which generates nothing."""
        self.prompt_tokens += prompt
        self.finished["stop"] += 1
        seconds = now - times.arrived
        observations = {
            "request_prompt_tokens": prompt,
            "request_generation_tokens": 0,
            "iteration_tokens_total": prompt,
            "time_to_first_token_seconds": seconds,
            "request_time_per_output_token_seconds": 0,
            "e2e_request_latency_seconds": seconds,
            "request_queue_time_seconds": 0,
            "request_inference_time_seconds": seconds,
            "request_prefill_time_seconds": seconds,
            "request_decode_time_seconds": 0,
            "request_num_preemptions": 0,
            "request_prefill_kv_computed_tokens": prompt,
        }
        for name, value in observations.items():
            self.histograms[name].observe(max(0, value))
        self.record_request(1, 0)

    def record_request(self, n: int, longest: int) -> None:
        """Records the end of a request with `n` choices, the longest of which had `longest` tokens."""
        self.histograms["request_params_n"].observe(n)
        self.histograms["request_max_num_generation_tokens"].observe(longest)


@dataclass(frozen=True, slots=True)
class SequenceSizes:
    """Sizes of one finished sequence, in tokens."""

    prompt: int
    cached: int
    generated: int
    limit: int
    preemptions: int
