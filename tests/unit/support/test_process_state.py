"""The check that a test leaves the state of the process as it was, and the block that restores logging."""

import gc
import logging
import logging.config
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from uvicorn.config import LOGGING_CONFIG

from router.telemetry.log_output import set_up_logging
from tests.support.logging_state import logging_as_it_was
from tests.support.paths import ROOT
from tests.support.process_state import changes, process_state

TESTS: Final = """
import logging
import os

def test_one_leaves_a_level():
    logging.getLogger("uvicorn.error").setLevel("INFO")

def test_one_leaves_a_variable():
    os.environ["LEFT"] = "1"

def test_one_leaves_nothing(monkeypatch):
    assert os.environ["LEFT"] == "1"
    monkeypatch.setenv("RESTORED", "1")
    logging.getLogger("new")
"""


def test_a_test_that_leaves_state_of_the_process_fails(tmp_path: Path) -> None:
    (tmp_path / "test_state.py").write_text(TESTS)
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "tests.support.process_state", "-c"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, os.devnull, tmp_path / "test_state.py"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "3 passed, 2 errors in" in ended.stdout, ended.stdout + ended.stderr
    assert "the logger uvicorn.error: None became LoggerState(level=20, " in ended.stdout
    assert "$LEFT: None became '1'" in ended.stdout


def _setting(thing: Any, name: str, value: object) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: monkeypatch.setattr(thing, name, value)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("$PATH", lambda monkeypatch: monkeypatch.delenv("PATH")),
        ("the working directory", lambda monkeypatch: monkeypatch.chdir("/")),
        ("sys.path", lambda monkeypatch: monkeypatch.syspath_prepend("/left")),
        ("sys.excepthook", _setting(sys, "excepthook", print)),
        ("logging.logThreads", _setting(logging, "logThreads", "left")),
        ("the log level that is disabled", _setting(logging.root.manager, "disable", logging.INFO)),
        ("the logger root", _setting(logging.root, "filters", [print])),
        ("the logger uvicorn.error", _setting(logging.getLogger("uvicorn.error"), "level", logging.INFO)),
        ("the logger left.child", _setting(logging.getLogger("left.child"), "propagate", False)),
    ],
)
def test_what_is_compared(name: str, change: Callable[[pytest.MonkeyPatch], None]) -> None:
    before = process_state()
    with pytest.MonkeyPatch.context() as monkeypatch:
        change(monkeypatch)
        (line,) = changes(before, process_state())
        assert line.startswith(f"{name}: ")
    assert changes(before, process_state()) == []


def test_handlers_of_signals_and_the_settings_of_the_garbage_collector_are_compared() -> None:
    before, handler, thresholds = process_state(), signal.getsignal(signal.SIGWINCH), gc.get_threshold()
    try:
        signal.signal(signal.SIGWINCH, print)
        gc.set_threshold(thresholds[0] + 1)
        names = [line.partition(":")[0] for line in changes(before, process_state())]
    finally:
        signal.signal(signal.SIGWINCH, handler)
        gc.set_threshold(*thresholds)
    assert names == ["the garbage collector", f"the handler of {signal.SIGWINCH.name}"]


def test_logging_is_restored_after_a_command_and_after_a_server_of_uvicorn() -> None:
    before = process_state()
    with logging_as_it_was():
        set_up_logging("json")
        logging.config.dictConfig(LOGGING_CONFIG)
        logging.getLogger("uvicorn.asgi").setLevel("ERROR")
        logging.getLogger("opentelemetry.first_used_here").setLevel("CRITICAL")
        assert changes(before, process_state()) != []
    assert changes(before, process_state()) == []


def test_in_the_block_no_level_of_a_library_is_an_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    collecting = logging.StreamHandler()
    log = logging.getLogger("uvicorn.error")
    monkeypatch.setattr(log, "handlers", [collecting])
    monkeypatch.setattr(log, "propagate", False)
    log.setLevel(logging.ERROR)
    try:
        with logging_as_it_was():
            assert (log.level, log.propagate, log.handlers) == (logging.NOTSET, True, [collecting])
        assert (log.level, log.propagate, log.handlers) == (logging.ERROR, False, [collecting])
    finally:
        log.setLevel(logging.NOTSET)
