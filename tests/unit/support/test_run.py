"""What the end of a run of tests says, and which failed test runs again."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.run import MAX_SLOWEST, Reports, summary, to_run_again
from tests.support.paths import ROOT

FAILS_ONCE = """
from pathlib import Path
import pytest

pytestmark = [pytest.mark.vllm]

def test_that_fails_once():
    ran = Path(__file__).with_name("ran")
    before = ran.exists()
    ran.touch()
    assert before
"""
FAILS_ONCE_REAL = FAILS_ONCE.replace("[pytest.mark.vllm]", "[pytest.mark.vllm, pytest.mark.real]")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -m 'not vllm'\nmarkers =\n  vllm\n  real\n")
    return tmp_path


def run(folder: Path, text: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    (folder / "test_it.py").write_text(text)
    # A test process of xdist has variables that its children must not inherit.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    argv = [sys.executable, "-m", "tests.run", "-p", "xdist", *arguments, "test_it.py"]
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120)


def report(nodeid: str, when: Any, seconds: float, outcome: Any = "passed", **options: Any) -> pytest.TestReport:
    keywords = options.get("keywords", {})
    return pytest.TestReport(nodeid, ("", 0, ""), keywords, outcome, None, when, duration=seconds)


def test_only_the_one_test_that_failed_runs_again_and_only_if_it_is_marked_real() -> None:
    assert to_run_again({"a": True}) == "a"
    assert to_run_again({"a": False}) is None
    assert to_run_again({"a": True, "b": True}) is None
    assert to_run_again({"a": True, "b": False}) is None
    assert to_run_again({}) is None


def test_of_a_test_that_failed_in_several_phases_the_marker_is_known() -> None:
    reports = Reports()
    for when in ("call", "teardown"):
        reports.pytest_runtest_logreport(report("a::x", when, 1, outcome="failed", keywords={"x": 1, "real": 1}))
    reports.pytest_runtest_logreport(report("a::y", "setup", 1, outcome="failed", keywords={"y": 1}))
    reports.pytest_runtest_logreport(report("a::z", "call", 1, keywords={"z": 1, "real": 1}))
    assert reports.failed == {"a::x": True, "a::y": False}


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_the_end_of_a_run_names_the_test_that_ran_again(folder: Path, processes: tuple[str, ...]) -> None:
    ran = run(folder, FAILS_ONCE_REAL, "-m", "vllm", *processes)
    assert ran.returncode == 0, ran.stdout
    last = ran.stdout.splitlines()[-1]
    assert last == "WARNING: failed, and passed when it ran again: test_it.py::test_that_fails_once"


def test_a_test_that_fails_again_is_an_error(folder: Path) -> None:
    ran = run(folder, FAILS_ONCE_REAL.replace("assert before", "assert False"), "-m", "vllm")
    assert ran.returncode == 1
    assert ran.stdout.splitlines()[-1] == "failed both times: test_it.py::test_that_fails_once"


def test_a_test_that_is_not_marked_runs_once(folder: Path) -> None:
    ran = run(folder, FAILS_ONCE, "-m", "vllm")
    assert ran.returncode == 1
    assert "Running again" not in ran.stdout


def test_no_test_runs_again_if_others_were_left_out(folder: Path) -> None:
    ran = run(folder, f"{FAILS_ONCE_REAL}\ndef test_that_is_left_out():\n    assert False\n", "-m", "vllm", "-x")
    assert ran.returncode == 1
    assert "Running again" not in ran.stdout


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_no_test_runs_again_if_a_file_could_not_be_read(folder: Path, processes: tuple[str, ...]) -> None:
    (folder / "test_broken.py").write_text("assert False\n")
    options = ("-m", "vllm", "--continue-on-collection-errors", *processes, "test_broken.py")
    ran = run(folder, FAILS_ONCE_REAL, *options)
    assert ran.returncode != 0
    assert "Running again" not in ran.stdout


def test_tests_that_pass_run_once(folder: Path) -> None:
    ran = run(folder, "def test_that_passes():\n    pass\n")
    assert ran.returncode == 0
    assert "Running again" not in ran.stdout


def test_an_error_of_pytest_is_passed_on(folder: Path) -> None:
    assert run(folder, "", "--no-such-option").returncode == 4


def test_the_end_of_a_run_names_the_slowest_files_first() -> None:
    seconds = {f"tests/test_{number}.py": float(number) for number in range(MAX_SLOWEST + 2)}
    title, *files = summary("check", 59.6, seconds)
    assert title == "make check: 1 min 0 s; seconds of the slowest files:"
    assert files[0] == "    11.0  tests/test_11.py"
    assert [line.split()[1] for line in files] == [f"tests/test_{number}.py" for number in range(11, 1, -1)]


def test_a_run_without_tests_has_only_its_time() -> None:
    assert summary(None, 7.2, {}) == ["tests: 7 s"]


def test_a_file_has_the_seconds_of_all_its_tests_with_their_fixtures() -> None:
    reports = Reports()
    for nodeid in ("tests/test_a.py::test_one", "tests/test_a.py::TestIt::test_two[a::b]"):
        for when, seconds in (("setup", 0.5), ("call", 2), ("teardown", 0.25)):
            reports.pytest_runtest_logreport(report(nodeid, when, seconds))
    reports.pytest_runtest_logreport(report("tests/test_b.py::test_three", "call", 1))
    assert reports.seconds == {"tests/test_a.py": 5.5, "tests/test_b.py": 1}


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_the_last_lines_are_the_time_and_the_files(folder: Path, processes: tuple[str, ...]) -> None:
    ran = run(folder, "def test_that_passes():\n    pass\n", "--target", "test", *processes)
    assert ran.returncode == 0, ran.stdout
    title, file = ran.stdout.splitlines()[-2:]
    assert title.startswith("make test: ")
    assert file.split()[1] == "test_it.py"


def test_the_time_counts_from_when_make_started(folder: Path) -> None:
    ran = run(folder, "def test_that_passes():\n    pass\n", "--started", str(time.time() - 600))
    assert "\ntests: 10 min " in ran.stdout
