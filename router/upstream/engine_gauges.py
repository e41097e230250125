"""Reads an engine's own metrics page."""

import re
from collections.abc import Mapping
from functools import lru_cache
from math import isfinite
from typing import Final

import msgspec
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from router.core.routing.draft_models.counted_steps import SpeculationCounters

# The names that servers have for the same: vLLM, SGLang, llama.cpp, TGI.
_KV_CACHE_USAGE: Final = (
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",  # in older vLLM versions
    "sglang:token_usage",
    "llamacpp:kv_cache_usage_ratio",  # in older llama.cpp versions
)
_RUNNING: Final = (
    "vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing", "tgi_batch_current_size",
)  # fmt: skip
_WAITING: Final = (
    "vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred", "tgi_queue_size",
)  # fmt: skip
# What changes while a server computes. A long prompt that is prefilled in chunks generates nothing until its last one;
# of vLLM's values, only the usage of the KV cache changes then.
_PROGRESS: Final = (
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:iteration_tokens_total_sum",
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "sglang:generation_tokens_total",
    "sglang:prompt_tokens_total",
    "sglang:token_usage",
    "llamacpp:tokens_predicted_total",
    "llamacpp:prompt_tokens_total",
    "llamacpp:n_decode_total",
    "tgi_batch_inference_count",
)
_SAMPLE: Final = re.compile(r"([^\s{#]+(?:\{[^#]*\})?) ([^\s_]+)", re.ASCII)
"""A series and its value; no time and no exemplar, whose labels could be taken for those of the series."""
_METRIC_NAMES: Final = frozenset((
    *_PROGRESS,
    *_KV_CACHE_USAGE,
    *_RUNNING,
    *_WAITING,
    "vllm:cache_config_info",
    "sglang:cache_hit_rate",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
))  # fmt: skip


class EngineGauges(msgspec.Struct, frozen=True):
    """The last values of an engine's own metrics; None is unknown, which is never 0. Ratios are 0 to 1.

    `kv_cache_tokens`: the size of its KV cache. `progress`: values that change while it computes; empty if there are
    none.
    """

    kv_cache_usage: float | None = None
    kv_cache_tokens: int | None = None
    running: float | None = None
    waiting: float | None = None
    prefix_cache_hit_rate: float | None = None
    spec_acceptance_rate: float | None = None
    spec_tokens_per_step: float | None = None
    spec_counts: SpeculationCounters | None = None
    progress: tuple[float, ...] = ()


def parse_gauges(page: str, rank: int | None = None) -> EngineGauges:
    """The gauges of an engine's metrics page; None for a metric that is not on it. Raises ValueError if unparsable.

    `rank`: the data-parallel rank whose samples count, which vLLM names in the label `engine`. None: several ranks
    behind one address are summed; of their KV caches, the fullest counts.
    """
    values: dict[str, list[float]] = {}
    kv_cache_tokens = 0
    for line in page.splitlines():
        # A page has hundreds of lines, of which few are in use.
        if line.partition("{")[0].partition(" ")[0].partition("\t")[0] not in _METRIC_NAMES:
            continue
        name, labels, value = _parse_sample(line)
        if rank is not None and labels.get("engine") != str(rank):
            continue
        if name == "vllm:cache_config_info":
            kv_cache_tokens += _kv_cache_tokens(labels)
        if isfinite(value):  # an exporter gives NaN for an unknown value
            values.setdefault(name, []).append(value)

    def total(*names: str) -> float | None:
        return next((sum(values[name]) for name in names if name in values), None)

    def ratio(part: float | None, whole: float | None) -> float | None:
        return part / whole if part is not None and whole else None

    usage = next((values[name] for name in _KV_CACHE_USAGE if name in values), None)
    hit_rate = ratio(total("vllm:prefix_cache_hits_total"), total("vllm:prefix_cache_queries_total"))
    drafts = total("vllm:spec_decode_num_drafts_total")
    accepted = total("vllm:spec_decode_num_accepted_tokens_total")
    per_draft = ratio(accepted, drafts)
    return EngineGauges(
        kv_cache_usage=max(usage) if usage else None,
        kv_cache_tokens=kv_cache_tokens or None,
        running=total(*_RUNNING),
        waiting=total(*_WAITING),
        prefix_cache_hit_rate=hit_rate if hit_rate is not None else total("sglang:cache_hit_rate"),
        spec_acceptance_rate=ratio(accepted, total("vllm:spec_decode_num_draft_tokens_total")),
        # Each step yields the accepted draft tokens and one token of the target model.
        spec_tokens_per_step=1 + per_draft if per_draft is not None else None,
        progress=tuple(sum(values[name]) for name in _PROGRESS if name in values),
        spec_counts=SpeculationCounters(drafts, accepted) if drafts is not None and accepted is not None else None,
    )


def _parse_sample(line: str) -> tuple[str, Mapping[str, str], float]:
    """Its name, labels and value. Raises ValueError."""
    parts = _SAMPLE.fullmatch(line)
    if parts is None:
        (sample,) = _samples(line)
        return sample.name, sample.labels, sample.value
    # The labels are the same on each page, and take ten times as long as the value.
    name, labels = _parse_series(parts[1])
    return name, labels, float(parts[2])


@lru_cache(maxsize=4096)
def _parse_series(series: str) -> tuple[str, Mapping[str, str]]:
    """Its name and labels. Raises ValueError."""
    (sample,) = _samples(f"{series} 0")
    return sample.name, sample.labels


def _samples(line: str) -> list[Sample]:
    return [sample for family in text_string_to_metric_families(f"{line}\n") for sample in family.samples]


def _kv_cache_tokens(labels: Mapping[str, str]) -> int:
    """The size of an engine core's KV cache; 0 if it is unknown."""
    try:
        return max(0, int(labels["num_gpu_blocks"]) * int(labels["block_size"]))
    except (KeyError, ValueError):  # "None" until the engine has measured its memory
        return 0
