"""Installs a wheel into an empty environment, and lets tools/wheels/smoke_test.py try it there."""

import os
import subprocess
from pathlib import Path
from typing import Final

from tools.wheels.distributions import BuildError

SMOKE_TEST: Final = Path(__file__).with_name("smoke_test.py")


def try_wheel(python: Path, wheel: Path, folder: Path, *, compiled: bool) -> None:
    """The environment is made with `python` in `folder`, with the wheel's dependencies. Raises BuildError."""
    installed = folder / "bin" / "python"
    _run([python, "-m", "venv", folder])
    _run([installed, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel])
    _run([installed, SMOKE_TEST, *(["--compiled"] if compiled else [])])


def _run(command: list[str | Path]) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(done.stdout[-4000:])
