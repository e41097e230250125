"""One reading of an engine's metrics."""

import time
from collections.abc import Callable
from math import isfinite
from typing import Final

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

MAX_PAGE: Final = 4 << 20
"""Bytes of a metrics page that are read; a longer page counts as none."""

_GAUGES: Final = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",  # the name in older vLLM versions
)
_COUNTERS: Final = (
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:prompt_tokens_by_source_total",
    "vllm:num_preemptions_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:request_success_total",
    "vllm:time_to_first_token_seconds_sum",
    "vllm:time_to_first_token_seconds_count",
)
_NAMES: Final = frozenset(_GAUGES + _COUNTERS)


class Scrape(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics of an engine at one instant; None for what is not on its page.

    `at` is in seconds of a monotonic clock. `healthy`: /health answered 200. From `generated` on, these are totals
    since the engine's start: tokens, prompt tokens that were computed and not cached, requests by the way they ended,
    and the number and sum of times to the first token.
    """

    at: float
    healthy: bool
    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None
    generated: float | None = None
    prefilled: float | None = None
    preemptions: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    finished: float | None = None
    failed: float | None = None
    first_tokens: float | None = None
    first_token_seconds: float | None = None


def parse_scrape(page: str, at: float) -> Scrape:
    """The reading on a healthy engine's metrics page. Raises ValueError if it is unparsable.

    Several engine cores behind one address (data parallel) are summed; of their KV caches, the fullest counts.
    """
    samples = _read_samples(page)

    def total(name: str, label: str = "", value: str = "") -> float | None:
        values = [sample for labels, sample in samples.get(name, []) if not label or labels.get(label) == value]
        return sum(values) if values else None

    def either(first: float | None, second: float | None) -> float | None:
        return second if first is None else first

    usage = samples.get("vllm:kv_cache_usage_perc") or samples.get("vllm:gpu_cache_usage_perc")
    return Scrape(
        at=at,
        healthy=True,
        running=total("vllm:num_requests_running"),
        waiting=total("vllm:num_requests_waiting"),
        kv_cache_usage=max(value for _, value in usage) if usage else None,
        generated=total("vllm:generation_tokens_total"),
        prefilled=either(
            total("vllm:prompt_tokens_by_source_total", "source", "local_compute"), total("vllm:prompt_tokens_total")
        ),
        preemptions=total("vllm:num_preemptions_total"),
        prefix_queries=total("vllm:prefix_cache_queries_total"),
        prefix_hits=total("vllm:prefix_cache_hits_total"),
        finished=total("vllm:request_success_total"),
        failed=total("vllm:request_success_total", "finished_reason", "error"),
        first_tokens=total("vllm:time_to_first_token_seconds_count"),
        first_token_seconds=total("vllm:time_to_first_token_seconds_sum"),
    )


def _read_samples(page: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    # A vLLM page has hundreds of lines; only those in use are parsed.
    lines = [line for line in page.splitlines() if line.partition("{")[0].partition(" ")[0] in _NAMES]
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            if isfinite(sample.value):  # an exporter gives NaN for an unknown value
                samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples


async def scrape_engine(client: httpx.AsyncClient, url: str, clock: Callable[[], float] = time.monotonic) -> Scrape:
    """Reads /health and /metrics of an engine; what cannot be read is unhealthy, or unknown. Never raises httpx's."""
    if not await is_healthy(client, url):
        return Scrape(at=clock(), healthy=False)
    try:
        page = await _get(client, f"{url}/metrics")
        return parse_scrape(page, clock())
    except (httpx.HTTPError, ValueError):
        return Scrape(at=clock(), healthy=True)


async def is_healthy(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/health")).status_code == 200
    except httpx.HTTPError:
        return False


async def _get(client: httpx.AsyncClient, url: str) -> str:
    page = bytearray()
    async with client.stream("GET", url) as response:
        response.raise_for_status()
        async for chunk in response.aiter_bytes():
            page += chunk
            if len(page) > MAX_PAGE:
                raise ValueError(f"the page has more than {MAX_PAGE} bytes")
    return page.decode("utf-8", "replace")
