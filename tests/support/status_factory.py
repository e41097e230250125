"""Documents of /admin/status, /admin/history and /admin/requests, for tests of what shows them."""

from typing import Any, Final

from router.commands.top.client import Snapshot
from router.shared.status.status_documents import (
    EngineRow,
    FirstTokenTimes,
    HistoryDocument,
    LastHour,
    MinuteRow,
    ModelRow,
    Percentiles,
    RedisRow,
    RequestRow,
    RequestsDocument,
    RouterRow,
    StatusDocument,
)

NOW: Final = 1_795_449_600.0


def router_row(**fields: Any) -> RouterRow:
    row: dict[str, Any] = {
        "id": "r1", "host": "gpu-1", "pid": 4711, "version": "0.1.0", "compiled": True, "started_at": NOW - 3600,
        "in_flight": 3, "queued": 0, "seen": 0.5, "draining": False,
    }  # fmt: skip
    return RouterRow(**row | fields)


def engine_row(name: str = "llama-chat", **fields: Any) -> EngineRow:
    row: dict[str, Any] = {
        "name": name, "model": "llama", "task": "chat", "url": "http://127.0.0.1:8001", "draft": "llama-1b",
        "state": "up", "in_flight": 3, "max_in_flight": 64, "running": 3.0, "waiting": 0.0, "kv_cache_usage": 0.42,
        "prefix_cache_hit_rate": 0.5, "spec_acceptance_rate": 0.71, "spec_tokens_per_step": 2.4, "restarts": 1,
        "temperature_celsius": 61.0, "power_watts": 412.0, "announced": True,
    }  # fmt: skip
    return EngineRow(**row | fields)


def request_row(number: int = 1, **fields: Any) -> RequestRow:
    row: dict[str, Any] = {
        "at": NOW - number, "request_id": f"request-{number}", "router": "r1", "tenant": "acme", "model": "llama",
        "task": "chat", "cache": "MISS", "reason": "new", "engine": "llama-chat", "status": 200, "outcome": "complete",
        "ms": 379.13, "ttft_ms": 41.2, "completion_tokens": 53, "key": "rh:1:acme:llama:0:0:0",
    }  # fmt: skip
    return RequestRow(**row | fields)


def minute_row(number: int, **fields: Any) -> MinuteRow:
    """The minute `number` of 60, with more traffic the later it is."""
    row: dict[str, Any] = {
        "at": int(NOW) - 60 * (59 - number), "requests": 10 * number, "hits": 6 * number, "misses": 4 * number,
        "prompt_tokens": 300 * number, "completion_tokens": 400 * number, "saved_tokens": 600 * number,
        "gpu_seconds_spent": 2.0 * number, "gpu_seconds_saved": 3.0 * number,
        "ttft_ms": FirstTokenTimes(hit=Percentiles(p50=1.2, p99=4.5), miss=Percentiles(p50=310.0, p99=905.0)),
    }  # fmt: skip
    return MinuteRow(**row | fields)


def last_hour(**fields: Any) -> LastHour:
    row: dict[str, Any] = {
        "requests": 17_700, "hits": 10_620, "misses": 7_080, "saved_tokens": 1_062_000, "gpu_seconds_spent": 3_540.0,
        "gpu_seconds_saved": 5_310.0, "errors": 2, "hit_ratio": 0.6, "ttft_p50_ms": 40.0, "ttft_p99_ms": 12_500.0,
    }  # fmt: skip
    return LastHour(**row | fields)


def status_document(**fields: Any) -> StatusDocument:
    document: dict[str, Any] = {
        "now": NOW,
        "routers": (router_row(), router_row(id="r2", host="gpu-2", pid=12, draining=True)),
        "engines": (
            engine_row(),
            engine_row("llama-code", state="down", breaker="open", kv_cache_usage=None, running=None, waiting=None),
        ),
        "models": (ModelRow(name="llama", engines=("llama-chat", "llama-code")),),
        "redis": RedisRow(up=True, url="redis://r:6379", version="7.2.4", used_memory=12 << 20, keys=1234),
        "last_hour": last_hour(),
    }
    return StatusDocument(**document | fields)


def snapshot(*, requests: int = 5, **fields: Any) -> Snapshot:
    return Snapshot(
        status=status_document(**fields),
        history=HistoryDocument(minutes=tuple(minute_row(number) for number in range(60))),
        requests=RequestsDocument(requests=tuple(request_row(number) for number in range(1, requests + 1))),
    )
