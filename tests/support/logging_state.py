"""Restores what set_up_logging and uvicorn's LOGGING_CONFIG change, which is state of the whole process."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

SWITCHES: Final = ("logThreads", "logProcesses", "logMultiprocessing", "logAsyncioTasks", "_srcfile")
"""Of the module `logging`: what its records collect. Python 3.11 has no logAsyncioTasks."""

_LIBRARIES: Final = ("asyncio", "opentelemetry", "uvicorn")


class LoggerState(NamedTuple):
    """What a program can change of a logger; by default, that of a new one. Handlers of pytest do not count: it adds
    some to each logger that does not propagate, and removes them when a phase of the test ends. Nor do those that do
    nothing, which a library adds when it is imported.
    """

    level: int = logging.NOTSET
    propagate: bool = True
    disabled: bool = False
    handlers: tuple[logging.Handler, ...] = ()
    filters: tuple[Any, ...] = ()

    @classmethod
    def of(cls, logger: logging.Logger) -> "LoggerState":
        handlers = tuple(handler for handler in logger.handlers if not _does_not_count(handler))
        return cls(logger.level, logger.propagate, logger.disabled, handlers, tuple(logger.filters))

    def restore(self, logger: logging.Logger) -> None:
        logger.setLevel(self.level)
        logger.propagate, logger.disabled = self.propagate, self.disabled
        logger.handlers = [*self.handlers, *filter(_does_not_count, logger.handlers)]
        logger.filters = [*self.filters]


@contextlib.contextmanager
def logging_as_it_was() -> Iterator[None]:
    """Restores these loggers with their children. In the block, those of libraries are new ones but for their handlers:
    a server of the test collects its errors with one.
    """
    before = {logger: LoggerState.of(logger) for logger in _loggers("roundhouse", *_LIBRARIES)}
    switches = {name: getattr(logging, name) for name in SWITCHES if hasattr(logging, name)}
    for logger in _loggers(*_LIBRARIES):
        LoggerState(handlers=before[logger].handlers).restore(logger)
    try:
        yield
    finally:
        for logger in _loggers("roundhouse", *_LIBRARIES):
            before.get(logger, LoggerState()).restore(logger)
        for name, value in switches.items():
            setattr(logging, name, value)


def _does_not_count(handler: logging.Handler) -> bool:
    return isinstance(handler, logging.NullHandler) or type(handler).__module__.startswith("_pytest.")


def _loggers(*names: str) -> list[logging.Logger]:
    """Those with these names, and their children that exist."""
    roots = [logging.getLogger(name) for name in names]
    known = [*logging.root.manager.loggerDict.values()]  # at once: threads add to it
    prefixes = tuple(f"{name}." for name in names)
    return roots + [each for each in known if isinstance(each, logging.Logger) and each.name.startswith(prefixes)]
