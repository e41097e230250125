"""Help and shell completion of `roundhouse`."""

import os
import subprocess
import sys

import pytest

from tests.support.cli_helpers import run_cli

ROUNDHOUSE = [sys.executable, "-m", "router"]


@pytest.mark.parametrize("command", [[], ["serve"], ["engines"], ["engines", "drain"], ["cache", "purge"]])
async def test_h_is_help_at_every_command(command: list[str]) -> None:
    short, long = await run_cli(*command, "-h"), await run_cli(*command, "--help")
    assert short == long
    assert short.code == 0
    assert " ".join(["roundhouse", *command]) in short.stdout


def test_the_shell_completes_commands() -> None:
    env = {**os.environ, "_ROUNDHOUSE_COMPLETE": "complete_bash", "COMP_WORDS": "roundhouse re", "COMP_CWORD": "1"}
    done = subprocess.run(ROUNDHOUSE, capture_output=True, text=True, env=env, check=False)
    assert done.stdout.split() == ["reload"]
