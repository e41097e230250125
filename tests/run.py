"""Runs pytest, and runs a few failed tests again, alone: `python -m tests.run ARGUMENTS_OF_PYTEST`.

Tests run beside each other, on machines that are shared and may pause for a second. A test that fails only then is told
apart from one that fails alone too: it is named in the last lines, and is to be mended, but is not an error. More than
MAX_AGAIN failed tests are not run again.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

MAX_AGAIN: Final = 3
_TESTS_FAILED: Final = 1
"""The exit code of pytest if tests failed; others are for an interrupt, or an error of pytest itself."""


def run(arguments: list[str]) -> int:
    """Returns the exit code of pytest."""
    with tempfile.TemporaryDirectory() as cache:
        code = _pytest(*arguments, "-o", f"cache_dir={cache}")
        failed = _failed(Path(cache)) if code == _TESTS_FAILED else []
    if not 0 < len(failed) <= MAX_AGAIN:
        return code
    sys.stdout.write(f"\n{_list('Running again, alone:', failed)}\n")
    # Without the markers of pyproject.toml: the first run has selected the tests.
    code = _pytest("-m", "", *failed)
    if code == 0:
        sys.stdout.write(f"\n{_list('WARNING: these tests failed, and passed when they ran again, alone:', failed)}\n")
    return code


def _pytest(*arguments: str) -> int:
    sys.stdout.flush()
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


def _failed(cache: Path) -> list[str]:
    """The node ids of the tests that failed; an error in a module may stand for all of its tests."""
    path = cache / "v/cache/lastfailed"
    return sorted(json.loads(path.read_text())) if path.exists() else []


def _list(title: str, tests: list[str]) -> str:
    return "\n".join([title, *(f"  {test}" for test in tests)])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
