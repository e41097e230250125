"""Runs pytest, and prints the time and the slowest files: `python -m tests.run ARGUMENTS_OF_PYTEST`.

`--more` says what runs of the groups in more.py: `none`, or only these: `all`, or `changed`.

No test runs twice, but for one marked `real`, if it is the only one that failed: it depends on a process of
others, such as vLLM. The last line of the output names it.
"""

import argparse
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

import pytest

from tests.more import GROUPS, selected_groups

MAX_SLOWEST: Final = 10


class Reports:
    """A plugin of pytest that keeps what the end of a run tells; with pytest-xdist, the reports of all processes."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """By file: of the tests, with their fixtures."""
        self.failed: dict[str, bool] = {}
        """Node ids of tests, and of files that could not be read; whether the test is marked `real`."""
        self.stopped = False
        """Whether tests were left out after the failure (`-x`)."""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid.partition("::")[0]] += report.duration
        if report.failed:
            self.failed[report.nodeid] = "real" in report.keywords

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.stopped = bool(session.shouldfail or session.shouldstop)


def run(arguments: list[str]) -> int:
    """Returns the exit code of pytest."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--target", help="the target of make")
    parser.add_argument("--started", type=float, default=time.time(), help="when make started, in seconds since 1970")
    parser.add_argument("--more", choices=["none", "all", "changed"])
    options, arguments = parser.parse_known_args(arguments)
    if options.more == "none":
        arguments += [f"--ignore={test}" for group in GROUPS.values() for test in group.tests]
    elif options.more is not None:
        selected = selected_groups(only_changed=options.more == "changed")
        if not selected:
            return 0
        arguments += [test for name in selected for test in GROUPS[name].tests]
    reports = Reports()
    code = int(pytest.main(arguments, [reports]))
    complete = code == pytest.ExitCode.TESTS_FAILED and not reports.stopped
    again = to_run_again(reports.failed) if complete else None
    if again is not None:
        code = _run_again(again)
    for line in summary(options.target, time.time() - options.started, reports.seconds):
        sys.stdout.write(f"{line}\n")
    if again is not None:
        outcome = "failed both times" if code else "WARNING: failed, and passed when it ran again"
        sys.stdout.write(f"{outcome}: {again}\n")
    return code


def to_run_again(failed: Mapping[str, bool]) -> str | None:
    """The test that runs a second time; `failed` says of each test that failed whether it is marked `real`."""
    match list(failed.items()):
        case [(test, True)]:
            return test
    return None


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


def _run_again(test: str) -> int:
    sys.stdout.write(f"\nRunning again, alone: {test}\n")
    sys.stdout.flush()
    # Without the markers of pyproject.toml: the first run has selected the test.
    return subprocess.run([sys.executable, "-m", "pytest", "-m", "", test], check=False).returncode


if __name__ == "__main__":
    # A shell without job control starts what runs in the background with SIGINT ignored, and children inherit that:
    # then no command that a test interrupts would end.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(run(sys.argv[1:]))
