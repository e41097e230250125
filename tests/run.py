"""Runs pytest, and prints the time and the slowest files: `python -m tests.run ARGUMENTS_OF_PYTEST`.

It also runs a few failed tests again, alone. Tests run beside each other, on machines that are shared and may pause for
a second. A test that fails only then is told apart from one that fails alone too: it is named at the end, and is to be
mended, but is not an error. More than MAX_AGAIN failed tests are not run again.
"""

import argparse
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

import pytest

MAX_AGAIN: Final = 3
MAX_SLOWEST: Final = 10


class Reports:
    """A plugin of pytest that keeps what the end of a run tells; with pytest-xdist, the reports of all processes."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """By file: of the tests, with their fixtures."""
        self.failed: dict[str, None] = {}
        """Node ids, in order."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid.partition("::")[0]] += report.duration
        if report.failed:
            self.failed[report.nodeid] = None


def run(arguments: list[str]) -> int:
    """Returns the exit code of pytest."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--target", help="the target of make")
    parser.add_argument("--started", type=float, default=time.time(), help="when make started, in seconds since 1970")
    options, arguments = parser.parse_known_args(arguments)
    reports = Reports()
    code = int(pytest.main(arguments, [reports]))
    if code == pytest.ExitCode.TESTS_FAILED and 0 < len(reports.failed) <= MAX_AGAIN:
        code = _run_again(list(reports.failed))
    for line in summary(options.target, time.time() - options.started, reports.seconds):
        sys.stdout.write(f"{line}\n")
    return code


def summary(target: str | None, seconds: float, seconds_by_file: Mapping[str, float]) -> list[str]:
    """The last lines of a run: its time, and the files whose tests took longest, the slowest first."""
    minutes, rest = divmod(round(seconds), 60)
    time_taken = f"{minutes} min {rest} s" if minutes else f"{rest} s"
    slowest = sorted(seconds_by_file.items(), key=lambda item: (-item[1], item[0]))[:MAX_SLOWEST]
    title = f"{f'make {target}' if target else 'tests'}: {time_taken}"
    return [
        f"{title}; seconds of the slowest files:" if slowest else title,
        *(f"{seconds:8.1f}  {file}" for file, seconds in slowest),
    ]


def _run_again(failed: list[str]) -> int:
    _say(_list("Running again, alone:", failed))
    # Without the markers of pyproject.toml: the first run has selected the tests.
    code = subprocess.run([sys.executable, "-m", "pytest", "-m", "", *failed], check=False).returncode
    if code == 0:
        _say(_list("WARNING: these tests failed, and passed when they ran again, alone:", failed))
    return code


def _list(title: str, tests: list[str]) -> str:
    return "\n".join([title, *(f"  {test}" for test in tests)])


def _say(text: str) -> None:
    sys.stdout.write(f"\n{text}\n\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
