"""Checks the engines periodically: whether they are up, and what their own metrics report."""

import asyncio
import logging
import time
from collections.abc import Callable
from math import isfinite
from typing import Final

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from router.core.routing.draft_stats import SpeculationCounters
from router.net.client.errors import EngineError
from router.upstream.catalog import Catalog, Engine, EngineGauges
from router.upstream.client import EngineClient

log = logging.getLogger("roundhouse.engines")

MAX_METRICS: Final = 4 << 20
"""Bytes of an engine's metrics page that are read."""

_METRIC_NAMES: Final = (
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",  # the name in older vLLM versions
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
)


def parse_gauges(page: str) -> EngineGauges:
    """The gauges of a vLLM engine's metrics page; None for a metric that is not on it. Raises ValueError if unparsable.

    Several engine cores behind one address (data parallel) are summed; of their KV caches, the fullest counts.
    """
    # A vLLM page has hundreds of lines; only those in use are parsed.
    metric_lines = "\n".join(line for line in page.splitlines() if line.startswith(_METRIC_NAMES))
    values: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(metric_lines + "\n"):
        for sample in family.samples:
            if isfinite(sample.value):  # an exporter gives NaN for an unknown value
                values.setdefault(sample.name, []).append(sample.value)

    def total(name: str) -> float | None:
        return sum(values[name]) if name in values else None

    def ratio(part: float | None, whole: float | None) -> float | None:
        return part / whole if part is not None and whole else None

    usage = values.get("vllm:kv_cache_usage_perc") or values.get("vllm:gpu_cache_usage_perc")
    drafts = total("vllm:spec_decode_num_drafts_total")
    accepted = total("vllm:spec_decode_num_accepted_tokens_total")
    per_draft = ratio(accepted, drafts)
    return EngineGauges(
        kv_cache_usage=max(usage) if usage else None,
        running=total("vllm:num_requests_running"),
        waiting=total("vllm:num_requests_waiting"),
        prefix_cache_hit_rate=ratio(total("vllm:prefix_cache_hits_total"), total("vllm:prefix_cache_queries_total")),
        spec_acceptance_rate=ratio(accepted, total("vllm:spec_decode_num_draft_tokens_total")),
        # Each step yields the accepted draft tokens and one token of the target model.
        spec_tokens_per_step=1 + per_draft if per_draft is not None else None,
        spec_counts=SpeculationCounters(drafts, accepted) if drafts is not None and accepted is not None else None,
    )


class _ModelInfo(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _ModelList(msgspec.Struct):
    data: list[_ModelInfo]


_decode_model_list = msgspec.json.Decoder(_ModelList).decode


def parse_max_model_len(page: bytes, served_model: str) -> int | None:
    """A model's context length as an engine's /v1/models gives it; None where it does not. Never raises."""
    try:
        models = _decode_model_list(page).data
    except (msgspec.DecodeError, UnicodeDecodeError):  # the engine may not be vLLM
        return None
    length = next((model.max_model_len for model in models if model.id == served_model), None)
    return length if length is not None and length > 0 else None


class EngineProbe:
    """Keeps the catalog's engines up to date.

    - `last_check`: when the last round ended, in seconds since the epoch; None before the first.
    - `on_round` is called after every round.
    - An engine that cannot be checked because this machine lacks a resource keeps its state.
    """

    def __init__(
        self,
        catalog: Catalog,
        client: EngineClient,
        *,
        interval: float = 2.0,
        timeout: float = 2.0,
        on_round: Callable[[], None] = lambda: None,
    ) -> None:
        """`interval` between two rounds and `timeout` per engine, in seconds."""
        self._catalog = catalog
        self._client = client
        self._interval = interval
        self._timeout = timeout
        self._on_round = on_round
        self.last_check: float | None = None
        self._awaiting_max_model_len = set(catalog.engines)  # not yet fetched since the engine came up

    async def run(self) -> None:
        while True:
            await self.check()
            await asyncio.sleep(self._interval)

    async def check(self) -> None:
        await asyncio.gather(*(self._check_engine(engine) for engine in self._catalog.engines.values()))
        self.last_check = time.time()
        self._on_round()

    async def _check_engine(self, engine: Engine) -> None:
        up = False
        gauges = EngineGauges()
        started = time.monotonic()
        try:
            status, _ = await self._fetch(engine, "/health", self._timeout)
            up = status == 200
            if up:
                # Both requests share the timeout.
                _, page = await self._fetch(engine, "/metrics", self._timeout - (time.monotonic() - started))
                gauges = parse_gauges(page.decode("utf-8", "replace"))
        except (EngineError, ValueError) as error:
            log.debug("engine %s: %s", engine.name, error)
            if isinstance(error, EngineError) and error.reason == "local":
                return  # no request was sent, so the engine's state is unchanged
        if not up:
            self._awaiting_max_model_len.add(engine.name)  # what comes up may differ
        elif engine.discovers_max_model_len and engine.name in self._awaiting_max_model_len:
            await self._update_max_model_len(engine)
        engine.update_status(up=up)
        engine.update_gauges(gauges)

    async def _update_max_model_len(self, engine: Engine) -> None:
        try:
            status, page = await self._fetch(engine, "/v1/models", self._timeout)
        except EngineError as error:
            log.debug("cannot read the context length of engine %s: %s", engine.name, error)
        else:
            engine.max_model_len = parse_max_model_len(page, engine.served_model) if status == 200 else None
            self._awaiting_max_model_len.discard(engine.name)

    async def _fetch(self, engine: Engine, path: str, timeout: float) -> tuple[int, bytes]:
        with await self._client.get(engine, path, timeout=timeout) as response:
            return response.status, await response.read(MAX_METRICS)
