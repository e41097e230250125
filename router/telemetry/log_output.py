"""The format of all log lines, text or JSON, and the handler that writes them to standard error.

Every line has a time with milliseconds, a level and a logger. A line of text contains no control character, so that
nothing in a message can look like a line of its own; in JSON they are escaped.
"""

import contextlib
import json
import logging
import re
import sys
import time
from collections.abc import Mapping
from typing import Any, Final, TextIO

import msgspec

from router.telemetry.line_time import LineTime, PendingLines

ACCESS_LOGGER: Final = "roundhouse.access"

_FACTS: Final = "facts"  # the attribute of a record that has them

_LIBRARIES: Final = ("asyncio", "opentelemetry", "uvicorn")
"""Loggers of libraries that the router's processes use. Only their warnings and errors are written."""

_WORD: Final = re.compile(r"[\w.:/@+-]+")
_encode = msgspec.json.Encoder().encode


def set_up_logging(log_format: str, level: int = logging.INFO) -> None:
    """Writes log lines to standard error: text with a time, or one JSON object a line.

    Log records do not collect what no line shows, since that costs time: thread, process, task and source location.
    Source: the section "Optimization" of the standard library's logging how-to.
    """
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    if hasattr(logging, "logAsyncioTasks"):  # since Python 3.12
        logging.logAsyncioTasks = False
    logging._srcfile = None  # noqa: SLF001 - the how-to names it
    handler = BatchingHandler(JsonFormatter() if log_format == "json" else TextFormatter())
    # Without a handler, Python would write the warnings of libraries as they are: in JSON, such a line is no JSON.
    for name, min_level in (("roundhouse", level), *((name, logging.WARNING) for name in _LIBRARIES)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(min_level)


def with_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The argument `extra` of a record that has these facts: fields of its line if lines are JSON.

    In a line of text, they stand in place of the message if that is empty.
    """
    return {_FACTS: facts}


def one_line(text: str) -> str:
    """The text with all characters escaped that a terminal or a reader may act on, line ends included."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def encode_json(value: Any) -> str:
    """JSON in which unprintable characters are escaped, also those that JSON permits in a string."""
    text = _encode(value).decode()
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def text_value(value: Any) -> str:
    """A value as it stands behind `name=`. A text is quoted unless it is a word, so it cannot look like other facts."""
    text = f"{value}"
    return text if _WORD.fullmatch(text) else encode_json(_encodable(text))


class BatchingHandler(logging.StreamHandler[TextIO]):
    """Writes records at once, and access lines in batches.

    There is an access line for every request, and a system call for each would be a tenth of the cost of a hit. The
    order of access lines and records is kept. logging.shutdown flushes what is pending when the process ends.
    """

    def __init__(self, formatter: "LineFormatter") -> None:
        super().__init__(sys.stderr)
        self.setFormatter(formatter)
        self._pending_lines = PendingLines(formatter.time, self._write_pending)
        self.write_access_line = self._pending_lines.add

    def _write_pending(self) -> None:
        if lines := self._pending_lines.take():
            with contextlib.suppress(OSError, ValueError):  # standard error is closed; requests go on
                self.stream.write(lines)
                self.stream.flush()

    def emit(self, record: logging.LogRecord) -> None:
        self._write_pending()  # these lines are older than the record
        super().emit(record)

    def flush(self) -> None:
        self._write_pending()
        super().flush()


class LineFormatter(logging.Formatter):
    """Formats of a line. `time`: of its lines, and of access lines."""

    def __init__(self, before_time: str, after_time: str) -> None:
        """See LineTime."""
        super().__init__()
        self.time = LineTime(before_time, after_time, self.format_second)

    def format_second(self, second: int) -> str:
        """The time without the three digits of its milliseconds."""
        raise NotImplementedError


class TextFormatter(LineFormatter):
    """The local time, the level, the logger and the message. The lines of a traceback are indented."""

    def __init__(self) -> None:
        super().__init__("", f" INFO {ACCESS_LOGGER} ")

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage() or " ".join(f"{name}={text_value(v)}" for name, v in _facts(record).items())
        time_ = self.time.format(int(1000 * record.created))
        line = f"{time_} {record.levelname} {record.name} {one_line(message)}"
        if not record.exc_info:
            return line
        traceback = self.formatException(record.exc_info).split("\n")
        return "\n  ".join([line, *map(one_line, traceback)])

    def format_second(self, second: int) -> str:
        return time.strftime("%Y-%m-%d %H:%M:%S,", time.localtime(second))


class JsonFormatter(LineFormatter):
    """One JSON object a line; the time is UTC, as in RFC 3339."""

    def __init__(self) -> None:
        super().__init__('{"time":"', f'Z","level":"info","logger":"{ACCESS_LOGGER}",')

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.name == ACCESS_LOGGER:
            return message  # a JSON object already, see LineTime
        fields = {
            "time": f"{self.time.format(int(1000 * record.created))}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if message:
            fields["message"] = _encodable(message)
        fields |= _facts(record)
        if record.exc_info:
            fields["exception"] = _encodable(self.formatException(record.exc_info))
        return encode_json(fields)

    def format_second(self, second: int) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(second))


def _facts(record: logging.LogRecord) -> Mapping[str, Any]:
    return getattr(record, _FACTS, {})


def _encodable(text: str) -> str:
    """Without lone surrogates, which stand in the names of files that are not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()
