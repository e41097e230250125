"""One line for every request, and how all log lines look: text for people, or JSON for machines.

What people ask, and what identifies them, is in no line.
"""

import logging
import sys
import time
from typing import Any, Final

import msgspec

from router.flow.exchange import Exchange

ACCESS: Final = "roundhouse.access"

log = logging.getLogger(ACCESS)

_encode = msgspec.json.Encoder().encode


class AccessLog:
    """Writes the line of an exchange: its facts as `name=value`, or as a JSON object."""

    def __init__(self, log_format: str) -> None:
        self._json = log_format == "json"

    def write(self, exchange: Exchange, ended: float) -> None:
        """`ended` is an instant of time.perf_counter."""
        if not log.isEnabledFor(logging.INFO):
            return
        facts = _facts(exchange, ended)
        if self._json:
            log.info(_encode({"time": _now(), **facts}).decode())
        else:
            log.info(" ".join([f"{name}={value}" for name, value in facts.items()]))


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
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if log_format == "json" else _TextLines())
    # What uvicorn has to say beside its own starts and stops comes out in the same form.
    for name, least in (("roundhouse", level), ("uvicorn", logging.WARNING)):
        root = logging.getLogger(name)
        root.handlers = [handler]
        root.propagate = False
        root.setLevel(least)


class _TextLines(logging.Formatter):
    """A time to the millisecond, the logger and the message. The time's seconds are put into words once a second."""

    def __init__(self) -> None:
        super().__init__()
        self._second = -1
        self._in_words = ""

    def format(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if second != self._second:
            self._second, self._in_words = second, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        line = f"{self._in_words},{int(record.msecs):03d} {record.name} {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.name == ACCESS:
            return message  # is JSON already
        fields = {"time": _now(), "level": record.levelname.lower(), "logger": record.name, "message": message}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return _encode(fields).decode()
