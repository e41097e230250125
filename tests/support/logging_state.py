"""Restores what set_up_logging changes, which is state of the whole process."""

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def logging_as_it_was() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("roundhouse", "asyncio", "opentelemetry", "uvicorn")]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    switches = logging.logThreads, logging.logProcesses, logging.logMultiprocessing, logging._srcfile
    try:
        yield
    finally:
        for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
        logging.logThreads, logging.logProcesses, logging.logMultiprocessing, logging._srcfile = switches
