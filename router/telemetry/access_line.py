"""A line of the access log: the facts of a kind of requests, and placeholders for the values that differ."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from router.core.types import CacheStatus
from router.flow.request_kind import RequestKind
from router.telemetry.log_output import encode_json, text_value

LineTemplate = str
"""A %-format string for the values that differ between requests of one kind; see AccessLog.write for their order. A
line without one of them has a conversion in its place that renders nothing, so that the same tuple of values fits every
template."""


class _Placeholder(msgspec.Struct, frozen=True):
    """A fact that differs in each line; `conversion` is a %-format, `quoted`: a string in JSON."""

    conversion: str
    quoted: bool = False


_RAW: Final = ""  # the name of a placeholder for a part of the line with its names
_EMPTY_CONVERSION: Final = "%.0s"  # renders any value as nothing
_ABSENT: Final = _Placeholder(_EMPTY_CONVERSION)


def line_template(kind: RequestKind, *, as_json: bool) -> LineTemplate:
    line = "".join([_render_fact(name, value, as_json=as_json) for name, value in _facts(kind)])
    # Without the separator of the first fact; in JSON, the start of the line has opened the object.
    return line[1:] + ("}" if as_json else "")


def _render_fact(name: str, value: Any, *, as_json: bool) -> str:
    if value is _ABSENT:
        return _EMPTY_CONVERSION
    if name is _RAW:
        return "%s"
    return f',"{name}":{_json_value(value)}' if as_json else f" {name}={_text_value(value)}"


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
    # Of a request with a generation, it is among the other times.
    yield "lookup_ms", _present("%.2f", response.has_age and not (response.from_local_cache or kind.has_generation))
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
        yield _RAW, _Placeholder("%s")  # see AccessLog
    yield "prompt_tokens", _present("%d", engine is not None)
    yield "completion_tokens", _present("%d", engine is not None)


def _known(name: str, value: str | None) -> Iterator[tuple[str, Any]]:
    if value is not None:
        yield name, value


def _present(conversion: str, is_present: bool, *, quoted: bool = False) -> _Placeholder:
    return _Placeholder(conversion, quoted) if is_present else _ABSENT
