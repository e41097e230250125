"""Runs programs that use clients' libraries, which are not in the tests' own environment: `make test-clients`."""

import asyncio
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.support.paths import ROOT

CLIENTS_PYTHON: Final = os.environ.get("ROUNDHOUSE_CLIENTS_PYTHON")
"""An interpreter that has the packages; by default that of the tests."""

CLIENTS_NODE: Final = os.environ.get("ROUNDHOUSE_CLIENTS_NODE")
"""A folder with node_modules; by default the project's."""

MISSING: Final = re.compile(r"No module named '([\w.]+)'|Cannot find package '([@\w/.-]+)'")
TIMEOUT: Final = 120.0
"""Seconds; LlamaIndex alone is imported for several on a busy machine."""


def python_command(code: str) -> list[str]:
    return [CLIENTS_PYTHON or sys.executable, "-W", "ignore", "-c", code]


def node_command(program: str) -> str:
    """The path of a program that npm has installed."""
    return str(Path(CLIENTS_NODE or ROOT, "node_modules", ".bin", program))


class ClientRun(NamedTuple):
    """How a program has ended."""

    code: int
    output: str
    errors: str


async def run_client(command: list[str], folder: Path, **variables: str) -> str:
    """The output of a program that must succeed, see `ended_client`."""
    run = await ended_client(command, folder, **variables)
    assert run.code == 0, run.errors
    return run.output


async def ended_client(command: list[str], folder: Path, **variables: str) -> ClientRun:
    """Runs a program. `folder`: the home folder. Skips the test if a program or a package is missing."""
    if shutil.which(command[0]) is None:
        _leave_out(f"{command[0]} is not installed")
    # No proxy of this machine, no settings of a user, nothing sent to anybody else.
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "NO_PROXY": "*", "AI_SDK_LOG_WARNINGS": "false"}
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *command, cwd=CLIENTS_NODE or ROOT, env=environment | variables, stdin=null, stdout=pipe, stderr=pipe
    )
    try:
        async with asyncio.timeout(TIMEOUT):
            out, err = await process.communicate()
    except BaseException:
        process.kill()
        raise
    if process.returncode and (missing := MISSING.search(err.decode())):
        _leave_out(f"{missing[1] or missing[2]} is not installed")
    assert process.returncode is not None
    return ClientRun(process.returncode, out.decode(), err.decode())


def _leave_out(reason: str) -> None:
    if CLIENTS_PYTHON or CLIENTS_NODE:
        pytest.fail(reason)
    pytest.skip(f"{reason}; make test-clients installs it")
