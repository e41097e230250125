"""A plugin of pytest: a test fails if it leaves state of the process that a later test may depend on.

Which tests share a process, and in which order, differs from run to run. What is compared is cheap to read; the umask,
for one, can only be read by setting it.
"""

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Generator, Mapping
from typing import Any, Final

import pytest

from tests.support.logging_state import SWITCHES, LoggerState

_BEFORE: Final = pytest.StashKey[dict[str, Any]]()
_SIGNALS: Final = [(number, number.name) for number in signal.Signals]
_NEW_LOGGER: Final = LoggerState()


def process_state() -> dict[str, Any]:
    """The state by its name in a message. A logger that is as if nothing had changed it is left out."""
    state: dict[str, Any] = {
        "the working directory": os.getcwd(),  # noqa: PTH109 - a Path takes longer
        "the log level that is disabled": logging.root.manager.disable,
        "sys.path": [*sys.path],
        "sys.excepthook": sys.excepthook,
        "sys.unraisablehook": sys.unraisablehook,
        "threading.excepthook": threading.excepthook,
        "the switch interval of threads": sys.getswitchinterval(),
        "the garbage collector": (gc.isenabled(), gc.get_threshold(), gc.get_debug()),
    }
    for name, value in os.environ.items():
        state[f"${name}"] = value
    for number, name in _SIGNALS:
        state[f"the handler of {name}"] = signal.getsignal(number)
    for name in SWITCHES:
        state[f"logging.{name}"] = getattr(logging, name, None)
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger) and (of_logger := LoggerState.of(logger)) != _NEW_LOGGER:
            state[f"the logger {logger.name}"] = of_logger
    state.pop("$PYTEST_CURRENT_TEST", None)
    return state


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """One line for each difference."""
    return [
        f"{name}: {before.get(name)!r} became {after.get(name)!r}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    item.stash[_BEFORE] = process_state()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    result = yield
    before = item.stash[_BEFORE]
    if left := changes(before, process_state()):
        pytest.fail("\n".join(("the test leaves state of the process:", *left)), pytrace=False)
    return result
