"""A plugin of pytest: each process of pytest-xdist imports other test files first.

Where there is no bytecode yet, as in the copy of `make compiled`, pytest compiles each file that it imports, and that
takes longer than all else of the collection. In one order, all processes would compile the same file at the same time.
"""

import contextlib
import importlib
from pathlib import Path

import pytest

from tests.support.paths import ROOT


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    process = getattr(session.config, "workerinput", None)
    if process is None:
        return
    number = int(process["workerid"].removeprefix("gw"))
    for file in _test_files(session.config)[number :: process["workercount"]]:
        # Collected later, it fails again, and pytest says why.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))


def _test_files(config: pytest.Config) -> list[Path]:
    ignored = [Path(path).resolve() for path in config.getoption("ignore") or ()]
    files: set[Path] = set()
    for argument in config.args:
        path = Path(argument.partition("::")[0]).resolve()
        files.update(path.rglob("test_*.py") if path.is_dir() else [path])
    return sorted(file for file in files if not any(file.is_relative_to(path) for path in ignored))
