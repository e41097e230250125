"""Ports for servers of tests."""

import subprocess
import sys

from tests.support.paths import ROOT
from tests.support.ports import free_port

PROGRAM = "from tests.support.ports import free_port; print(*{free_port() for _ in range(200)})"


def test_two_processes_never_choose_the_same_port() -> None:
    own = {free_port() for _ in range(200)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    others = {int(port) for port in done.stdout.split()}
    assert len(own) > 40
    assert len(others) > 40
    assert not own & others
