"""The attributes of spans: names and values, without OpenTelemetry.

Source of the names: https://github.com/open-telemetry/semantic-conventions-genai (gen_ai.*) and
https://opentelemetry.io/docs/specs/semconv/ (http.*, url.*, server.*, error.*). The others begin with `roundhouse.`. No
attribute has a prompt, a response, or a key of a client.
"""

from collections.abc import Mapping
from typing import Final

from router.core.endpoints.endpoint import Endpoint
from router.flow.exchange import Exchange
from router.flow.trace.trace_events import CacheLookup, EngineAttempt

Value = str | int | float | bool
Attributes = dict[str, Value]

_PROVIDER: Final = "vllm"  # the conventions name no value for it


def request_attributes(exchange: Exchange) -> Attributes:
    """Of the span of a request."""
    values: dict[str, Value | None] = {
        "gen_ai.operation.name": exchange.endpoint.operation,
        "gen_ai.provider.name": _PROVIDER,
        "gen_ai.request.model": exchange.model,
        "gen_ai.request.stream": exchange.stream or None,
        "http.request.method": "POST",
        "http.route": exchange.endpoint.path,
        "http.response.status_code": exchange.status or None,
        "error.type": exchange.error_reason,
        "roundhouse.request_id": exchange.request_id,
        "roundhouse.tenant": exchange.tenant,
        "roundhouse.outcome": exchange.outcome if exchange.outcome != "complete" else None,
        "roundhouse.cache.status": exchange.cache_status,
        "roundhouse.cache.reason": exchange.bypass_reason or exchange.miss_reason,
        "roundhouse.cache.age": exchange.age,
        "roundhouse.task": exchange.task,
        "roundhouse.engine": exchange.engine,
    }
    if exchange.engine is not None and exchange.status == 200:
        values["gen_ai.response.model"] = exchange.fallback_model or exchange.model
        values["gen_ai.usage.input_tokens"] = exchange.prompt_tokens
        values["gen_ai.usage.output_tokens"] = exchange.completion_tokens
    if exchange.stream and exchange.first_token_at is not None:
        values["gen_ai.response.time_to_first_chunk"] = round(exchange.first_token_at - exchange.started_at, 6)
    return _known(values)


def attempt_attributes(attempt: EngineAttempt, endpoint: Endpoint) -> Attributes:
    """Of the span of a request to an engine. Usage is on the request's span alone, so that no sum counts it twice."""
    host, port = _host_and_port(attempt.address)
    return _known({
        "gen_ai.operation.name": endpoint.operation,
        "gen_ai.provider.name": _PROVIDER,
        "gen_ai.request.model": attempt.model,
        "server.address": host,
        "server.port": port,
        "http.request.method": "POST",
        "url.path": endpoint.path,
        "http.response.status_code": attempt.status,
        "http.request.resend_count": attempt.number - 1 or None,
        "error.type": attempt.error_type,
        "roundhouse.engine": attempt.engine,
    })  # fmt: skip


def lookup_attributes(lookup: CacheLookup, key: str | None) -> Attributes:
    return _known({
        "roundhouse.cache.result": lookup.result,
        "roundhouse.cache.reason": lookup.reason,
        "roundhouse.cache.local": lookup.from_local_cache or None,
        "roundhouse.cache.key": key,
    })  # fmt: skip


def _known(values: Mapping[str, Value | None]) -> Attributes:
    # An enum's value, because the exporter wants the plain types.
    return {
        name: str(value) if isinstance(value, str) else value for name, value in values.items() if value is not None
    }


def _host_and_port(address: str) -> tuple[str, int | None]:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        return address, None
    return host.strip("[]"), int(port)
