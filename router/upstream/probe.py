"""Asks every engine now and then how it is: is it up, and what do its own metrics say?"""

import asyncio
import logging
import time
from collections.abc import Callable
from math import isfinite
from typing import Final

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from router.core.routing.draft_stats import Counts
from router.net.client.errors import EngineError
from router.upstream.catalog import Catalog, Engine, Gauges
from router.upstream.client import EngineClient

log = logging.getLogger("roundhouse.engines")

MAX_METRICS: Final = 4 << 20
"""Bytes of an engine's metrics page that are read."""

_NAMES: Final = (
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


def read_gauges(page: str) -> Gauges:
    """What a vLLM engine's metrics page says; a metric that is not on it is unknown. Raises ValueError for no page.

    Several engine cores behind one address (data parallel) are summed, and the fullest KV cache counts.
    """
    wanted = "\n".join(line for line in page.splitlines() if line.startswith(_NAMES))
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
    return Gauges(
        kv_cache_usage=max(usage) if usage else None,
        running=total("vllm:num_requests_running"),
        waiting=total("vllm:num_requests_waiting"),
        prefix_cache_hit_rate=ratio(total("vllm:prefix_cache_hits_total"), total("vllm:prefix_cache_queries_total")),
        spec_acceptance_rate=ratio(accepted, total("vllm:spec_decode_num_draft_tokens_total")),
        # Each step yields the accepted draft tokens and one of the target's own.
        spec_tokens_per_step=1 + per_draft if per_draft is not None else None,
        spec_counts=Counts(drafts, accepted) if drafts is not None and accepted is not None else None,
    )


class _Served(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Listing(msgspec.Struct):
    data: list[_Served]


_listing = msgspec.json.Decoder(_Listing).decode


def read_length(page: bytes, served_model: str) -> int | None:
    """The context that an engine's /v1/models gives for a model; None where it does not. Never raises."""
    try:
        found = _listing(page).data
    except (msgspec.DecodeError, UnicodeDecodeError):  # it may be no vLLM
        return None
    length = next((model.max_model_len for model in found if model.id == served_model), None)
    return length if length is not None and length > 0 else None


class Probe:
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
        checked: Callable[[], None] = lambda: None,
    ) -> None:
        """`interval` and `timeout` in seconds: between two rounds, and for one engine's answers."""
        self._catalog = catalog
        self._client = client
        self._interval = interval
        self._timeout = timeout
        self._checked = checked
        self.last_check: float | None = None
        self._unheard = set(catalog.engines)  # which have not told their context since they were down

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(self._interval)

    async def check(self) -> None:
        """One round over all engines, at the same time."""
        await asyncio.gather(*(self._ask(engine) for engine in self._catalog.engines.values()))
        self.last_check = time.time()
        self._checked()

    async def _ask(self, engine: Engine) -> None:
        up = False
        gauges = Gauges()
        begun = time.monotonic()
        try:
            status, _ = await self._get(engine, "/health", self._timeout)
            up = status == 200
            if up:
                _, page = await self._get(engine, "/metrics", self._timeout - (time.monotonic() - begun))
                gauges = read_gauges(page.decode("utf-8", "replace"))
        except (EngineError, ValueError) as error:
            log.debug("engine %s: %s", engine.name, error)
            if isinstance(error, EngineError) and error.reason == "local":
                return  # the engine was not asked, so what is known of it stays
        if not up:
            self._unheard.add(engine.name)  # whatever comes up there may be another than before
        elif engine.tells_its_length and engine.name in self._unheard:
            await self._ask_length(engine)
        engine.note(up=up)
        engine.observe(gauges)

    async def _ask_length(self, engine: Engine) -> None:
        try:
            status, page = await self._get(engine, "/v1/models", self._timeout)
        except EngineError as error:
            log.debug("engine %s does not tell its context: %s", engine.name, error)
        else:
            engine.max_model_len = read_length(page, engine.served_model) if status == 200 else None
            self._unheard.discard(engine.name)

    async def _get(self, engine: Engine, path: str, patience: float) -> tuple[int, bytes]:
        """One of an engine's pages, whatever its status."""
        with await self._client.get(engine, path, patience=patience) as response:
            return response.status, await response.read(MAX_METRICS)
