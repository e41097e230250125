"""Failed tests that run again, alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run import MAX_AGAIN
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
    argv = [sys.executable, str(ROOT / "tests/run.py"), *arguments, "test_it.py"]
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_tests_that_pass_alone_are_named_and_are_no_error(folder: Path) -> None:
    ran = run(folder, FAILS_ONCE.format(count=MAX_AGAIN))
    assert ran.returncode == 0, ran.stdout
    warning = ran.stdout.rpartition("WARNING: these tests failed, and passed when they ran again, alone:\n")[2]
    assert warning.split() == [f"test_it.py::test_that_fails_once[{number}]" for number in range(MAX_AGAIN)]
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
