"""The access log, with one line for every request, and the format of all log lines: text or JSON.

No line contains prompts, responses, keys or other personal data.
"""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TextIO

import msgspec

from router.flow.exchange import Exchange
from router.flow.request_kind import RequestKind

ACCESS_LOGGER: Final = "roundhouse.access"

LineTemplate = str
"""A %-format string for the values that differ between requests of one kind: request id, milliseconds, prompt tokens,
completion tokens, the engine's request id, milliseconds to the first token, and key. A line without one of them has a
conversion in its place that renders nothing, so that the same tuple of values fits every template."""

log = logging.getLogger(ACCESS_LOGGER)

_encode = msgspec.json.Encoder().encode


class _Placeholder(msgspec.Struct, frozen=True):
    """A fact that differs in each line; `conversion` is a %-format, `quoted`: a string in JSON."""

    conversion: str
    quoted: bool = False


_WRITE_DELAY: Final = 0.02  # seconds that an access line may wait, so that one system call writes several
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
        # Without the separator of the first fact; in JSON, _json_prefix has opened the object.
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
        first_token = exchange.first_token_at
        self._sink(
            template
            % (
                exchange.request_id, 1000 * duration, exchange.prompt_tokens, exchange.completion_tokens,
                exchange.engine_request_id, "" if first_token is None else 1000 * (first_token - exchange.started_at),
                exchange.key,
            )
        )  # fmt: skip

    def _find_sink(self) -> Callable[[str], None]:
        """The handler of set_up_logging if there is one, else the logger itself, as in tests and other programs."""
        handlers = logging.getLogger("roundhouse").handlers
        sink = next((handler.write_access_line for handler in handlers if isinstance(handler, _BatchingHandler)), None)
        if sink is None and self._as_json:
            return lambda line: log.info("%s%s", _json_prefix(time.time()), line)
        return sink or log.info


def _text_value(value: Any) -> str:
    return value.conversion if isinstance(value, _Placeholder) else f"{value}".replace("%", "%%")


def _json_value(value: Any) -> str:
    if isinstance(value, _Placeholder):
        return f'"{value.conversion}"' if value.quoted else value.conversion
    return _encode(value).decode().replace("%", "%%")


def _facts(kind: RequestKind) -> Iterator[tuple[str, Any]]:
    """The facts that are known. A placeholder is never left out, since the template's values have a fixed order."""
    response = kind.response
    yield "request", _Placeholder("%s", quoted=True)
    yield "tenant", kind.tenant
    yield "path", kind.path
    yield "status", response.status
    yield "outcome", kind.outcome
    yield "ms", _Placeholder("%.2f")
    yield "cache", response.cache_status or "NONE"
    if kind.model is not None:
        yield "model", kind.model
        yield "task", response.task
        yield "stream", "yes" if response.stream else "no"
    if response.engine is not None:
        yield "engine", response.engine
    yield "prompt_tokens", _Placeholder("%d") if response.engine is not None else _ABSENT
    yield "completion_tokens", _Placeholder("%d") if response.engine is not None else _ABSENT
    if response.fallback_model is not None:
        yield "fallback", response.fallback_model
    yield "engine_request", _Placeholder("%s", quoted=True) if kind.has_engine_request_id else _ABSENT
    yield "ttft_ms", _Placeholder("%.2f") if kind.has_first_token else _ABSENT
    if response.bypass_reason is not None or response.miss_reason is not None:
        yield "reason", response.bypass_reason or response.miss_reason
    if response.from_local_cache:
        yield "local", "yes"
    if kind.error_reason is not None:
        yield "error", kind.error_reason
    yield "key", _Placeholder("%s", quoted=True) if response.has_key else _ABSENT


def _json_prefix(now: float) -> str:
    return f'{{"time":"{_utc(now)}",'


def _utc(now: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))


def set_up_logging(log_format: str, level: int = logging.INFO) -> None:
    """Writes log lines to standard error: text with a time, or one JSON object a line.

    Log records do not collect what no line shows, since that costs time: thread, process, task and source location.
    Source: the section "Optimization" of the standard library's logging how-to.
    """
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    if hasattr(logging, "logAsyncioTasks"):  # since Python 3.12
        logging.logAsyncioTasks = False
    logging._srcfile = None  # noqa: SLF001 - the how-to names it
    handler = _BatchingHandler(_JsonFormatter() if log_format == "json" else _TextFormatter())
    # uvicorn's warnings and errors get the same format; its messages about start and stop are dropped.
    for name, min_level in (("roundhouse", level), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(min_level)


class _BatchingHandler(logging.StreamHandler[TextIO]):
    """Writes records at once, and access lines in batches.

    There is an access line for every request, and a system call for each would be a tenth of the cost of a hit. The
    order of access lines and records is kept. logging.shutdown flushes what is pending when the process ends.
    """

    def __init__(self, formatter: "_TextFormatter | _JsonFormatter") -> None:
        super().__init__(sys.stderr)
        self.setFormatter(formatter)
        self._line_prefix = formatter.line_prefix
        self._pending_lines: list[str] = []

    def write_access_line(self, message: str) -> None:
        """Queues a line, with the current time; the running event loop writes it after _WRITE_DELAY."""
        if not self._pending_lines:
            asyncio.get_running_loop().call_later(_WRITE_DELAY, self._write_pending)
        self._pending_lines.append(f"{self._line_prefix(time.time())}{message}\n")

    def _write_pending(self) -> None:
        if self._pending_lines:
            lines, self._pending_lines = self._pending_lines, []
            with contextlib.suppress(OSError, ValueError):  # standard error is closed; requests go on
                self.stream.write("".join(lines))
                self.stream.flush()

    def emit(self, record: logging.LogRecord) -> None:
        self._write_pending()  # these lines are older than the record
        super().emit(record)

    def flush(self) -> None:
        self._write_pending()
        super().flush()


class _TextFormatter(logging.Formatter):
    """A time in milliseconds, the logger and the message. A formatted time is cached, as strftime is slow."""

    def __init__(self) -> None:
        super().__init__()
        self._second = self._millisecond = -1
        self._formatted_second = self._prefix = ""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{self._format_time(int(1000 * record.created))} {record.name} {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line

    def line_prefix(self, now: float) -> str:
        millisecond = int(1000 * now)
        if millisecond != self._millisecond:
            self._millisecond, self._prefix = millisecond, f"{self._format_time(millisecond)} {ACCESS_LOGGER} "
        return self._prefix

    def _format_time(self, millisecond: int) -> str:
        second, rest = divmod(millisecond, 1000)
        if second != self._second:
            self._second, self._formatted_second = second, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        return f"{self._formatted_second},{rest:03d}"


class _JsonFormatter(logging.Formatter):
    """One JSON object a line. The start of an access line is cached for a second."""

    def __init__(self) -> None:
        super().__init__()
        self._second = -1
        self._prefix = ""

    def line_prefix(self, now: float) -> str:
        second = int(now)
        if second != self._second:
            self._second, self._prefix = second, _json_prefix(second)
        return self._prefix

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.name == ACCESS_LOGGER:
            return message  # AccessLog has made it JSON
        fields = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return _encode(fields).decode()
