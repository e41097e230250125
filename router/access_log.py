"""One line for every request, and how all log lines look: text for people, or JSON for machines.

What people ask, and what identifies them, is in no line.
"""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Callable
from typing import Any, Final, TextIO

import msgspec

from router.flow.exchange import Exchange

ACCESS: Final = "roundhouse.access"

log = logging.getLogger(ACCESS)

_encode = msgspec.json.Encoder().encode


class AccessLog:
    """Writes the line of an exchange: its facts as `name=value`, or as a JSON object."""

    def __init__(self, log_format: str) -> None:
        self._json = log_format == "json"
        self._write: Callable[[str], None] | None = None

    def write(self, exchange: Exchange, ended: float) -> None:
        """`ended` is an instant of time.perf_counter."""
        if not log.isEnabledFor(logging.INFO):
            return
        if self._write is None:
            self._write = _way_out()
        facts = _facts(exchange, ended)
        if self._json:
            self._write(_encode({"time": _now(), **facts}).decode())
        else:
            self._write(" ".join([f"{name}={value}" for name, value in facts.items()]))


def _way_out() -> Callable[[str], None]:
    """Where access lines go: to the handler of set_up_logging if it is in place, else where logging sends them."""
    handlers = logging.getLogger("roundhouse").handlers
    return next((handler.line for handler in handlers if isinstance(handler, _Lines)), log.info)


def _facts(exchange: Exchange, ended: float) -> dict[str, Any]:
    """What is known; what it did not come to is left out."""
    facts: dict[str, Any] = {
        "request": exchange.request_id,
        "tenant": exchange.tenant,
        "path": exchange.endpoint.value,
        "status": exchange.status,
        "outcome": exchange.outcome,
        "ms": round((ended - exchange.begun) * 1000, 2),
        "cache": exchange.cache.value if exchange.cache is not None else "NONE",
    }
    if exchange.model is not None:
        facts["model"] = exchange.model
        facts["task"] = exchange.task
        facts["stream"] = "yes" if exchange.stream else "no"
    if exchange.engine is not None:
        facts["engine"] = exchange.engine
        facts["prompt_tokens"] = exchange.prompt_tokens
        facts["completion_tokens"] = exchange.completion_tokens
    if exchange.fallback is not None:
        facts["fallback"] = exchange.fallback
    if exchange.first_token is not None:
        facts["ttft_ms"] = round((exchange.first_token - exchange.begun) * 1000, 2)
    if exchange.bypass is not None:
        facts["reason"] = exchange.bypass.value
    elif exchange.reason is not None:
        facts["reason"] = exchange.reason
    if exchange.local:
        facts["local"] = "yes"
    if exchange.error is not None:
        facts["error"] = exchange.error
    if exchange.key is not None:
        facts["key"] = exchange.key
    return facts


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


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
    """Writes records as they come, and access lines together, once in a turn of the loop.

    There is an access line for every request, and a system call for each would be a tenth of what a hit costs. Their
    order among the records is kept.
    """

    def __init__(self, formatter: "_TextLines | _JsonLines") -> None:
        super().__init__(sys.stderr)
        self.setFormatter(formatter)
        self._stamp = formatter.stamped
        self._waiting: list[str] = []

    def line(self, message: str) -> None:
        """Takes an access line; it is written in the next turn of the running loop."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        self._waiting.append(self._stamp(time.time(), message))

    def emit(self, record: logging.LogRecord) -> None:
        self.flush()
        super().emit(record)

    def flush(self) -> None:
        if self._waiting:
            lines, self._waiting = self._waiting, []
            lines.append("")
            with contextlib.suppress(OSError, ValueError):  # nobody reads it any more, and requests go on
                self.stream.write("\n".join(lines))
        super().flush()


class _TextLines(logging.Formatter):
    """A time to the millisecond, the logger and the message. The time's seconds are put into words once a second."""

    def __init__(self) -> None:
        super().__init__()
        self._second = -1
        self._in_words = ""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{self._time(record.created)} {record.name} {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line

    def stamped(self, now: float, message: str) -> str:
        """An access line, with its time in seconds since the epoch."""
        return f"{self._time(now)} {ACCESS} {message}"

    def _time(self, now: float) -> str:
        second = int(now)
        if second != self._second:
            self._second, self._in_words = second, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        return f"{self._in_words},{int(1000 * (now - second)):03d}"


class _JsonLines(logging.Formatter):
    def stamped(self, _: float, message: str) -> str:
        """An access line, which has its time already."""
        return message

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.name == ACCESS:
            return message  # is JSON already
        fields = {"time": _now(), "level": record.levelname.lower(), "logger": record.name, "message": message}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return _encode(fields).decode()
