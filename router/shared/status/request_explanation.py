"""What happened to a request, in words: for `roundhouse why` and for the dashboard."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from router.core.plural import pluralize
from router.shared.status.status_documents import AttemptRow, ExplainedRow, ExplanationLine, RequestRow

_CACHE: Final[Mapping[str, str]] = {
    "HIT": "served from the cache",
    "COALESCED": "shared the generation of an equal request that was in progress",
    "STALE": "served an expired entry, since no engine could answer or the client accepts one",
    "new": "no similar request was known",
    "expired": "an entry existed: it was past its time to live, was evicted or deleted, or did not fit the format",
    "purged": "an entry existed, and a purge has deleted it",
    "sample": "fewer answers to the request were kept than cache.samples says, so another one was added",
    "not-stored": "a response was generated before, but could not be stored",
    "params": "the same messages were answered with other parameters",
    "model": "the same request was answered by another model, or another revision of it",
    "system": "only the system prompt differs from a stored request",
    "rag": "only the retrieved documents differ from a stored request",
    "query": "only the question differs from a stored request",
    "redis-down": "Redis did not respond, so nothing was looked up",
    "policy": "cache.store stores only deterministic requests, and this is none",
    "off": 'the model or the tenant has cache = "off"',
    "no-store": "the client sent Cache-Control: no-store",
    "no-cache": "the client sent Cache-Control: no-cache",
    "session": "the session has had all kept answers to the request",
    "uncacheable": "the response depends on more than the request",
}
"""By the cache's result where that says it all, else by the reason."""

_TIMES: Final[Mapping[str, str]] = {
    "lookup_ms": "for the lookup in Redis",
    "wait_ms": "for an engine to start",
    "queue_ms": "in the router's queue, for a slot at an engine",
    "connect_ms": "for new connections to engines",
    "first_token_ms": "at the engine, until the first token",
    "engine_ms": "at engines, all in all",
}

_ADVICE: Final[Mapping[str, str]] = {
    "queue_timeout": "The engines of the model have no free slot: docs/runbooks.md, “Time to first token high”.",
    "queue_full": "More requests wait than the queue holds: docs/limits.md, “Engines”.",
    "tenant_queue_full": "The tenant has its share of a full queue: docs/limits.md, “Engines”.",
    "engine_starting": "No engine of the model has started in time: docs/runbooks.md, “Engine does not start”.",
    "no_engine": "All engines of the model are down or drained: docs/runbooks.md, “Engine down”.",
    "circuit_open": "The breakers of the model's engines are open: docs/runbooks.md, “Breaker open”.",
    "engine_failed": "The engines failed one after the other: docs/runbooks.md, “Server errors high”.",
    "engine_lost": "Engines die with this request: docs/resilience.md, “Requests that take engines down”.",
    "max_ttft_exceeded": "No engine would have begun in time: docs/limits.md, “Time to the first token”.",
    "bodies_full": "The process holds too many request bodies: docs/limits.md, “Request bodies”.",
    "model_not_found": "No such model: `roundhouse models` lists those that there are.",
    "invalid_api_key": "The key is not valid: `roundhouse keys list` shows those that are.",
}
_ADVICE_BY_END: Final[Mapping[str, str]] = {
    "_limit": "A limit of the tenant: docs/limits.md, “Tenants”.",
    "_budget": "A budget of the tenant is used up: docs/limits.md, “Budgets”.",
}
_SLOW_PART: Final[Mapping[str, str]] = {
    "queue_ms": _ADVICE["queue_timeout"],
    "wait_ms": "The engine was asleep: docs/kubernetes.md, “To zero”.",
    "lookup_ms": "Redis was slow: docs/runbooks.md, “Redis down”.",
    "first_token_ms": "The engine was slow to begin: docs/runbooks.md, “Time to first token high”.",
    "connect_ms": "New connections to the engine were slow: its machine or the network is busy.",
    "generation": "The engine took that long to generate: compare its tokens per second with those of others.",
    "other": "Ask for the request that the other process answered, with the same tenant and model.",
}
_LARGE: Final = 1 / 3
"""Share of a request's time from which on a part explains it."""

_WITHOUT_KEY: Final = {"keys_unknown", "auth_mode_unset"}
"""Errors, beside those of status 401, of requests whose tenant is not known."""

_MISS: Final = "Compare it with what is stored: `roundhouse cache explain --id {id}`, docs/debugging-a-miss.md."


def explain(row: RequestRow) -> ExplainedRow:
    return ExplainedRow(**msgspec.structs.asdict(row) | {"words": tuple(_lines(row))})


def _lines(row: RequestRow) -> Iterator[ExplanationLine]:
    yield ExplanationLine(name="asked", text=_asked(row))
    yield ExplanationLine(name="answered", text=_answered(row))
    yield ExplanationLine(name="cache", text=_cache(row))
    for name, value in row.times.items():
        yield ExplanationLine(name="time", text=f"{value:,.2f} ms {_TIMES.get(name, name)}")
    if other := _elsewhere(row):
        yield ExplanationLine(name="time", text=f"{other:,.2f} ms for an equal request that another process had begun")
    for attempt in row.attempts:
        yield ExplanationLine(name="engines", text=_attempt(attempt))
    if advice := _advice(row):
        yield ExplanationLine(name="next", text=advice)


def _asked(row: RequestRow) -> str:
    if row.status == 401 or row.error in _WITHOUT_KEY:
        return f"{row.path or 'a request'} without a valid key"
    key = f" (key {row.key_id})" if row.key_id is not None else ""
    model = f", model {row.model}" if row.model is not None else ""
    task = f", {row.task}" if row.task is not None else ""
    return f"{row.path or 'a request'} by tenant {row.tenant}{key}{model}{task}{', a stream' if row.stream else ''}"


def _answered(row: RequestRow) -> str:
    status = {"left": "the client disconnected", "failed": "the stream broke off"}.get(row.outcome, f"{row.status}")
    error = f" {row.error}" if row.error is not None else ""
    first = "" if row.ttft_ms is None else f", the first token after {row.ttft_ms:,.1f} ms"
    return f"{status}{error} after {row.ms:,.1f} ms{first} by router process {row.router}"


def _cache(row: RequestRow) -> str:
    if row.cache is None:
        return "not looked up: the request was refused before"
    with_whom = f" ({row.shared_with})" if row.shared_with is not None and row.cache == "COALESCED" else ""
    reason = row.reason if row.cache in ("MISS", "BYPASS") and row.reason is not None else row.cache
    named = row.cache if reason == row.cache else f"{row.cache}, {reason}"
    return f"{named}: {_CACHE.get(reason, reason)}{with_whom}"


def _attempt(attempt: AttemptRow) -> str:
    if attempt.ms is None:
        return f"{attempt.engine}: {attempt.result}"
    said = f": {attempt.message}" if attempt.message else ""
    return f"{attempt.engine}: {attempt.result} after {attempt.ms:,.0f} ms{said}"


def _advice(row: RequestRow) -> str | None:
    if row.error is not None:
        advice = _ADVICE.get(row.error)
        for end, of_end in _ADVICE_BY_END.items():
            if advice is None and row.error.endswith(end):
                advice = of_end
        if advice is not None:
            return advice
    if failures := sum(attempt.result != "ok" for attempt in row.attempts):
        return f"{pluralize(failures, 'attempt')} failed: docs/runbooks.md, “Engine down”, and the engine's log."
    if row.notable:
        parts = _slow_parts(row)
        largest = max(parts, key=lambda name: parts[name])
        if parts[largest] >= _LARGE * row.ms:
            return _SLOW_PART[largest]
    return _MISS.format(id=row.request_id) if row.cache == "MISS" else None


def _slow_parts(row: RequestRow) -> Mapping[str, float]:
    """The parts of a request's time, which do not overlap; in milliseconds."""
    times = row.times
    parts: dict[str, float] = {
        name: times.get(name, 0.0) for name in ("lookup_ms", "wait_ms", "queue_ms", "connect_ms")
    }
    connecting = times.get("connect_ms", 0.0)
    before = times.get("first_token_ms", connecting)  # at the engine: connecting is a part of it
    parts["first_token_ms"] = before - connecting
    parts["generation"] = times.get("engine_ms", before) - before
    return parts | {"other": _elsewhere(row)}


def _elsewhere(row: RequestRow) -> float:
    """Milliseconds of a request that has waited for another process' generation, of which nothing is known here."""
    return row.ms - sum(row.times.values()) if row.cache == "COALESCED" and not row.attempts else 0.0
