"""Runs a program of benchmarks/ or lab/ in a process of its own."""

import asyncio
import os
import signal
import sys

from tests.support.paths import ROOT


async def run_benchmark(module: str, *options: str, **environment: str) -> tuple[int, str]:
    """Its exit code, and its output with what it wrote to stderr. `environment`: further variables."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *options,
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        # In a session of its own: at Ctrl-C, it gets one signal, the one below.
        start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:  # the test is cancelled; at a SIGINT, a benchmark ends the processes it started
            process.send_signal(signal.SIGINT)
            await process.wait()
    assert process.returncode is not None
    return process.returncode, output.decode()
