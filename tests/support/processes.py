"""Processes that only exist or do not."""

import subprocess
import sys


def ended_process() -> int:
    """The pid of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid
