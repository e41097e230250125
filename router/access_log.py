"""One line for every request, and how all log lines look: text for people, or JSON for machines.

What people ask, and what identifies them, is in no line.
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

ACCESS: Final = "roundhouse.access"

Line = str
"""A line with a hole for each of what changes from one exchange to the next: the request's id, milliseconds, tokens
read and generated, the request's id at the engine, milliseconds to the first token, and the key. Holes of what a line
does not have take no room."""

log = logging.getLogger(ACCESS)

_encode = msgspec.json.Encoder().encode


class _Hole(msgspec.Struct, frozen=True):
    """A fact that is another in each line; `form` is its conversion, as % has them."""

    form: str
    quoted: bool = False


_MOMENT: Final = 0.02  # seconds for which an access line may wait for others
_UNSEEN: Final = "%.0s"  # what fills it leaves no trace
_NO_HOLE: Final = _Hole(_UNSEEN)


class AccessLog:
    """Writes the line of an exchange: its facts as `name=value`, or as a JSON object.

    Most of a line is the same for all exchanges of a kind, so it is put together once for each, with holes.
    """

    def __init__(self, log_format: str) -> None:
        self._json = log_format == "json"
        self._write: Callable[[str], None] | None = None

    def line(self, exchange: Exchange) -> Line:
        """How the line of such an exchange is made, for `write`."""
        line = "".join([self._part(name, value) for name, value in _facts(exchange)])
        return line[1:] + ("}" if self._json else "")

    def _part(self, name: str, value: Any) -> str:
        if value is _NO_HOLE:
            return _UNSEEN
        return f',"{name}":{_json(value)}' if self._json else f" {name}={_text(value)}"

    def write(self, line: Line, exchange: Exchange, took: float) -> None:
        """`took` in seconds."""
        if not log.isEnabledFor(logging.INFO):
            return
        if self._write is None:
            self._write = self._way_out()
        first_token = exchange.first_token
        self._write(
            line
            % (
                exchange.request_id, 1000 * took, exchange.prompt_tokens, exchange.completion_tokens,
                exchange.engine_request_id, "" if first_token is None else 1000 * (first_token - exchange.begun),
                exchange.key,
            )
        )  # fmt: skip

    def _way_out(self) -> Callable[[str], None]:
        """To the handler of set_up_logging if it is in place, else to where logging sends it."""
        handlers = logging.getLogger("roundhouse").handlers
        lines = next((handler.line for handler in handlers if isinstance(handler, _Lines)), None)
        if lines is None and self._json:
            return lambda line: log.info("%s%s", _json_begin(time.time()), line)
        return lines or log.info


def _text(value: Any) -> str:
    return value.form if isinstance(value, _Hole) else f"{value}".replace("%", "%%")


def _json(value: Any) -> str:
    if isinstance(value, _Hole):
        return f'"{value.form}"' if value.quoted else value.form
    return _encode(value).decode().replace("%", "%%")


def _facts(exchange: Exchange) -> Iterator[tuple[str, Any]]:
    """What is known. What it did not come to is left out; a hole's place stays."""
    yield "request", _Hole("%s", quoted=True)
    yield "tenant", exchange.tenant
    yield "path", exchange.endpoint.path
    yield "status", exchange.status
    yield "outcome", exchange.outcome
    yield "ms", _Hole("%.2f")
    yield "cache", exchange.cache or "NONE"
    if exchange.model is not None:
        yield "model", exchange.model
        yield "task", exchange.task
        yield "stream", "yes" if exchange.stream else "no"
    if exchange.engine is not None:
        yield "engine", exchange.engine
    yield "prompt_tokens", _Hole("%d") if exchange.engine is not None else _NO_HOLE
    yield "completion_tokens", _Hole("%d") if exchange.engine is not None else _NO_HOLE
    if exchange.fallback is not None:
        yield "fallback", exchange.fallback
    renamed = exchange.named_by_client and exchange.engine_request_id is not None
    yield "engine_request", _Hole("%s", quoted=True) if renamed else _NO_HOLE
    yield "ttft_ms", _Hole("%.2f") if exchange.first_token is not None else _NO_HOLE
    if exchange.bypass is not None or exchange.reason is not None:
        yield "reason", exchange.bypass or exchange.reason
    if exchange.local:
        yield "local", "yes"
    if exchange.error is not None:
        yield "error", exchange.error
    yield "key", _Hole("%s", quoted=True) if exchange.key is not None else _NO_HOLE


def _json_begin(now: float) -> str:
    return f'{{"time":"{_utc(now)}",'


def _utc(now: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))


def set_up_logging(log_format: str, level: int = logging.INFO) -> None:
    """Log lines to standard error: text with a time, or one JSON object a line.

    A record is made for every request, so it notes nothing that no line shows: thread, process, task and the place in
    the source. Source: the section "Optimization" of the standard library's logging how-to.
    """
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    if hasattr(logging, "logAsyncioTasks"):  # since Python 3.12
        logging.logAsyncioTasks = False
    logging._srcfile = None  # noqa: SLF001 - the how-to names it
    handler = _Lines(_JsonLines() if log_format == "json" else _TextLines())
    # What uvicorn has to say beside its own starts and stops comes out in the same form.
    for name, least in (("roundhouse", level), ("uvicorn", logging.WARNING)):
        root = logging.getLogger(name)
        root.handlers = [handler]
        root.propagate = False
        root.setLevel(least)


class _Lines(logging.StreamHandler[TextIO]):
    """Writes records as they come, and access lines together, those of a moment at once.

    There is an access line for every request, and a system call for each would be a tenth of what a hit costs. Their
    order among the records is kept, and what still waits when the process ends is written then, by logging's own end.
    """

    def __init__(self, formatter: "_TextLines | _JsonLines") -> None:
        super().__init__(sys.stderr)
        self.setFormatter(formatter)
        self._begin = formatter.begin
        self._waiting: list[str] = []

    def line(self, message: str) -> None:
        """Takes an access line, which has the time of now; the running loop writes it in a moment."""
        if not self._waiting:
            asyncio.get_running_loop().call_later(_MOMENT, self._write)
        self._waiting.append(f"{self._begin(time.time())}{message}\n")

    def _write(self) -> None:
        if self._waiting:
            lines, self._waiting = self._waiting, []
            with contextlib.suppress(OSError, ValueError):  # nobody reads it any more, and requests go on
                self.stream.write("".join(lines))
                self.stream.flush()

    def emit(self, record: logging.LogRecord) -> None:
        self._write()
        super().emit(record)

    def flush(self) -> None:
        self._write()
        super().flush()


class _TextLines(logging.Formatter):
    """A time to the millisecond, the logger and the message. A time is put into words once."""

    def __init__(self) -> None:
        super().__init__()
        self._second = self._millisecond = -1
        self._in_words = self._begin = ""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{self._time(int(1000 * record.created))} {record.name} {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line

    def begin(self, now: float) -> str:
        """What stands before an access line; `now` in seconds since the epoch."""
        millisecond = int(1000 * now)
        if millisecond != self._millisecond:
            self._millisecond, self._begin = millisecond, f"{self._time(millisecond)} {ACCESS} "
        return self._begin

    def _time(self, millisecond: int) -> str:
        second, rest = divmod(millisecond, 1000)
        if second != self._second:
            self._second, self._in_words = second, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        return f"{self._in_words},{rest:03d}"


class _JsonLines(logging.Formatter):
    """A JSON object a line. The begin of an access line is made once a second."""

    def __init__(self) -> None:
        super().__init__()
        self._second = -1
        self._begin = ""

    def begin(self, now: float) -> str:
        """What stands before the rest of an access line; `now` in seconds since the epoch."""
        second = int(now)
        if second != self._second:
            self._second, self._begin = second, _json_begin(second)
        return self._begin

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.name == ACCESS:
            return message  # is JSON already
        fields = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return _encode(fields).decode()
