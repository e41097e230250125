"""What the end of a run of tests says, and failed tests that run again, alone."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.run import MAX_AGAIN, MAX_SLOWEST, Reports, summary
from tests.support.paths import ROOT

FAILS_ONCE = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_that_fails_once(number):
    ran = Path(__file__).with_name(f"ran-{{number}}")
    before = ran.exists()
    ran.touch()
    assert before

def test_that_passes():
    with Path(__file__).with_name("passed").open("a") as file:
        file.write("x")
"""
ALWAYS_FAILS = "def test_that_always_fails():\n    assert False\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -m 'not vllm'\nmarkers = vllm\n")
    return tmp_path


def run(folder: Path, text: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    (folder / "test_it.py").write_text(text)
    # A test process of xdist has variables that its children must not inherit.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment["PYTHONPATH"] = str(ROOT)
    argv = [sys.executable, "-m", "tests.run", *arguments, "test_it.py"]
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120)


def report(nodeid: str, when: Any, seconds: float) -> pytest.TestReport:
    return pytest.TestReport(nodeid, ("", 0, ""), {}, "passed", None, when, duration=seconds)


def test_tests_that_pass_alone_are_named_and_are_no_error(folder: Path) -> None:
    ran = run(folder, FAILS_ONCE.format(count=MAX_AGAIN))
    assert ran.returncode == 0, ran.stdout
    warning = ran.stdout.rpartition("WARNING: these tests failed, and passed when they ran again, alone:\n")[2]
    assert warning.partition("\n\n")[0].split() == [
        f"test_it.py::test_that_fails_once[{number}]" for number in range(MAX_AGAIN)
    ]
    assert (folder / "passed").read_text() == "x"


def test_tests_that_a_marker_selects_run_again_too(folder: Path) -> None:
    marked = FAILS_ONCE.format(count=1).replace("import pytest", "import pytest\npytestmark = pytest.mark.vllm")
    ran = run(folder, marked, "-m", "vllm")
    assert ran.returncode == 0, ran.stdout
    assert "WARNING" in ran.stdout


def test_a_test_that_fails_alone_too_is_an_error(folder: Path) -> None:
    ran = run(folder, FAILS_ONCE.format(count=1) + ALWAYS_FAILS)
    assert ran.returncode == 1
    assert "Running again, alone:" in ran.stdout
    assert "WARNING" not in ran.stdout


def test_many_failed_tests_do_not_run_again(folder: Path) -> None:
    ran = run(folder, FAILS_ONCE.format(count=MAX_AGAIN + 1))
    assert ran.returncode == 1
    assert "again" not in ran.stdout


def test_tests_that_pass_run_once(folder: Path) -> None:
    ran = run(folder, "def test_that_passes():\n    pass\n")
    assert ran.returncode == 0
    assert "again" not in ran.stdout


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
