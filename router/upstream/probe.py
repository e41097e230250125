"""Asks every engine now and then how it is: is it up, and what do its own metrics say?"""

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
    "vllm:gpu_cache_usage_perc",  # until vLLM renamed it
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
)


def parse_gauges(page: str) -> EngineGauges:
    """What a vLLM engine's metrics page says; a metric that is not on it is unknown. Raises ValueError for no page.

    Several engine cores behind one address (data parallel) are summed, and the fullest KV cache counts.
    """
    wanted = "\n".join(line for line in page.splitlines() if line.startswith(_METRIC_NAMES))
    values: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(wanted + "\n"):
        for sample in family.samples:
            if isfinite(sample.value):  # NaN is how an exporter says that it does not know
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
        # Each step yields the accepted draft tokens and one of the target's own.
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
    """The context that an engine's /v1/models gives for a model; None where it does not. Never raises."""
    try:
        found = _decode_model_list(page).data
    except (msgspec.DecodeError, UnicodeDecodeError):  # it may be no vLLM
        return None
    length = next((model.max_model_len for model in found if model.id == served_model), None)
    return length if length is not None and length > 0 else None


class EngineProbe:
    """Keeps the catalog's engines up to date.

    - `last_check`: when the last round ended, in seconds since the epoch; None before the first.
    - `checked` is called after every round.
    - Of an engine that cannot be asked for want of something on this side, what is known stays as it is.
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
        """`interval` and `timeout` in seconds: between two rounds, and for one engine's answers."""
        self._catalog = catalog
        self._client = client
        self._interval = interval
        self._timeout = timeout
        self._on_round = on_round
        self.last_check: float | None = None
        self._awaiting_max_model_len = set(catalog.engines)  # which have not told their context since they were down

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(self._interval)

    async def check(self) -> None:
        """One round over all engines, at the same time."""
        await asyncio.gather(*(self._check_engine(engine) for engine in self._catalog.engines.values()))
        self.last_check = time.time()
        self._on_round()

    async def _check_engine(self, engine: Engine) -> None:
        up = False
        gauges = EngineGauges()
        begun = time.monotonic()
        try:
            status, _ = await self._fetch(engine, "/health", self._timeout)
            up = status == 200
            if up:
                _, page = await self._fetch(engine, "/metrics", self._timeout - (time.monotonic() - begun))
                gauges = parse_gauges(page.decode("utf-8", "replace"))
        except (EngineError, ValueError) as error:
            log.debug("engine %s: %s", engine.name, error)
            if isinstance(error, EngineError) and error.reason == "local":
                return  # the engine was not asked, so what is known of it stays
        if not up:
            self._awaiting_max_model_len.add(engine.name)  # whatever comes up there may be another than before
        elif engine.discovers_max_model_len and engine.name in self._awaiting_max_model_len:
            await self._update_max_model_len(engine)
        engine.update_status(up=up)
        engine.update_gauges(gauges)

    async def _update_max_model_len(self, engine: Engine) -> None:
        try:
            status, page = await self._fetch(engine, "/v1/models", self._timeout)
        except EngineError as error:
            log.debug("engine %s does not tell its context: %s", engine.name, error)
        else:
            engine.max_model_len = parse_max_model_len(page, engine.served_model) if status == 200 else None
            self._awaiting_max_model_len.discard(engine.name)

    async def _fetch(self, engine: Engine, path: str, timeout: float) -> tuple[int, bytes]:
        """One of an engine's pages, whatever its status."""
        with await self._client.get(engine, path, timeout=timeout) as response:
            return response.status, await response.read(MAX_METRICS)
