"""The processes that there are."""

import subprocess
import sys
from pathlib import Path


def ended_process() -> int:
    """The pid of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def children(parent: int) -> dict[int, bytes]:
    """The command lines of the processes that this one has started and that run, with a NUL after each argument."""
    found = {}
    # Not /proc/PID/task/TID/children: while a child exits, that may lack others.
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The fields after the name, which may have any character: state, parent.
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found[int(stat.parent.name)] = stat.with_name("cmdline").read_bytes()
        except OSError:  # it has exited meanwhile
            continue
    return found
