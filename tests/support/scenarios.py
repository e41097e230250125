"""Runs a module of simulated scenarios in a process of its own, since it replaces the clock."""

import json
import os
import subprocess
import sys
from typing import Any

from tests.support.paths import ROOT


def run_scenarios(module: str) -> Any:
    """The outcomes by scenario."""
    done = subprocess.run(
        [sys.executable, "-m", module], cwd=ROOT, capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return json.loads(done.stdout)
