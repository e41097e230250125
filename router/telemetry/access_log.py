"""The access log: one line for every request, as text or JSON.

No line contains prompts, responses, keys or other personal data.
"""

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from router.core.routing.classify import probability_of_code
from router.core.types import CacheStatus
from router.flow.exchange import Exchange, GenerationRecord
from router.flow.request_kind import RequestKind
from router.telemetry.log_output import ACCESS_LOGGER, BatchingHandler, JsonFormatter, encode_json, text_value

LineTemplate = str
"""A %-format string for the values that differ between requests of one kind; see AccessLog.write for their order. A
line without one of them has a conversion in its place that renders nothing, so that the same tuple of values fits every
template."""

log = logging.getLogger(ACCESS_LOGGER)


class _Placeholder(msgspec.Struct, frozen=True):
    """A fact that differs in each line; `conversion` is a %-format, `quoted`: a string in JSON."""

    conversion: str
    quoted: bool = False


_EMPTY_CONVERSION: Final = "%.0s"  # renders any value as nothing
_ABSENT: Final = _Placeholder(_EMPTY_CONVERSION)


class AccessLog:
    """Writes one line for each request: its facts as `name=value`, or as a JSON object.

    Most of a line is the same for all requests of a kind, so a template is built once for each kind.
    """

    def __init__(self, log_format: str) -> None:
        self._as_json = log_format == "json"
        self._sink: Callable[[str], None] | None = None

    def line_template(self, kind: RequestKind) -> LineTemplate:
        line = "".join([self._render_fact(name, value) for name, value in _facts(kind)])
        # Without the separator of the first fact; in JSON, JsonFormatter.line_prefix has opened the object.
        return line[1:] + ("}" if self._as_json else "")

    def _render_fact(self, name: str, value: Any) -> str:
        if value is _ABSENT:
            return _EMPTY_CONVERSION
        return f',"{name}":{_json_value(value)}' if self._as_json else f" {name}={_text_value(value)}"

    def write(self, template: LineTemplate, exchange: Exchange, duration: float) -> None:
        """`duration` in seconds."""
        if not log.isEnabledFor(logging.INFO):
            return
        if self._sink is None:
            # Only now: logging may be set up after this object is created.
            self._sink = self._find_sink()
        first_token, generation = exchange.first_token_at, exchange.generation
        # A hit has the shorter tuple, since each value costs time.
        classified = () if generation is None else _values_of(generation)
        self._sink(
            template
            % (
                exchange.request_id, 1000 * duration, *classified, exchange.prompt_tokens, exchange.completion_tokens,
                exchange.engine_request_id, "" if first_token is None else 1000 * (first_token - exchange.started_at),
                exchange.trace_id, exchange.key,
            )
        )  # fmt: skip

    def _find_sink(self) -> Callable[[str], None]:
        """The handler of set_up_logging if there is one, else the logger itself, as in tests and other programs."""
        handlers = logging.getLogger("roundhouse").handlers
        sink = next((handler.write_access_line for handler in handlers if isinstance(handler, BatchingHandler)), None)
        if sink is None and self._as_json:
            formatter = JsonFormatter()
            return lambda line: log.info("%s%s", formatter.line_prefix(time.time()), line)
        return sink or log.info


def _values_of(generation: GenerationRecord) -> tuple[Any, ...]:
    estimate = generation.prompt.estimate
    return (
        probability_of_code(generation.origin.log_odds),
        len(generation.attempts),
        generation.continued if generation.continuations else "",
        *(("", "") if estimate is None else (estimate.cached_share, 1000 * estimate.ttft)),
    )


def _text_value(value: Any) -> str:
    return value.conversion if isinstance(value, _Placeholder) else text_value(value).replace("%", "%%")


def _json_value(value: Any) -> str:
    if isinstance(value, _Placeholder):
        return f'"{value.conversion}"' if value.quoted else value.conversion
    return encode_json(value).replace("%", "%%")


def _facts(kind: RequestKind) -> Iterator[tuple[str, Any]]:
    """The facts that are known. A placeholder has a fixed place among the others, that of its value in `write`."""
    response = kind.response
    yield "request", _Placeholder("%s", quoted=True)
    yield "tenant", kind.tenant
    yield from _known("key_id", kind.key_id)
    yield "path", kind.path
    yield "status", response.status
    yield "outcome", kind.outcome
    yield "ms", _Placeholder("%.2f")
    yield "cache", response.cache_status or "NONE"
    if kind.model is not None:
        yield "model", kind.model
        yield "task", response.task
        yield "stream", "yes" if response.stream else "no"
    yield from _engine_facts(kind)
    yield from _known("fallback", response.fallback_model)
    yield "engine_request", _present("%s", kind.has_engine_request_id, quoted=True)
    yield "ttft_ms", _present("%.2f", kind.has_first_token)
    yield from _known("reason", response.bypass_reason or response.miss_reason)
    yield from _known("local", "yes" if response.from_local_cache else None)
    yield from _known("error", kind.error_reason)
    yield "trace_id", _present("%s", kind.has_trace_id, quoted=True)
    yield "key", _present("%s", response.has_key, quoted=True)


def _engine_facts(kind: RequestKind) -> Iterator[tuple[str, Any]]:
    engine = kind.response.engine
    if kind.has_generation:
        yield "score", _Placeholder("%.4f")
    yield from _known("engine", engine)
    if kind.has_generation:
        # A request that joined another one's generation made no attempt, and no choice.
        is_own = kind.response.cache_status is not CacheStatus.COALESCED
        yield "attempts", _present("%d", is_own)
        yield "continued", _present("%s", kind.was_continued, quoted=True)
        yield "prefix", _present("%.2f", is_own and kind.had_choice)
        yield "expected_ttft_ms", _present("%.2f", is_own and kind.had_choice)
    yield "prompt_tokens", _present("%d", engine is not None)
    yield "completion_tokens", _present("%d", engine is not None)


def _known(name: str, value: str | None) -> Iterator[tuple[str, Any]]:
    if value is not None:
        yield name, value


def _present(conversion: str, is_present: bool, *, quoted: bool = False) -> _Placeholder:
    return _Placeholder(conversion, quoted) if is_present else _ABSENT
